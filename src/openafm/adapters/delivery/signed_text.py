"""Signed texts and the files that they list, for servers of adapters and of bundles.

On the wire: {"manifest": "<JSON text>", "key": "<public key>", "signature": "<of the text's UTF-8 bytes>"}.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import ClassVar

from openafm.adapters.delivery.errors import UntrustedDeliveryError
from openafm.adapters.delivery.keys import check_signature, public_key, sign
from openafm.core.config import Config
from openafm.core.files import matches

FILE_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"


@dataclass(frozen=True, kw_only=True)
class OfferedFile(Config):
    """A file that a server offers. The path has no `..` and no hidden parts.

    Subclasses name the owner of the files, the form of their paths and the patterns of which one must match.
    """

    OWNER: ClassVar[str]
    PATH: ClassVar[str]
    PATTERNS: ClassVar[tuple[str, ...]]

    path: str
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        self.require(
            re.fullmatch(self.PATH, self.path) is not None and matches(self.path, self.PATTERNS),
            f"{self.path!r:.120} is not the path of a file of {self.OWNER}",
        )
        self.require(self.bytes >= 0, f"'{self.path}' has a size of {self.bytes} bytes")
        self.require(re.fullmatch("[0-9a-f]{64}", self.sha256) is not None, f"'{self.path}' needs a SHA-256 in hex")


def sign_text(text: str, private_key: str) -> bytes:
    """Return JSON with a text, its signature and the public key."""
    signed = {"manifest": text, "key": public_key(private_key), "signature": sign(text.encode(), private_key)}
    return json.dumps(signed, ensure_ascii=False).encode()


def open_text(data: bytes, trusted_key: str | None) -> tuple[str, str]:
    """Return a text signed by `sign_text`, and the key that verified it.

    Raises:
        UntrustedDeliveryError: it is not signed with the trusted key.
    """
    try:
        signed = json.loads(data)
        text, key, signature = (signed[part] for part in ("manifest", "key", "signature"))
        if not all(isinstance(part, str) for part in (text, key, signature)):
            raise TypeError("its parts must be strings")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UntrustedDeliveryError(f"not a signed manifest ({error}); check the URL of the server") from error
    check_signature(text.encode("utf-8", "surrogatepass"), signature, trusted_key or key)
    return text, trusted_key or key
