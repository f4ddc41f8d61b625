"""Code execution: the code of an answer runs in the sandbox, and its tests decide.

What the code must return or print never enters its sandbox. With `cases` the code runs with the input, and the result is
compared outside. `tests` run in a sandbox of their own, to which the code returns data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openafm.rl.rewards.base import Reward, RewardConfig, TruthError, failed, scored
from openafm.rl.trajectories import Sample, Score
from openafm.sandbox import SandboxLimits, SandboxMissingError, SandboxResult, run_python, sandbox_reason
from openafm.sandbox.python_answers import passes_tests, python_of

_RESULT = "result.json"
_WITH_INPUT = "import io, sys\nsys.stdin = io.StringIO(open('input.txt', encoding='utf-8').read())\n"
_CALL = """
import json as _json
with open({result!r}, "w") as _file:
    _json.dump(eval({call!r}), _file)
"""


@dataclass(frozen=True, kw_only=True)
class CodeExecutionConfig(RewardConfig):
    """The share of the tests in the prompt's truth that the last Python block of the answer passes.

    - `cases`: objects with `stdin` and `stdout`, or with `call`, an expression, and `value`, its JSON value
    - `tests`: Python statements, such as `assert double(2) == 4`, that are run together after the code; they count as one

    Attributes:
        limits: the limits of each run.
        all_or_nothing: give 1 if every test passes, else 0.
    """

    name: str = "code_execution"
    limits: SandboxLimits = field(default_factory=lambda: SandboxLimits(wall_seconds=10.0, cpu_seconds=5, memory_mb=1024))
    all_or_nothing: bool = True

    def build(self) -> Reward:
        """Return the reward.

        Raises:
            SandboxMissingError: there is no sandbox on this machine; code of a model never runs without it.
        """
        if reason := sandbox_reason():
            raise SandboxMissingError(reason)
        return CodeExecution(self)


class CodeExecution:
    """See `CodeExecutionConfig`."""

    def __init__(self, config: CodeExecutionConfig) -> None:
        self._config = config

    def __call__(self, samples: Sequence[Sample]) -> list[Score]:
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> Score:
        name = self._config.name
        try:
            cases, tests = _truth(sample.prompt.truth)
            code = python_of(sample.text)
            passed = [] if code is None else [self._passes(code, case) for case in cases]
            if code is not None and tests:
                passed.append(passes_tests(code, tests, self._config.limits))
        except Exception as error:  # a malformed truth, or a failure of the sandbox, is not the answer's fault
            return failed(name, f"{type(error).__name__}: {error}")
        if not passed:
            return scored(name, 0.0)
        share = sum(passed) / len(passed)
        return scored(name, float(share == 1) if self._config.all_or_nothing else share)

    def _passes(self, code: str, case: Mapping[str, Any]) -> bool:
        limits = self._config.limits
        if "call" in case:
            result = run_python(code + _CALL.format(result=_RESULT, call=case["call"]), collect=(_RESULT,), limits=limits)
            return _is_json(result.files.get(_RESULT), case["value"])
        result = run_python(_WITH_INPUT + code, files={"input.txt": str(case.get("stdin", "")).encode()}, limits=limits)
        return _ended_well(result) and _same_lines(result.output, case["stdout"])


def _truth(truth: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], str]:
    cases, tests = truth.get("cases", []), truth.get("tests", "")
    tests = "\n".join(tests) if isinstance(tests, list) and all(isinstance(test, str) for test in tests) else tests
    is_valid = isinstance(cases, list) and isinstance(tests, str) and (cases or tests) and all(map(_is_case, cases))
    if not is_valid:
        raise TruthError(
            "the truth needs 'cases', a list of objects with 'stdin' and 'stdout' or 'call' and 'value', or 'tests', "
            "Python code"
        )
    return cases, tests


def _is_case(case: Any) -> bool:
    if not isinstance(case, Mapping):
        return False
    return isinstance(case.get("stdout"), str) or (isinstance(case.get("call"), str) and "value" in case)


def _ended_well(result: SandboxResult) -> bool:
    return result.exit_code == 0 and not result.timed_out


def _is_json(data: bytes | None, value: Any) -> bool:
    try:
        return data is not None and bool(json.loads(data) == value)
    except (ValueError, RecursionError):
        return False


def _same_lines(output: str, wanted: str) -> bool:
    """Compare outputs without spaces at the ends of lines and without empty lines at the end."""
    found, expected = ([line.rstrip() for line in text.rstrip().splitlines()] for text in (output, wanted))
    return found == expected
