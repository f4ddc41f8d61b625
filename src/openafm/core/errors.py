"""The root of every error that openafm raises on purpose.

A room defines its own errors beside the code that raises them, all below `OpenAFMError`. A message names the thing, says
what was expected and what to do about it, in one or two sentences: the command line prints it as it is.
"""

from __future__ import annotations


class OpenAFMError(Exception):
    """Something the caller can understand and mend. The command line prints it on one line and exits with `exit_code`."""

    exit_code = 1
    shared = False
    """Whether every process of a run raises it, so that one of them telling it is enough."""


class UsageError(OpenAFMError):
    """The call itself is wrong: an option, a name or a value that does not exist."""

    exit_code = 2
    shared = True
