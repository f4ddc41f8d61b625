"""The root of every error that openafm raises on purpose.

A room defines its errors beside the code that raises them, below `OpenAFMError`. A message states what was given, what is
expected and what to do, in one or two sentences; the command line prints it unchanged.
"""

from __future__ import annotations


class OpenAFMError(Exception):
    """An error that the caller can understand and fix. The command line prints it on one line and returns `exit_code`."""

    exit_code = 1
    shared = False
    """True if every process of a run raises the error; then only rank 0 prints it."""


class UsageError(OpenAFMError):
    """The call is wrong: an option, a name or a value that does not exist."""

    exit_code = 2
    shared = True
