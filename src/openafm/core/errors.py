"""The root of every error that openafm raises on purpose.

A room defines its errors beside the code that raises them, below `OpenAFMError`. A message states what was given, what is
expected and what to do, in one or two sentences; the command line prints it unchanged.
"""

from __future__ import annotations

import pickle


class OpenAFMError(Exception):
    """An error that the caller can understand and fix. The command line prints it on one line and returns `exit_code`."""

    exit_code = 1
    shared = False
    """True if every process of a run raises the error; then only rank 0 prints it."""


class UsageError(OpenAFMError):
    """The call is wrong: an option, a name or a value that does not exist."""

    exit_code = 2
    shared = True


def portable_error(error: Exception) -> Exception:
    """Return a copy of an error as another process reads it.

    An error that pickle does not restore with its type and text, because its class has a constructor of its own, becomes an
    `OpenAFMError` with its text and exit code, or a `RuntimeError` with its type and text.
    """
    copy: object
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:  # any error of the class's own __init__ or __reduce__
        copy = None
    if isinstance(copy, Exception) and type(copy) is type(error) and str(copy) == str(error):
        return copy
    if isinstance(error, OpenAFMError):
        portable = OpenAFMError(str(error))
        portable.exit_code = error.exit_code
        return portable
    return RuntimeError(f"{type(error).__name__}: {error}")
