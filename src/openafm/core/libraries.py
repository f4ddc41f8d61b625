"""Libraries of optional extras: imported where they are used, and named in one way where they are missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from openafm.core.errors import OpenAFMError


class MissingLibraryError(OpenAFMError):
    """A library of an extra is not installed."""


@contextlib.contextmanager
def needed(purpose: str, libraries: str, extra: str) -> Iterator[None]:
    """Report a failed import in the block as `MissingLibraryError`: what needs which libraries of which extra."""
    try:
        yield
    except ImportError as error:
        raise MissingLibraryError(f"{purpose} needs {libraries}; install it with: pip install 'openafm[{extra}]'") from error


def pyarrow() -> Any:
    """Return the library that reads and writes Parquet.

    Raises:
        MissingLibraryError: it is not installed.
    """
    with needed("Parquet", "pyarrow", "data"):
        import pyarrow as library
    return library
