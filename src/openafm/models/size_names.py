"""Lookup of named sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from openafm.core.config import nearest
from openafm.core.errors import UsageError

Size = TypeVar("Size")


class UnknownSizeError(UsageError):
    """There is no size of this name."""


def find_size(name: str, sizes: Mapping[str, Callable[[], Size]], what: str) -> Size:
    """Return the config of a name in a table of functions that return configs; `what` names their kind.

    Raises:
        UnknownSizeError: the table has no such name; the message gives the nearest one.
    """
    if name not in sizes:
        raise UnknownSizeError(f"unknown {what} '{name}'{nearest(name, list(sizes))}")
    return sizes[name]()
