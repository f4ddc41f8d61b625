"""Synthesis with a scripted model: math answers checked with the truth, votes, and the command with a bundle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripted_models import ScriptedModel
from tiny_bundles import write_tiny_bundle

from openafm.cli.main import run
from openafm.core.errors import UsageError
from openafm.data.synthesis.running import synthesize
from openafm.recipes.pipelines.synthesis import SYNTHESES, functions_of, is_correct, synthesis
from openafm.rl.rewards.base import TruthError


def write(path: Path, count: int) -> Path:
    lines = [
        {
            "messages": [{"role": "user", "content": f"What is {n} plus {n}?"}],
            "truth": {"answer": str(2 * n)},
            "language": "en",
        }
        for n in range(count)
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


@pytest.mark.slow
def test_math_keeps_answers_that_equal_the_truth(tmp_path: Path) -> None:
    model = ScriptedModel(*["The answer is 2."] * 40)
    functions = functions_of(model)
    report = synthesize(SYNTHESES["math"], write(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl", functions)
    assert (report.num_prompts, report.num_kept) == (3, 1), report
    assert report.dropped == {"GroundTruth/wrong": 2}
    (line,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert [message["content"] for message in line["messages"]] == ["What is 1 plus 1?", "The answer is 2."]


@pytest.mark.long
def test_answers_are_compared_by_value() -> None:
    assert is_correct(r"So \boxed{\frac{1}{2}}", {"answer": "0.5"})
    assert not is_correct("Answer: 3", {"answer": "0.5"})
    with pytest.raises(TruthError):
        is_correct("x", {})


@pytest.mark.long
def test_the_command_counts_what_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    bundle = write_tiny_bundle(tmp_path / "bundle")
    arguments = ["data", "synthesize", "votes", str(write(tmp_path / "in.jsonl", 1)), "--model", str(bundle.path)]
    out = ["--out", str(tmp_path / "out.jsonl"), "--set", "stages.0.count=2", "--json"]
    assert run([*arguments, *out]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["num_prompts"] == report["num_kept"] + sum(report["dropped"].values()) == 1
    with pytest.raises(UsageError, match="did you mean 'math'"):
        synthesis("maths")


def test_the_command_names_the_missing_reward_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "synthesize", "general", str(write(tmp_path / "in.jsonl", 1))]) == 2
    assert "add --reward-model BUNDLE" in capsys.readouterr().err
