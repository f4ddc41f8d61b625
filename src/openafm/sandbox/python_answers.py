"""Python code in answers of a model, and its tests."""

from __future__ import annotations

import re
import secrets

from openafm.sandbox.bubblewrap import SandboxLimits, run_python

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


def python_of(text: str) -> str | None:
    """Return the last Python block of a Markdown text; the text itself if it has no block; None if there is no code."""
    blocks = _BLOCK.findall(text)
    code = blocks[-1] if blocks else text
    return code if code.strip() else None


def passes_tests(code: str, tests: str, limits: SandboxLimits | None = None) -> bool:
    """Return whether code and the statements after it run to their end. Code that exits early does not pass.

    Raises:
        SandboxMissingError: there is no sandbox on this machine.
    """
    token = secrets.token_hex(16)  # the code before cannot know what is printed at the end
    result = run_python(f"{code}\n{tests}\nprint('\\n{token}')\n", limits=limits)
    return result.exit_code == 0 and not result.timed_out and result.output.rstrip().endswith(token)
