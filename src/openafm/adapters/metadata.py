"""What `metadata.json` of an adapter's folder holds, under the names of Apple's toolkit where it has one."""

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
    """A folder that is not a readable adapter, or an adapter that cannot be written."""


class AdapterVersionError(AdapterError):
    """The adapter was written for another version of the format."""


class AdapterNameError(UsageError):
    """A name that no adapter can have."""


def check_name(name: str) -> str:
    """The name itself.

    Raises:
        AdapterNameError: it has other characters than letters, digits and underscores, or more than 64 of them.
    """
    if not re.fullmatch(_NAME, name):
        raise AdapterNameError(f"'{name}' is no name for an adapter; use up to 64 letters (a to z), digits and underscores")
    return name


def adapter_identifier(name: str, base_signature: str) -> str:
    """What tells an adapter's versions for several bases apart: fmadapter-NAME-(first 7 digits of the signature).

    Raises:
        AdapterNameError: `name` is none.
    """
    return f"fmadapter-{check_name(name)}-{base_signature[:7]}"


@dataclass(frozen=True, kw_only=True)
class AdapterMetadata(Config):
    """An adapter is bound to the signature of the very bundle that it was trained on.

    `creatorDefined` is the author's own; `draftSignature` is that of the bundle in `draft/`, empty where there is none.
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
            f"baseModelSignature must be the 40 hex digits that sign a bundle, got '{signature}'",
        )
        self.require(
            re.fullmatch(f"fmadapter-{_NAME}-{signature[:7]}", self.adapterIdentifier) is not None,
            f"adapterIdentifier must be fmadapter-NAME-{signature[:7]}, got '{self.adapterIdentifier}'",
        )
        self.require(
            self.draftSignature == "" or re.fullmatch(_SIGNATURE, self.draftSignature) is not None,
            f"draftSignature must be the 40 hex digits that sign a bundle, got '{self.draftSignature}'",
        )
        self.require(
            0 < self.speculativeDecodingDraftTokenCount <= 64,
            f"speculativeDecodingDraftTokenCount must be 1 to 64, got {self.speculativeDecodingDraftTokenCount}",
        )
        self.require(self.config.rank == self.loraRank, "loraRank is impossible")

    @property
    def name(self) -> str:
        return self.adapterIdentifier.split("-")[1]

    @property
    def config(self) -> LoRAConfig:
        """What to install on the base before the weights are loaded."""
        return LoRAConfig(rank=self.loraRank, alpha=self.loraAlpha, targets=self.loraTargets, precision=self.precision)


def read_metadata(values: Mapping[str, Any]) -> AdapterMetadata:
    """The metadata of any version that this openafm reads, from what its file holds.

    Raises:
        AdapterVersionError: it belongs to another version.
        AdapterError: it is not that of an adapter of this project.
        ConfigError: a key is missing, unknown or has an impossible value.
    """
    if values.get("format") != FORMAT:
        raise AdapterError(f'this is not the metadata of an openafm adapter (no "format": "{FORMAT}")')
    match values.get("version"):
        case 1:
            return from_dict(_Version1, dict(values)).upgraded()
        case 2:
            return from_dict(AdapterMetadata, dict(values))
    raise AdapterVersionError(
        f"this is an adapter of format version {values.get('version')}, this openafm reads versions 1 and {FORMAT_VERSION}; "
        "install the matching version or train the adapter again"
    )


@dataclass(frozen=True, kw_only=True)
class _Version1(Config):
    """Recovery adapters of the first release; their names were free."""

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
