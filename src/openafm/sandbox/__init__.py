"""Running code that a model wrote, without network, without the machine's files and within limits (report 5.2)."""

from openafm.sandbox.bubblewrap import (
    SandboxFailedError,
    SandboxLimits,
    SandboxMissingError,
    SandboxResult,
    run_python,
    sandbox_reason,
)

__all__ = [
    "SandboxFailedError",
    "SandboxLimits",
    "SandboxMissingError",
    "SandboxResult",
    "run_python",
    "sandbox_reason",
]
