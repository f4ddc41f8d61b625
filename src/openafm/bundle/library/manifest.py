"""The signed manifest of a server of bundles: names, signatures, files, sizes and digests."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from openafm.adapters.delivery.errors import UntrustedDeliveryError
from openafm.adapters.delivery.signed_text import FILE_NAME, OfferedFile, open_text, sign_text
from openafm.bundle.signature import SIGNATURE_LENGTH
from openafm.bundle.store import FILE_PATTERNS
from openafm.core.config import Config, ConfigError, from_dict, to_dict

FORMAT, FORMAT_VERSION = "openafm.bundles", 1
REQUIRED = ("config.json", "tokenizer.json", "chat_template.json", "signature.json")


@dataclass(frozen=True, kw_only=True)
class OfferedBundleFile(OfferedFile):
    """A file of a bundle."""

    OWNER = "a bundle"
    PATH = r"(recovery\.fmadapter/|ranker/|spans/|reader/(pages\.fmadapter/)?)?" + FILE_NAME
    PATTERNS = FILE_PATTERNS


@dataclass(frozen=True, kw_only=True)
class OfferedBundle(Config):
    """A bundle, as a server offers it."""

    name: str
    signature: str
    files: tuple[OfferedBundleFile, ...]

    def __post_init__(self) -> None:
        self.require(
            re.fullmatch(r"[\w+-][\w.+-]{0,99}", self.name, re.ASCII) is not None, f"{self.name!r:.80} cannot name a bundle"
        )
        self.require(
            re.fullmatch(rf"[0-9a-f]{{{SIGNATURE_LENGTH}}}", self.signature) is not None,
            f"{self.signature!r:.80} is not the signature of a bundle",
        )
        paths = [file.path for file in self.files]
        self.require(len(set(paths)) == len(paths), "a file is listed twice")
        missing = [name for name in REQUIRED if name not in paths]
        self.require(not missing, f"{', '.join(missing)} is not listed")

    @property
    def identifier(self) -> str:
        return f"{self.name}-{self.signature}"

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, kw_only=True)
class BundleManifest(Config):
    """The bundles of a server. `published` is the time of signing in seconds since 1970; clients refuse older manifests."""

    format: str = FORMAT
    version: int = FORMAT_VERSION
    published: int
    bundles: tuple[OfferedBundle, ...]

    def __post_init__(self) -> None:
        self.require(
            (self.format, self.version) == (FORMAT, FORMAT_VERSION),
            f"the format is {self.format!r:.40} {self.version}, this openafm reads {FORMAT} {FORMAT_VERSION}",
        )
        names = [bundle.name for bundle in self.bundles]
        self.require(len(set(names)) == len(names), "a bundle is listed twice")


def sign_bundles(manifest: BundleManifest, private_key: str) -> bytes:
    """Return the signed manifest as JSON."""
    return sign_text(json.dumps(to_dict(manifest), ensure_ascii=False, separators=(",", ":")), private_key)


def open_bundles(data: bytes, trusted_key: str | None) -> tuple[BundleManifest, str]:
    """Return a verified manifest, and the key that verified it.

    Raises:
        UntrustedDeliveryError: the manifest is not signed with the trusted key, or its content is invalid.
    """
    text, key = open_text(data, trusted_key)
    try:
        return from_dict(BundleManifest, json.loads(text)), key
    except (ValueError, ConfigError, RecursionError) as error:
        raise UntrustedDeliveryError(f"the signed manifest is invalid: {error}") from error
