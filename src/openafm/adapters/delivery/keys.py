"""Ed25519 keys (RFC 8032) as text: `private:` or `public:` and 64 hex digits, the public one in NAME.pub beside the other.

`cryptography` is imported when something is signed or checked, and not before.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import ModuleType
from typing import Literal

from openafm.adapters.delivery.errors import BadSignatureError, DeliveryKeyError, DeliveryLibraryError


def write_key_pair(file: Path) -> str:
    """Make a private key at `file`, for its owner's eyes only, and its public one beside it, which is returned.

    Raises:
        DeliveryKeyError: something is at one of the two places already.
        DeliveryLibraryError: see there.
    """
    key = _library().Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw().hex()
    file.parent.mkdir(parents=True, exist_ok=True)
    for place in (file, public_file(file)):
        if place.exists():
            raise DeliveryKeyError(f"{place} exists, and a lost key cannot be made again; choose another place")
    _write_new(file, f"private:{key.private_bytes_raw().hex()}", 0o600)
    _write_new(public_file(file), f"public:{public}", 0o644)
    return public


def public_file(file: Path) -> Path:
    """Where the public key of the private one at `file` is."""
    return file.with_name(file.name + ".pub")


def read_public_key(key_or_file: str | Path) -> str:
    """A public key, given as 64 hex digits or by its file.

    Raises:
        DeliveryKeyError: it is none, or a private one, which is not shown.
    """
    text = str(key_or_file)
    return text if re.fullmatch("[0-9a-f]{64}", text) else _read(Path(key_or_file), "public")


def read_private_key(file: Path) -> str:
    """The private key in a file.

    Raises:
        DeliveryKeyError: there is none, or a public one, which everybody has and nobody may sign with.
    """
    return _read(file, "private")


def sign(data: bytes, private_key: str) -> str:
    """The signature of `data`, 128 hex digits."""
    return _library().Ed25519PrivateKey.from_private_bytes(bytes.fromhex(private_key)).sign(data).hex()


def public_key(private_key: str) -> str:
    """The public key of a private one."""
    private = _library().Ed25519PrivateKey.from_private_bytes(bytes.fromhex(private_key))
    return private.public_key().public_bytes_raw().hex()


def check_signature(data: bytes, signature: str, key: str) -> None:
    """Refuse what was not signed with the private key of `key`.

    Raises:
        BadSignatureError: see there.
        DeliveryLibraryError: see there.
    """
    library = _library()
    from cryptography.exceptions import InvalidSignature

    try:
        library.Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), data)
    except (InvalidSignature, ValueError) as error:
        raise BadSignatureError(
            f"the manifest is not signed with the key {key}; do not trust it, unless its author gives you another key"
        ) from error


def _read(file: Path, kind: Literal["private", "public"]) -> str:
    try:
        text = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        text = ""
    found = re.fullmatch("(private|public):([0-9a-f]{64})", text)
    if found is None:
        raise DeliveryKeyError(
            f"'{file}' is no key; expected a file of `openafm adapter keygen`, or a public key's 64 hex digits"
        )
    if found[1] != kind:
        raise DeliveryKeyError(f"'{file}' is the {found[1]} key of its pair; the {kind} one is needed here")
    return found[2]


def _write_new(file: Path, text: str, mode: int) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="ascii") as stream:
        stream.write(text + "\n")


def _library() -> ModuleType:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise DeliveryLibraryError(
            "signatures need the package 'cryptography': install openafm with the extra, openafm[delivery]"
        ) from error
    return ed25519
