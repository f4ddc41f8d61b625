"""Code of an answer runs in the sandbox only; judges that fail, lie or hang cost their sample."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from reward_samples import sample

from openafm.core.config import ConfigError
from openafm.rl.rewards import code_execution
from openafm.rl.rewards.code_execution import CodeExecutionConfig
from openafm.rl.rewards.judge import Judge, JudgeConfig, JudgeReplyError, read_score
from openafm.rl.trajectories import Score
from openafm.sandbox import SandboxLimits, SandboxMissingError, sandbox_reason
from openafm.sandbox.python_answers import python_of

works = pytest.mark.skipif(bool(sandbox_reason()), reason=sandbox_reason() or "works")
DOUBLE = "Here:\n```python\ndef double(x):\n    return 2 * x\n```\nDone."
QUICK = SandboxLimits(wall_seconds=3.0, cpu_seconds=2, memory_mb=512)


def _score(text: str, truth: dict[str, Any], **options: Any) -> Score:
    return CodeExecutionConfig(limits=QUICK, **options).build()([sample(text, truth)])[0]


@works
def test_code_passes_calls_inputs_and_tests() -> None:
    cases = [{"call": "double(4)", "value": 8}, {"call": "double('ab')", "value": "abab"}, {"call": "double(1)", "value": 3}]
    assert _score(DOUBLE, {"cases": cases[:2], "tests": "assert double(0) == 0"}).reward == 1
    assert _score(DOUBLE, {"cases": cases}).reward == 0
    assert _score(DOUBLE, {"cases": cases}, all_or_nothing=False).reward == pytest.approx(2 / 3)
    echo = "```\nprint(int(input()) + 1)\n```"
    assert _score(echo, {"cases": [{"stdin": "41\n", "stdout": "42"}]}).reward == 1


@works
@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "print('x' * 10)\nraise SystemExit",
        "x = [0] * 10**10",
        "not Python (",
    ],
)
def test_code_that_hangs_or_leaves_early_does_not_pass(code: str) -> None:
    score = _score(f"```python\n{code}\n```", {"tests": ["assert True"]})
    assert score == Score(reward=0.0, terms={"code_execution": 0.0})


def test_without_a_sandbox_the_reward_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_execution, "sandbox_reason", lambda: "no bubblewrap")
    with pytest.raises(SandboxMissingError, match="no bubblewrap"):
        CodeExecutionConfig().build()


@works
@pytest.mark.parametrize("truth", [{}, {"cases": "x"}, {"cases": [{"stdin": "x"}]}, {"tests": 1}])
def test_a_truth_without_tests_is_an_error_of_the_sample(truth: dict[str, Any]) -> None:
    assert "the truth needs 'cases'" in _score(DOUBLE, truth).error


def test_the_last_block_is_the_code() -> None:
    assert python_of("```python\na\n```\n```py\nb\n```") == "b\n"
    assert python_of("x = 1") == "x = 1"
    assert python_of(" ") is None


def test_a_judge_scores_from_0_to_1_and_its_failures_cost_their_sample() -> None:
    seen: list[str] = []
    release = threading.Event()

    def ask(prompt: str) -> str:
        seen.append(prompt)
        if "hang" in prompt:
            release.wait(60)
        if "fail" in prompt:
            raise ConnectionError("no route")
        return '{"reason": "fine", "score": 7}' if "good" in prompt else "It is 11"

    judge = Judge(JudgeConfig(model="any", time_limit=0.3), ask)
    start_s = time.perf_counter()
    good, hang, fail, lie = judge(
        [sample("a good one", {"reference": "the truth"}), sample("hang"), sample("fail"), sample("lie")]
    )
    release.set()
    assert time.perf_counter() - start_s < 30
    assert good == Score(reward=6 / 9, terms={"judge": 6 / 9})
    assert "<reference>\nthe truth" in next(prompt for prompt in seen if "good" in prompt)
    assert hang.error == "judge: TimeoutError: no result within the time limit of 0.3 s"
    assert fail.error == "judge: ConnectionError: no route"
    assert "JudgeReplyError: expected a score from 1 to 10" in lie.error


@pytest.mark.parametrize(
    ("reply", "score"), [('{"score": 3}', 3), ("Score: 10/10", 10), ("9.5", 9.5), ('{"score": 2.5}', 2.5)]
)
def test_scores_are_read_from_json_or_text(reply: str, score: float) -> None:
    assert read_score(reply, 10) == score


@pytest.mark.parametrize("reply", ["", "good", '{"score": true}', "0", '{"score": 11}', "NaN"])
def test_replies_without_a_score_are_refused(reply: str) -> None:
    with pytest.raises(JudgeReplyError):
        read_score(reply, 10)


def test_a_question_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown field 'prompt'"):
        JudgeConfig(model="any", question="{prompt}")
