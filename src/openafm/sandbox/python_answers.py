"""Python code in answers of a model, and its tests."""

from __future__ import annotations

import re
import secrets

from openafm.sandbox.bubblewrap import SandboxLimits, run_python
from openafm.sandbox.compared_outside import VALUES_FILE, split

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


def python_of(text: str) -> str | None:
    """Return the last Python block of a Markdown text; the text itself if it has no block; None if there is no code."""
    blocks = _BLOCK.findall(text)
    code = blocks[-1] if blocks else text
    return code if code.strip() else None


def passes_tests(code: str, tests: str, limits: SandboxLimits | None = None) -> bool:
    """Return whether code and the statements after it run to their end. Code that exits early does not pass.

    `assert CALL == LITERAL` is decided outside the sandbox: code passes it only with the value. Other statements run beside
    the code, which can forge their success if it inspects its interpreter.

    Raises:
        SandboxMissingError: there is no sandbox on this machine.
    """
    token = secrets.token_hex(16)  # keeps an early exit from passing, not code that looks for the token in its program
    comparisons = split(tests)
    program = f"{code}\n{comparisons.statements}\nprint('\\n{token}')\n"
    result = run_python(program, collect=(VALUES_FILE,), limits=limits)
    has_ended = result.exit_code == 0 and not result.timed_out and result.output.rstrip().endswith(token)
    return has_ended and comparisons.hold(result.files.get(VALUES_FILE))
