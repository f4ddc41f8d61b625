"""Hashes of passwords by scrypt."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import threading

from openafm.annotation.errors import AnnotationError

MIN_LENGTH, MAX_LENGTH = 10, 1024
COST = 1 << 14  # with p = 5: one of the settings that OWASP recommends
_BLOCK, _PARALLEL = 8, 5
_one_at_a_time = threading.Lock()
"""A hash takes 16 MB and a core; many sign-ins at once would take all of both."""


def check_password(password: str) -> None:
    """Check the length of a new password.

    Raises:
        AnnotationError: it is too short or too long.
    """
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        raise AnnotationError(f"the password has {len(password)} characters; use {MIN_LENGTH} to {MAX_LENGTH:,}")


def hash_password(password: str) -> str:
    """Return the hash of a password, with its salt and cost."""
    salt = secrets.token_bytes(16)
    return f"{COST}${_text(salt)}${_text(_digest(password, salt, COST))}"


def is_password(password: str, hashed: str) -> bool:
    """Return True if the password has this hash. An empty hash matches none, after the same time."""
    cost, salt, digest = (hashed or f"{COST}${_text(bytes(16))}$").split("$")
    found = _digest(password, base64.b64decode(salt), int(cost))
    return hmac.compare_digest(found, base64.b64decode(digest)) and bool(hashed)


def _digest(password: str, salt: bytes, cost: int) -> bytes:
    with _one_at_a_time:
        return hashlib.scrypt(password.encode("utf-8", "replace"), salt=salt, n=cost, r=_BLOCK, p=_PARALLEL, dklen=32)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
