"""Limits of the caches of an engine, from environment variables."""

from __future__ import annotations

import os

from openafm.core.errors import UsageError


class CacheLimitError(UsageError):
    """An environment variable is not a number of megabytes."""


def cache_limit(variable: str, default_mb: int) -> int:
    """Return the limit in bytes that an environment variable states in megabytes, or the default.

    Raises:
        CacheLimitError: the variable is not a number of megabytes.
    """
    chosen = os.environ.get(variable, "")
    if chosen and not (chosen.isdecimal() and chosen.isascii()):
        raise CacheLimitError(
            f"{variable} is '{chosen}'; set it to a number of megabytes, 0 to disable the cache, or unset it"
        )
    return int(chosen or default_mb) * 2**20
