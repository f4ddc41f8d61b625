"""Ed25519 keys (RFC 8032) as text: `private:` or `public:` and 64 hex digits; the public key is in NAME.pub.

`cryptography` is imported on first use.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import ModuleType
from typing import Literal

from openafm.adapters.delivery.errors import DeliverySetupError, UntrustedDeliveryError

_PRIME = 2**255 - 19
# y coordinates of the points of order 1, 2, 4 and 8. Anyone can sign any message for such a key.
_ORDER_EIGHT = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER = {0, 1, _PRIME - 1, _ORDER_EIGHT, _PRIME - _ORDER_EIGHT}


def write_key_pair(file: Path) -> str:
    """Create a private key at `file`, readable by its owner only, and the public key beside it, which is returned.

    Raises:
        DeliverySetupError: one of the two files exists, or `cryptography` is not installed.
    """
    key = _library().Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw().hex()
    file.parent.mkdir(parents=True, exist_ok=True)
    for place in (file, public_file(file)):
        if place.exists():
            raise DeliverySetupError(f"{place} exists, and a lost key cannot be recovered; choose another path")
    _write_new(file, f"private:{key.private_bytes_raw().hex()}", 0o600)
    _write_new(public_file(file), f"public:{public}", 0o644)
    return public


def public_file(file: Path) -> Path:
    """Return the path of the public key of the private key at `file`."""
    return file.with_name(file.name + ".pub")


def read_public_key(key_or_file: str | Path) -> str:
    """Return a public key, given as 64 hex digits or as its file.

    Raises:
        DeliverySetupError: it is not a public key, or a key that anyone can sign for.
    """
    text = str(key_or_file)
    key = text if re.fullmatch("[0-9a-f]{64}", text) else _read(Path(key_or_file), "public")
    if is_weak(key):
        raise DeliverySetupError(f"'{key}' is not a safe public key: its point has a small order; ask for another key")
    return key


def read_private_key(file: Path) -> str:
    """Return the private key in a file.

    Raises:
        DeliverySetupError: the file has no private key.
    """
    return _read(file, "private")


def is_weak(key: str) -> bool:
    """Return True if a public key is a point of small order, or not in canonical form."""
    y = int.from_bytes(bytes.fromhex(key), "little") & ((1 << 255) - 1)
    return y >= _PRIME or y in _SMALL_ORDER


def sign(data: bytes, private_key: str) -> str:
    """Return the signature of `data`, 128 hex digits."""
    return _library().Ed25519PrivateKey.from_private_bytes(bytes.fromhex(private_key)).sign(data).hex()


def public_key(private_key: str) -> str:
    """Return the public key of a private key."""
    private = _library().Ed25519PrivateKey.from_private_bytes(bytes.fromhex(private_key))
    return private.public_key().public_bytes_raw().hex()


def check_signature(data: bytes, signature: str, key: str) -> None:
    """Check that `data` was signed with the private key of `key`.

    Raises:
        UntrustedDeliveryError: it was not, or the key is weak.
        DeliverySetupError: `cryptography` is not installed.
    """
    library = _library()
    from cryptography.exceptions import InvalidSignature

    try:
        if is_weak(key):
            raise InvalidSignature("the key has a small order")
        library.Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), data)
    except (InvalidSignature, ValueError) as error:
        raise UntrustedDeliveryError(
            f"the manifest is not signed with the key {key:.64}; do not trust it unless its author sends you another key"
        ) from error


def _read(file: Path, kind: Literal["private", "public"]) -> str:
    try:
        with file.open(encoding="ascii") as stream:
            text = stream.read(1024).strip()
    except (OSError, ValueError):
        text = ""
    found = re.fullmatch("(private|public):([0-9a-f]{64})", text)
    if found is None:
        raise DeliverySetupError(
            f"'{file}' is not a key; expected a file of `openafm adapter keygen`, or 64 hex digits of a public key"
        )
    if found[1] != kind:
        raise DeliverySetupError(f"'{file}' is the {found[1]} key of its pair; use the {kind} key")
    return found[2]


def _write_new(file: Path, text: str, mode: int) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="ascii") as stream:
        stream.write(text + "\n")


def _library() -> ModuleType:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise DeliverySetupError(
            "signatures need the package 'cryptography'; install openafm with the extra, openafm[delivery]"
        ) from error
    return ed25519
