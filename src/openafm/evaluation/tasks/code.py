"""HumanEval (arXiv 2107.03374) and MBPP (arXiv 2108.07732): Python functions, whose tests run in the sandbox.

`humaneval` follows simple-evals: the first Python block, of which everything up to the first indented line is removed and
replaced by the problem's own header. Trap that is kept: helper functions and imports before the function are lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from openafm.evaluation.harness.task import Item, Output, Prompt, TaskConfig, TaskDataError, Verdict
from openafm.evaluation.tasks.files import Source, found, json_lines
from openafm.sandbox import SandboxLimits, SandboxMissingError, sandbox_reason
from openafm.sandbox.python_answers import passes_tests

HUMANEVAL = Source(name="HumanEval", origin="https://github.com/openai/human-eval (data/HumanEval.jsonl.gz)", license="MIT")
MBPP = Source(
    name="MBPP",
    origin="https://github.com/google-research/google-research (mbpp/mbpp.jsonl)",
    license="CC BY 4.0",
)
_INSTRUCTION = (
    "Read the following function signature and docstring, and fully implement the function described. Your response should"
    " only contain the code for this function.\n"
)
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
_ANY_BLOCK = re.compile(r"```(?:\w+)?\n?(.*?)\n?```", re.DOTALL)
_EVALUATED = range(11, 511)  # MBPP's task ids for evaluation; 2, 3 and 4 are its examples
_SHOTS = (2, 3, 4)


def _limits() -> SandboxLimits:
    return SandboxLimits(wall_seconds=15.0, cpu_seconds=10, memory_mb=1024)


@dataclass(frozen=True, kw_only=True)
class HumanEvalConfig(TaskConfig):
    """HumanEval by simple-evals' rules, one sample for each problem."""

    METRIC = "pass@1"

    max_tokens: int = 1024
    limits: SandboxLimits = field(default_factory=_limits)

    def check(self) -> None:
        _check_sandbox()

    def items(self, data: Path) -> Iterator[Item]:
        columns = dict.fromkeys(("task_id", "prompt", "entry_point", "test"), str)
        for row in json_lines(found(HUMANEVAL, data, "humaneval/HumanEval.jsonl", "HumanEval.jsonl"), columns):
            yield Item(
                id=row["task_id"],
                prompt=Prompt(text=_INSTRUCTION + row["prompt"], max_tokens=self.max_tokens),
                reference={"header": row["prompt"], "tests": f"{row['test']}\ncheck({row['entry_point']})"},
            )

    def judge(self, item: Item, output: Output) -> Verdict:
        code = item.reference["header"] + function_body(output.text)
        return _verdict(code, item.reference["tests"], self.limits)


@dataclass(frozen=True, kw_only=True)
class MBPPConfig(TaskConfig):
    """MBPP, task ids 11 to 510, with the prompt of its paper in a chat: the task and its three tests."""

    METRIC = "pass@1"

    max_tokens: int = 512
    limits: SandboxLimits = field(default_factory=_limits)

    def check(self) -> None:
        _check_sandbox()

    def items(self, data: Path) -> Iterator[Item]:
        for row in read_mbpp(data):
            if row.id in _EVALUATED:
                text = (
                    f"You are an expert Python programmer, and here is your task:\n{row.text}\nYour code should pass these"
                    f" tests:\n" + "\n".join(row.tests[:3]) + "\nAnswer with one Python code block."
                )
                yield Item(
                    id=str(row.id), prompt=Prompt(text=text, max_tokens=self.max_tokens), reference={"tests": row.all_tests}
                )

    def judge(self, item: Item, output: Output) -> Verdict:
        blocks = _ANY_BLOCK.findall(output.text)
        return _verdict(blocks[0] if blocks else output.text, item.reference["tests"], self.limits)


@dataclass(frozen=True, kw_only=True)
class MBPPCompletionConfig(TaskConfig):
    """MBPP by the rules of lm-evaluation-harness: a completion after three examples, up to [DONE]."""

    METRIC = "pass@1"

    max_tokens: int = 256
    limits: SandboxLimits = field(default_factory=_limits)

    def check(self) -> None:
        _check_sandbox()

    def items(self, data: Path) -> Iterator[Item]:
        rows = list(read_mbpp(data))
        known = {row.id: row for row in rows}
        prefix = "".join(f"{mbpp_prompt(known[id])}{known[id].code}\n[DONE]\n\n" for id in _SHOTS if id in known)
        for row in rows:
            if row.id in _EVALUATED:
                prompt = Prompt(
                    kind="completion",
                    text=prefix + mbpp_prompt(row),
                    prefix=prefix,
                    stop=("[DONE]",),
                    max_tokens=self.max_tokens,
                )
                yield Item(id=str(row.id), prompt=prompt, reference={"tests": row.all_tests})

    def judge(self, item: Item, output: Output) -> Verdict:
        return _verdict(output.text, item.reference["tests"], self.limits)


@dataclass(frozen=True, kw_only=True)
class MBPPRow:
    """A problem of MBPP."""

    id: int
    text: str
    code: str
    tests: tuple[str, ...]
    setup: str

    @property
    def all_tests(self) -> str:
        return "\n".join([self.setup, *self.tests])


def function_body(text: str) -> str:
    """Return the code of an answer without its header, by simple-evals' rule."""
    blocks = _BLOCK.findall(text)
    code = blocks[0] if blocks else text
    return code[code.find(":\n    ") + 2 :]


def read_mbpp(data: Path) -> Iterator[MBPPRow]:
    columns = {"task_id": int, "text": str, "code": str, "test_list": list, "test_setup_code": str}
    path = found(MBPP, data, "mbpp/mbpp.jsonl", "mbpp.jsonl")
    for row in json_lines(path, columns):
        if len(row["test_list"]) < 3:
            raise TaskDataError(f"{path}: the task {row['task_id']} has {len(row['test_list'])} tests, expected 3 or more")
        yield MBPPRow(
            id=row["task_id"],
            text=row["text"],
            code=row["code"],
            tests=tuple(row["test_list"]),
            setup=row["test_setup_code"],
        )


def mbpp_prompt(row: MBPPRow) -> str:
    tests = "\n".join(row.tests[:3])
    return (
        f"You are an expert Python programmer, and here is your task: {row.text} Your code should pass these tests:\n\n"
        f"{tests}\n[BEGIN]\n"
    )


def _verdict(code: str, tests: str, limits: SandboxLimits) -> Verdict:
    passed = "\0" not in code and passes_tests(code.encode("utf-8", "replace").decode(), tests, limits)
    return Verdict(scores={"pass@1": float(passed)}, extraction=code, expected=tests)


def _check_sandbox() -> None:
    if reason := sandbox_reason():
        raise SandboxMissingError(reason)
