"""Python code in answers of a model, and its tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from openafm.sandbox.bubblewrap import SandboxLimits, run_connected
from openafm.sandbox.exchange import VERDICT

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


def python_of(text: str) -> str | None:
    """Return the last Python block of a Markdown text; the text itself if it has no block; None if there is no code."""
    blocks = _BLOCK.findall(text)
    code = blocks[-1] if blocks else text
    return code if code.strip() else None


def passes_tests(code: str, tests: str, limits: SandboxLimits | None = None) -> bool:
    """Return whether the statements of tests run to their end with the functions of an answer.

    The answer runs in a sandbox of its own and returns data (`exchange`). Tests, what they expect and the verdict are in
    another one, which the answer cannot see: it passes only with the values. Tests that compare instances of the answer's
    own classes with each other fail; those that compare their attributes do not.

    Raises:
        SandboxMissingError: there is no sandbox on this machine.
    """
    result = run_connected(
        _program("tests_side", tests), _program("answer_side", code), files=_exchange(), collect=(VERDICT,), limits=limits
    )
    return result.exit_code == 0 and not result.timed_out and VERDICT in result.files


def _program(side: str, text: str) -> str:
    return f"import sys\nsys.path.insert(0, '.')\nfrom exchange import {side}\n{side}({text!r})\n"


@cache
def _exchange() -> Mapping[str, bytes]:
    return {"exchange.py": files("openafm.sandbox").joinpath("exchange.py").read_bytes()}
