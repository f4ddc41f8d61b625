"""What a server offers: adapters for bases, their files with sizes and digests, all of it signed.

On the wire: {"manifest": "<JSON text>", "key": "<public key>", "signature": "<of the text's UTF-8 bytes>"}.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from fnmatch import fnmatch

from openafm.adapters.delivery.errors import AdapterManifestError, BadSignatureError
from openafm.adapters.delivery.keys import check_signature, public_key, sign
from openafm.adapters.metadata import AdapterNameError, adapter_identifier, check_name
from openafm.adapters.package import DRAFT_FILES, METADATA, WEIGHTS, HalfDraftError
from openafm.core.config import Config, ConfigError, from_dict, to_dict

FORMAT, FORMAT_VERSION = "openafm.adapters", 1
MAX_MANIFEST_BYTES = 4 << 20
_FILE = r"(draft/(recovery\.fmadapter/)?)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"


@dataclass(frozen=True, kw_only=True)
class OfferedFile(Config):
    """A file of an adapter's folder, at a path within it that cannot lead out of it."""

    path: str
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        self.require(
            re.fullmatch(_FILE, self.path) is not None, f"'{self.path}' is no path of a file in an adapter's folder"
        )
        self.require(self.bytes >= 0, f"'{self.path}' has {self.bytes} bytes")
        self.require(re.fullmatch("[0-9a-f]{64}", self.sha256) is not None, f"'{self.path}' has no SHA-256 in hex")


@dataclass(frozen=True, kw_only=True)
class OfferedAdapter(Config):
    """An adapter for one base."""

    name: str
    baseModelSignature: str
    files: tuple[OfferedFile, ...]

    def __post_init__(self) -> None:
        check_name(self.name)
        paths = [file.path for file in self.files]
        self.require(len(set(paths)) == len(paths), "a file is listed twice")
        self.require(METADATA in paths and WEIGHTS in paths, f"{METADATA} or {WEIGHTS} is not listed")
        self.require(
            re.fullmatch("[0-9a-f]{40}", self.baseModelSignature) is not None,
            f"'{self.baseModelSignature}' is no signature of a base",
        )
        draft = [path.removeprefix("draft/") for path in paths if path.startswith("draft/")]
        for pattern in DRAFT_FILES if draft else ():
            if not any(fnmatch(path, pattern) for path in draft):
                raise HalfDraftError(f"the manifest lists half a draft model for {self.identifier}: no {pattern}")

    @property
    def identifier(self) -> str:
        return adapter_identifier(self.name, self.baseModelSignature)

    @property
    def num_bytes(self) -> int:
        """Of all its files."""
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, kw_only=True)
class AdapterManifest(Config):
    """`published` is the time of signing, in seconds since 1970: a client refuses to go back."""

    format: str = FORMAT
    version: int = FORMAT_VERSION
    published: int
    adapters: tuple[OfferedAdapter, ...]

    def __post_init__(self) -> None:
        self.require(
            (self.format, self.version) == (FORMAT, FORMAT_VERSION),
            f"is {self.format} version {self.version}, this openafm reads {FORMAT} version {FORMAT_VERSION}",
        )
        identifiers = [adapter.identifier for adapter in self.adapters]
        self.require(
            len(set(identifiers)) == len(identifiers), f"an adapter is there twice: {', '.join(sorted(identifiers))}"
        )


@dataclass(frozen=True, kw_only=True)
class OpenedManifest:
    """A manifest and the public key that it was checked with."""

    manifest: AdapterManifest
    key: str


def sign_manifest(manifest: AdapterManifest, private_key: str) -> bytes:
    """The manifest as it goes over the wire."""
    text = json.dumps(to_dict(manifest), ensure_ascii=False, separators=(",", ":"))
    signed = {"manifest": text, "key": public_key(private_key), "signature": sign(text.encode(), private_key)}
    return json.dumps(signed, ensure_ascii=False).encode()


def open_manifest(data: bytes, trusted_key: str | None) -> OpenedManifest:
    """Check the signature, then read. Without a trusted key the manifest's own is taken: the caller must remember it.

    Raises:
        BadSignatureError: it is not signed, or not with the trusted key.
        AdapterManifestError: it lists what no adapter consists of.
        HalfDraftError: it lists part of a draft model.
    """
    try:
        signed = json.loads(data)
        text, key, signature = (signed[part] for part in ("manifest", "key", "signature"))
        if not all(isinstance(part, str) for part in (text, key, signature)):
            raise TypeError("its parts must be texts")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadSignatureError(
            f"this is not a signed manifest ({error}); does the address belong to such a server?"
        ) from error
    check_signature(text.encode("utf-8", "surrogatepass"), signature, trusted_key or key)
    try:
        return OpenedManifest(manifest=from_dict(AdapterManifest, json.loads(text)), key=trusted_key or key)
    except HalfDraftError:
        raise
    except (ValueError, ConfigError, AdapterNameError, RecursionError) as error:
        raise AdapterManifestError(f"the manifest is signed, but not one that can be followed: {error}") from error
