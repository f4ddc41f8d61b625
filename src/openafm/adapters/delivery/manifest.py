"""The signed manifest of a server: adapters with their bases, files, sizes and digests."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from fnmatch import fnmatch

from openafm.adapters.delivery.errors import UntrustedDeliveryError
from openafm.adapters.delivery.signed_text import FILE_NAME, OfferedFile, open_text, sign_text
from openafm.adapters.metadata import AdapterNameError, adapter_identifier, check_name
from openafm.adapters.package import DRAFT_FILES, FILE_PATTERNS, METADATA, WEIGHTS, IncompleteDraftError
from openafm.core.config import Config, ConfigError, from_dict, to_dict

FORMAT, FORMAT_VERSION = "openafm.adapters", 1


@dataclass(frozen=True, kw_only=True)
class OfferedAdapterFile(OfferedFile):
    """A file of an adapter's folder."""

    OWNER = "an adapter"
    PATH = r"(draft/(recovery\.fmadapter/)?)?" + FILE_NAME
    PATTERNS = FILE_PATTERNS


@dataclass(frozen=True, kw_only=True)
class OfferedAdapter(Config):
    """An adapter for one base, as a server offers it."""

    name: str
    baseModelSignature: str
    files: tuple[OfferedAdapterFile, ...]

    def __post_init__(self) -> None:
        check_name(self.name)
        paths = [file.path for file in self.files]
        self.require(len(set(paths)) == len(paths), "a file is listed twice")
        self.require(METADATA in paths and WEIGHTS in paths, f"{METADATA} or {WEIGHTS} is not listed")
        self.require(
            re.fullmatch("[0-9a-f]{40}", self.baseModelSignature) is not None,
            f"{self.baseModelSignature!r:.80} is not the signature of a base",
        )
        draft = [path.removeprefix("draft/") for path in paths if path.startswith("draft/")]
        for pattern in DRAFT_FILES if draft else ():
            if not any(fnmatch(path, pattern) for path in draft):
                raise IncompleteDraftError(f"{self.identifier} lists an incomplete draft model: no {pattern}")

    @property
    def identifier(self) -> str:
        return adapter_identifier(self.name, self.baseModelSignature)

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, kw_only=True)
class AdapterManifest(Config):
    """The adapters of a server. `published` is the time of signing in seconds since 1970; clients refuse older manifests."""

    format: str = FORMAT
    version: int = FORMAT_VERSION
    published: int
    adapters: tuple[OfferedAdapter, ...]

    def __post_init__(self) -> None:
        self.require(
            (self.format, self.version) == (FORMAT, FORMAT_VERSION),
            f"the format is {self.format!r:.40} {self.version}, this openafm reads {FORMAT} {FORMAT_VERSION}",
        )
        identifiers = [adapter.identifier for adapter in self.adapters]
        self.require(
            len(set(identifiers)) == len(identifiers), f"an adapter is listed twice: {', '.join(sorted(identifiers))}"
        )


@dataclass(frozen=True, kw_only=True)
class OpenedManifest:
    """A manifest and the public key that verified it."""

    manifest: AdapterManifest
    key: str


def sign_manifest(manifest: AdapterManifest, private_key: str) -> bytes:
    """Return the signed manifest as JSON."""
    return sign_text(json.dumps(to_dict(manifest), ensure_ascii=False, separators=(",", ":")), private_key)


def open_manifest(data: bytes, trusted_key: str | None) -> OpenedManifest:
    """Return a verified manifest. Without a trusted key the manifest's own key is used, which the caller must remember.

    Raises:
        UntrustedDeliveryError: the manifest is not signed with the trusted key, or its content is invalid.
        IncompleteDraftError: it lists an incomplete draft model.
    """
    text, key = open_text(data, trusted_key)
    try:
        return OpenedManifest(manifest=from_dict(AdapterManifest, json.loads(text)), key=key)
    except IncompleteDraftError:
        raise
    except (ValueError, ConfigError, AdapterNameError, RecursionError) as error:
        raise UntrustedDeliveryError(f"the signed manifest is invalid: {error}") from error
