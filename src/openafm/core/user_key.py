"""The key that authenticates this user's saved keys and values: `session.key` in `OPENAFM_HOME`, mode 0600.

Keys and values are continued from without recomputing them, so forged ones could change answers.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from openafm.core.files import atomic_file, data_home

TAG_BYTES = 32
_KEY_BYTES = 32


def user_key() -> bytes | None:
    """Return the key of this user; create it if there is none.

    A key file that other users can read, or that has the wrong size, is replaced: files saved under it only lose time.
    Returns None if the key cannot be read or created.
    """
    path = data_home() / "session.key"
    with contextlib.suppress(OSError):
        key = _read(path)
        if key is not None:
            return key
        _create(path)
        return _read(path)
    return None


def _create(path: Path) -> None:
    """Store a new key. Of several processes that find none, the key of the first one stays: others may use it already."""
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    with atomic_file(new, permissions=0o600) as file:
        file.write(secrets.token_bytes(_KEY_BYTES))
    try:
        os.link(new, path)
        new.unlink()
    except FileExistsError:
        if _read(path) is None:
            new.replace(path)
        else:
            new.unlink()


def tag(key: bytes, parts: Iterable[bytes | memoryview]) -> bytes:
    """Return the HMAC-SHA256 of the parts, one after the other."""
    code = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        code.update(part)
    return code.digest()


def _read(path: Path) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o077):
            return None
        key = file.read(_KEY_BYTES + 1)
    return key if len(key) == _KEY_BYTES else None
