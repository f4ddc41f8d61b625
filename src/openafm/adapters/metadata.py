"""The contents of an adapter's `metadata.json`, with the key names of Apple's toolkit where it has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from openafm.adapters.config import LoRAConfig
from openafm.core.config import Config, from_dict
from openafm.core.errors import OpenAFMError, UsageError

FORMAT = "openafm.adapter"
FORMAT_VERSION = 2
DRAFT_TOKEN_COUNT = 5
_NAME = r"[A-Za-z0-9_]{1,64}"
_SIGNATURE = r"[0-9a-f]{40}"


class AdapterError(OpenAFMError):
    """The folder is not a readable adapter, or the adapter cannot be written."""


class AdapterVersionError(AdapterError):
    """The adapter has another version of the format."""


class AdapterNameError(UsageError):
    """The adapter name is invalid."""


def check_name(name: str) -> str:
    """Return a valid adapter name.

    Raises:
        AdapterNameError: the name has other characters than letters, digits and underscores, or more than 64.
    """
    if not re.fullmatch(_NAME, name):
        raise AdapterNameError(f"'{name}' is not a valid adapter name; use 1 to 64 letters (a to z), digits and underscores")
    return name


def adapter_identifier(name: str, base_signature: str) -> str:
    """Return the identifier of an adapter for one base: fmadapter-NAME-(first 7 digits of the base's signature).

    Raises:
        AdapterNameError: the name is invalid.
    """
    return f"fmadapter-{check_name(name)}-{base_signature[:7]}"


@dataclass(frozen=True, kw_only=True)
class AdapterMetadata(Config):
    """Metadata of an adapter, which belongs to the bundle with the signature `baseModelSignature`.

    `creatorDefined` is free for the author. `draftSignature` is the signature of the bundle in `draft/`, empty without one.
    """

    format: str = FORMAT
    version: int = FORMAT_VERSION
    adapterIdentifier: str
    baseModelSignature: str
    loraRank: int
    loraAlpha: float
    loraTargets: tuple[str, ...] = ()
    precision: Literal["float16", "float32"] = "float16"
    author: str = ""
    description: str = ""
    license: str = ""
    speculativeDecodingDraftTokenCount: int = DRAFT_TOKEN_COUNT
    draftSignature: str = ""
    creatorDefined: dict[str, Any] = field(default_factory=dict)
    createdBy: str = ""
    digest: str = ""

    def __post_init__(self) -> None:
        signature = self.baseModelSignature
        self.require(
            re.fullmatch(_SIGNATURE, signature) is not None,
            f"baseModelSignature must be a bundle's signature of 40 hex digits, got '{signature}'",
        )
        self.require(
            re.fullmatch(f"fmadapter-{_NAME}-{signature[:7]}", self.adapterIdentifier) is not None,
            f"adapterIdentifier must be fmadapter-NAME-{signature[:7]}, got '{self.adapterIdentifier}'",
        )
        self.require(
            self.draftSignature == "" or re.fullmatch(_SIGNATURE, self.draftSignature) is not None,
            f"draftSignature must be a bundle's signature of 40 hex digits, got '{self.draftSignature}'",
        )
        self.require(
            0 < self.speculativeDecodingDraftTokenCount <= 64,
            f"speculativeDecodingDraftTokenCount must be 1 to 64, got {self.speculativeDecodingDraftTokenCount}",
        )
        _ = self.config  # LoRAConfig checks rank, alpha and targets

    @property
    def name(self) -> str:
        return self.adapterIdentifier.split("-")[1]

    @property
    def config(self) -> LoRAConfig:
        """The config to install on the base before loading the weights."""
        return LoRAConfig(rank=self.loraRank, alpha=self.loraAlpha, targets=self.loraTargets, precision=self.precision)


def read_metadata(values: Mapping[str, Any]) -> AdapterMetadata:
    """Return the metadata of any supported version from the values of its file.

    Raises:
        AdapterVersionError: the version is not supported.
        AdapterError: the values are not an openafm adapter's.
        ConfigError: a key is missing, unknown or has an impossible value.
    """
    if values.get("format") != FORMAT:
        raise AdapterError(f'not the metadata of an openafm adapter: no "format": "{FORMAT}"')
    match values.get("version"):
        case 1:
            return from_dict(_Version1, dict(values)).upgraded()
        case 2:
            return from_dict(AdapterMetadata, dict(values))
    raise AdapterVersionError(
        f"the adapter has format version {values.get('version')}, this openafm reads versions 1 and {FORMAT_VERSION}; "
        "install a matching openafm or train the adapter again"
    )


@dataclass(frozen=True, kw_only=True)
class _Version1(Config):
    """Metadata of recovery adapters of the first release, whose names had no restrictions."""

    format: str
    version: int
    name: str
    base_signature: str
    config: LoRAConfig
    created_by: str
    digest: str

    def upgraded(self) -> AdapterMetadata:
        name = re.sub("[^A-Za-z0-9_]", "_", self.name)[:64] or "_"
        return AdapterMetadata(
            adapterIdentifier=adapter_identifier(name, self.base_signature),
            baseModelSignature=self.base_signature,
            loraRank=self.config.rank,
            loraAlpha=self.config.alpha,
            loraTargets=self.config.targets,
            precision=self.config.precision,
            createdBy=self.created_by,
            digest=self.digest,
        )
