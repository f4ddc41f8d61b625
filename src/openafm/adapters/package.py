"""An adapter's folder: its weights, what they were trained for, and a digest. Never pickle, no tensor library.

NAME.fmadapter/  metadata.json  adapter_weights.safetensors  [draft/ (the bundle of a draft model)]

The extension is that of Apple's toolkit, and so are the names in the metadata; the weights are not compatible with it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.adapters.config import LoRAConfig
from openafm.adapters.metadata import (
    DRAFT_TOKEN_COUNT,
    AdapterError,
    AdapterMetadata,
    AdapterNameError,
    AdapterVersionError,
    adapter_identifier,
    read_metadata,
)
from openafm.core.config import ConfigError, UnknownKindError, to_dict
from openafm.core.errors import UsageError
from openafm.core.files import atomic_folder, write_json

METADATA, WEIGHTS, DRAFT = "metadata.json", "adapter_weights.safetensors", "draft"
DRAFT_FILES = ("config.json", "tokenizer.json", "chat_template.json", "signature.json", "*.safetensors")  # as patterns
_DTYPES = {"F16", "F32"}

__all__ = [
    "DRAFT",
    "DRAFT_FILES",
    "METADATA",
    "WEIGHTS",
    "AdapterAbout",
    "AdapterError",
    "AdapterMetadata",
    "AdapterMismatchError",
    "AdapterNameError",
    "AdapterNotFoundError",
    "AdapterPackage",
    "AdapterTamperedError",
    "AdapterVersionError",
    "HalfDraftError",
    "open_adapter",
    "write_adapter",
]


class HalfDraftError(AdapterError):
    """An adapter with one half of a draft model: its signature without its bundle, or part of the bundle."""


class AdapterNotFoundError(UsageError):
    """There is no adapter at this path."""


class AdapterTamperedError(AdapterError):
    """The adapter is not the one that was written."""


class AdapterMismatchError(UsageError):
    """The adapter was made for another base."""


@dataclass(frozen=True, kw_only=True)
class AdapterAbout:
    """What an author tells about an adapter; `creator_defined` is free, as long as it is JSON."""

    author: str = ""
    description: str = ""
    license: str = ""
    draft_token_count: int = DRAFT_TOKEN_COUNT
    creator_defined: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AdapterPackage:
    """An opened adapter. Weights are read when asked for; `verify` compares every byte with the digest."""

    path: Path
    metadata: AdapterMetadata

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def identifier(self) -> str:
        """fmadapter-NAME-(first 7 digits of the base's signature)."""
        return self.metadata.adapterIdentifier

    @property
    def config(self) -> LoRAConfig:
        """What to install on the base before the weights are loaded."""
        return self.metadata.config

    @property
    def base_signature(self) -> str:
        """The signature of the bundle that the adapter belongs to, 40 hex digits."""
        return self.metadata.baseModelSignature

    @property
    def digest(self) -> str:
        """SHA-256, in hex, over the metadata and every weight's name, dtype, shape and bytes, as written."""
        return self.metadata.digest

    @property
    def draft(self) -> Path | None:
        """The folder of the bundle that drafts for this adapter, if it has one."""
        return self.path / DRAFT if self.metadata.draftSignature else None

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The weights by their names in the decoder, `layers.0.attention.query.lora.a` [rank, in] and `.b` [out, rank].

        They are those of this very digest, whatever has come to lie in the folder since it was opened.

        Raises:
            AdapterTamperedError: the folder holds something else than was written, or another adapter by now.
            AdapterError: the file is missing, damaged or another adapter's.
        """
        return {name: array.astype(np.float32) for name, array in self._verified().items()}

    def verify(self) -> None:
        """Compute the digest again from every byte of metadata and weights; a draft is a bundle, which has its own.

        Raises:
            AdapterTamperedError: it is not the recorded one.
            AdapterError: the weights are missing, damaged or another adapter's.
        """
        self._verified()

    def check_base(self, signature: str) -> None:
        """Refuse a base that the adapter was not made for.

        Raises:
            AdapterMismatchError: the message shows both signatures.
        """
        if signature != self.base_signature:
            raise AdapterMismatchError(
                f"adapter '{self.name}' belongs to the base {self.base_signature}, this base is {signature}; "
                "open it with its own base or train an adapter for this one"
            )

    def _verified(self) -> dict[str, NDArray[Any]]:
        file = self.path / WEIGHTS
        weights = _read_weights(file)
        _check_weights(weights, self.config, f"{file} is damaged or another adapter's")
        if _digest(_read_json(self.path / METADATA), weights) != self.digest:
            raise AdapterTamperedError(
                f"{self.path}: {METADATA} and {WEIGHTS} are not what was written; restore the adapter or train it again"
            )
        return weights


def open_adapter(path: Path) -> AdapterPackage:
    """Open an adapter's folder.

    Raises:
        AdapterNotFoundError: nothing is there.
        AdapterVersionError: it belongs to another version of the format.
        AdapterError: it cannot be read; the message names the file.
    """
    if not path.exists():
        raise AdapterNotFoundError(f"no adapter at {path}")
    file = path / METADATA
    values = _read_json(file)
    try:
        metadata = read_metadata(values)
    except AdapterVersionError as error:
        raise AdapterVersionError(f"{file}: {error}") from error
    except UnknownKindError:
        raise
    except (AdapterError, ConfigError) as error:
        raise AdapterError(f"{file} does not describe an adapter that this version knows: {error}") from error
    if not (path / WEIGHTS).is_file():
        raise AdapterError(f"{path / WEIGHTS} is missing; restore it")
    _check_draft(path, metadata)
    return AdapterPackage(path=path, metadata=metadata)


def write_adapter(
    path: Path,
    *,
    weights: Mapping[str, NDArray[Any]],
    config: LoRAConfig,
    base_signature: str,
    name: str,
    about: AdapterAbout | None = None,
    draft: Path | None = None,
) -> AdapterPackage:
    """Write an adapter at `path`, whole or not at all; an adapter that stands there is replaced, nothing else is.

    `draft` is the folder of a bundle, which is copied.

    Raises:
        AdapterNameError: `name` is none.
        ConfigError: `base_signature` is none, or a value of `about` is impossible.
        HalfDraftError: `draft` is not a whole bundle.
        AdapterError: the weights are not those of one adapter, not finite in `config.precision`, or `path` holds
            something else.
        OutOfSpaceError: the disk is full; what stood at `path` is untouched.
    """
    from safetensors.numpy import save_file

    about = about or AdapterAbout()
    metadata = AdapterMetadata(
        adapterIdentifier=adapter_identifier(name, base_signature),
        baseModelSignature=base_signature,
        loraRank=config.rank,
        loraAlpha=config.alpha,
        loraTargets=config.targets,
        precision=config.precision,
        author=about.author,
        description=about.description,
        license=about.license,
        speculativeDecodingDraftTokenCount=about.draft_token_count,
        draftSignature="" if draft is None else _draft_signature(draft),
        creatorDefined=dict(about.creator_defined),
        createdBy=f"openafm {version('openafm')}",
    )
    _check_place(path)
    _check_weights(weights, config, "these weights cannot be written")
    stored = {key: _rounded(key, array, config) for key, array in weights.items()}
    metadata = replace(metadata, digest=_digest(to_dict(metadata), stored))
    with atomic_folder(path) as folder:
        write_json(folder / METADATA, to_dict(metadata))
        save_file(stored, folder / WEIGHTS, {"format": "pt"})
        if draft is not None:
            shutil.copytree(draft, folder / DRAFT)
    return AdapterPackage(path=path, metadata=metadata)


def _check_draft(path: Path, metadata: AdapterMetadata) -> None:
    """Both halves of a draft, the signature in the metadata and the bundle that it signs, or neither."""
    folder = path / DRAFT
    if not metadata.draftSignature:
        if folder.exists():
            raise HalfDraftError(f"{folder} is there, but {METADATA} knows of no draft; remove it or restore the adapter")
    elif (found := _draft_signature(folder)) != metadata.draftSignature:
        raise HalfDraftError(f"{folder} is the draft {found}, {METADATA} names {metadata.draftSignature}; restore it")


def _draft_signature(folder: Path) -> str:
    """The signature of the bundle in `folder`, of which every kind of file must be there."""
    for pattern in DRAFT_FILES:
        if not any(folder.glob(pattern)):
            raise HalfDraftError(f"{folder} is half a draft model: {pattern} is missing; restore it or leave the draft out")
    return str(_read_json(folder / "signature.json").get("signature"))


def _digest(values: Mapping[str, Any], stored: Mapping[str, NDArray[Any]]) -> str:
    """Of what the metadata's file holds, whatever its version, its own entry left empty; and of the weights."""
    unsigned = {**values, "digest": ""}
    digest = hashlib.sha256(json.dumps(unsigned, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())
    for name, array in sorted(stored.items()):
        digest.update(f"\n{name} {array.dtype.name} {list(array.shape)}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _rounded(name: str, array: NDArray[Any], config: LoRAConfig) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(array, dtype=config.precision)
    if not np.isfinite(rounded).all():
        way_out = "; set precision to float32" if np.isfinite(array).all() else "; the adapter is broken"
        raise AdapterError(f"'{name}' holds a value that is not finite in {config.precision}{way_out}; nothing was saved")
    return rounded


def _check_weights(weights: Mapping[str, NDArray[Any]], config: LoRAConfig, complaint: str) -> None:
    """Every name is that of an `a` [..., rank, in] or a `b` [..., out, rank], and each has its other."""
    if not weights:
        raise AdapterError(f"{complaint}: there are none")
    for name, array in weights.items():
        linear, _, part = name.rpartition(".lora.")
        if not linear or part not in ("a", "b"):
            raise AdapterError(f"{complaint}: '{name}' is no adapter's, expected a name that ends in .lora.a or .lora.b")
        other = f"{linear}.lora.{'b' if part == 'a' else 'a'}"
        if other not in weights:
            raise AdapterError(f"{complaint}: '{name}' is there without '{other}'")
        rank_dim = -2 if part == "a" else -1
        if array.ndim < 2 or array.shape[rank_dim] != config.rank:
            raise AdapterError(
                f"{complaint}: '{name}' has the shape {list(array.shape)}, which is not of rank {config.rank}"
            )


def _check_place(path: Path) -> None:
    """Only nothing, an empty folder or another adapter, of any version or damaged, may be replaced."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path / WEIGHTS).is_file():
        raise AdapterError(f"{path} exists and is not an adapter; it was left alone, choose another place")


def _read_weights(file: Path) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as tensors:
            dtypes = {name: tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
            for name, dtype in dtypes.items():
                if dtype not in _DTYPES:
                    raise AdapterError(f"{file}: '{name}' is stored as {dtype}, expected {' or '.join(sorted(_DTYPES))}")
            return {name: tensors.get_tensor(name) for name in dtypes}
    except (SafetensorError, OSError) as error:
        raise AdapterError(f"{file} is missing, cut short or no safetensors file ({error}); restore it") from error


def _read_json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AdapterError(f"{file} is missing; restore it, or is this another kind of folder?") from None
    except (OSError, ValueError, RecursionError) as error:
        raise AdapterError(f"{file} is not readable JSON ({error}); restore it") from error
    if not isinstance(values, dict):
        raise AdapterError(f"{file} does not hold a JSON object; restore it")
    return values
