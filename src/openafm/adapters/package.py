"""The folder of an adapter: weights, metadata and a digest. Never pickle, no tensor library.

NAME.fmadapter/  metadata.json  adapter_weights.safetensors  [draft/ (the bundle of a draft model)]

The extension and the names in the metadata are those of Apple's toolkit; the weights are not compatible with it. Folders are
untrusted: only regular files with known names are read, and links are not followed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

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
from openafm.core.files import atomic_folder, check_written, write_json
from openafm.core.regular_files import NotAFileError, OversizeFilesError, copy_files, open_regular

METADATA, WEIGHTS, DRAFT = "metadata.json", "adapter_weights.safetensors", "draft"
DRAFT_FILES = ("config.json", "tokenizer.json", "chat_template.json", "signature.json", "*.safetensors")
"""Patterns of the files that every draft has."""
FILE_PATTERNS = (
    METADATA,
    WEIGHTS,
    *(f"{DRAFT}/*.{extension}" for extension in ("json", "jinja", "md", "safetensors", "toml")),
    f"{DRAFT}/recovery.fmadapter/{METADATA}",
    f"{DRAFT}/recovery.fmadapter/{WEIGHTS}",
)
"""Patterns of all files that an adapter's folder may have; others are neither copied, served nor removed."""
MAX_BYTES = 8 << 30
MAX_METADATA_BYTES = 4 << 20
_DTYPES = {"F16", "F32"}

__all__ = [
    "DRAFT",
    "DRAFT_FILES",
    "FILE_PATTERNS",
    "MAX_BYTES",
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
    "IncompleteDraftError",
    "adapter_files",
    "copy_adapter_files",
    "open_adapter",
    "write_adapter",
]


class IncompleteDraftError(AdapterError):
    """The adapter has a part of a draft model: its signature without its bundle, or an incomplete bundle."""


class AdapterNotFoundError(UsageError):
    """There is no adapter at this path."""


class AdapterTamperedError(AdapterError):
    """The metadata or the weights have changed since the adapter was written."""


class AdapterMismatchError(UsageError):
    """The adapter belongs to another base."""


@dataclass(frozen=True, kw_only=True)
class AdapterAbout:
    """The author's description of an adapter; `creator_defined` is any JSON."""

    author: str = ""
    description: str = ""
    license: str = ""
    draft_token_count: int = DRAFT_TOKEN_COUNT
    creator_defined: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AdapterPackage:
    """An opened adapter. `weights` reads the weights; `verify` compares every byte with the digest."""

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
        """The config to install on the base before loading the weights."""
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
        """The folder of the bundle of the draft model, or None."""
        return self.path / DRAFT if self.metadata.draftSignature else None

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Return the weights by their names in the decoder: `NAME.lora.a` [rank, in] and `NAME.lora.b` [out, rank].

        Raises:
            AdapterTamperedError: the metadata or the weights have changed since the adapter was written or opened.
            AdapterError: the file is missing, damaged or another adapter's.
        """
        return {name: array.astype(np.float32) for name, array in self._verified().items()}

    def verify(self) -> None:
        """Compare the digest with every byte of metadata and weights; a draft is a bundle with its own signature.

        Raises:
            AdapterTamperedError: the digests differ.
            AdapterError: the weights are missing, damaged or another adapter's.
        """
        self._verified()

    def check_base(self, signature: str) -> None:
        """Check that the adapter belongs to the base with this signature.

        Raises:
            AdapterMismatchError: it belongs to another base; the message gives both signatures.
        """
        if signature != self.base_signature:
            raise AdapterMismatchError(
                f"adapter '{self.name}' belongs to the base {self.base_signature}, this base is {signature}; "
                "use it with its own base or train an adapter for this one"
            )

    def _verified(self) -> dict[str, NDArray[Any]]:
        file = self.path / WEIGHTS
        weights = _read_weights(self.path)
        _check_weights(weights, self.config, f"{file} is damaged or another adapter's")
        if _digest(_read_json(self.path, METADATA), weights) != self.digest:
            raise AdapterTamperedError(
                f"{self.path}: {METADATA} or {WEIGHTS} has changed since it was written; restore it or train it again"
            )
        return weights


def open_adapter(path: Path) -> AdapterPackage:
    """Open the folder of an adapter.

    Raises:
        AdapterNotFoundError: the path does not exist.
        AdapterVersionError: the format version is not supported.
        AdapterError: a file is missing, damaged or not a regular file; the message names it.
    """
    if not path.exists():
        raise AdapterNotFoundError(f"no adapter at {path}")
    file = path / METADATA
    values = _read_json(path, METADATA)
    try:
        metadata = read_metadata(values)
    except AdapterVersionError as error:
        raise AdapterVersionError(f"{file}: {error}") from error
    except UnknownKindError:
        raise
    except (AdapterError, ConfigError) as error:
        raise AdapterError(f"{file} does not describe an adapter that this version supports: {error}") from error
    _open(path, WEIGHTS).close()
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
    """Write an adapter to `path` atomically, replacing an adapter there. The bundle in the folder `draft` is copied.

    Raises:
        AdapterNameError: the name is invalid.
        ConfigError: `base_signature` is not a signature, or a value of `about` is impossible.
        IncompleteDraftError: `draft` is not a complete bundle.
        AdapterError: the weights are not those of one adapter or not finite in `config.precision`, or `path` exists and
            is not an adapter.
        ForeignFilesError: `path` holds files that openafm did not write.
        OutOfSpaceError: the disk is full; `path` is unchanged.
    """
    from importlib.metadata import version

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
            copy_adapter_files(draft, folder / DRAFT, below=DRAFT)
    return AdapterPackage(path=path, metadata=metadata)


def adapter_files(folder: Path, below: str = "") -> list[str]:
    """Return the names of an adapter's files in a folder, sorted, relative to it. Hidden files are left out.

    `below` is the path of the folder itself in the adapter, such as `draft`.
    """
    prefix = f"{below}/" if below else ""
    patterns = [pattern.removeprefix(prefix) for pattern in FILE_PATTERNS if pattern.startswith(prefix)]
    found = (path.relative_to(folder).as_posix() for pattern in patterns for path in folder.glob(pattern))
    return sorted(name for name in found if not name.rpartition("/")[2].startswith("."))


def copy_adapter_files(source: Path, target: Path, below: str = "") -> None:
    """Copy an adapter's files, see `adapter_files`, into the folder `target`.

    Raises:
        AdapterError: a file is a link, not a regular file, or the files are larger than `MAX_BYTES`.
    """
    try:
        copy_files(source, target, adapter_files(source, below), MAX_BYTES)
    except (NotAFileError, OversizeFilesError) as error:
        raise AdapterError(f"{error}; restore the adapter") from error


def _check_draft(path: Path, metadata: AdapterMetadata) -> None:
    """Check that the metadata has a draft's signature if and only if the folder has its bundle."""
    folder = path / DRAFT
    if not metadata.draftSignature:
        if folder.exists():
            raise IncompleteDraftError(
                f"{folder} exists, but {METADATA} has no draftSignature; remove it or restore the adapter"
            )
    elif (found := _draft_signature(folder)) != metadata.draftSignature:
        raise IncompleteDraftError(
            f"{folder} has the signature {found}, {METADATA} requires {metadata.draftSignature}; restore it"
        )


def _draft_signature(folder: Path) -> str:
    """Return the signature of the bundle in `folder`, which must be complete."""
    for pattern in DRAFT_FILES:
        if not any(folder.glob(pattern)):
            raise IncompleteDraftError(
                f"{folder} is an incomplete draft model: {pattern} is missing; restore it or omit the draft"
            )
    return str(_read_json(folder, "signature.json").get("signature"))


def _digest(values: Mapping[str, Any], stored: Mapping[str, NDArray[Any]]) -> str:
    """Return the digest of the metadata's values with an empty `digest`, and of the weights."""
    unsigned = {**values, "digest": ""}
    text = json.dumps(unsigned, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    for name, array in sorted(stored.items()):
        digest.update(f"\n{name} {array.dtype.name} {list(array.shape)}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _rounded(name: str, array: NDArray[Any], config: LoRAConfig) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(array, dtype=config.precision)
    if not np.isfinite(rounded).all():
        way_out = "; set precision to float32" if np.isfinite(array).all() else "; train the adapter again"
        raise AdapterError(f"'{name}' has a value that is not finite in {config.precision}{way_out}; nothing was saved")
    return rounded


def _check_weights(weights: Mapping[str, NDArray[Any]], config: LoRAConfig, prefix: str) -> None:
    """Check that the weights are pairs of `a` [..., rank, in] and `b` [..., out, rank]."""
    if not weights:
        raise AdapterError(f"{prefix}: there are no weights")
    for name, array in weights.items():
        linear, _, part = name.rpartition(".lora.")
        if not linear or part not in ("a", "b"):
            raise AdapterError(
                f"{prefix}: '{name}' is not a weight of an adapter, expected a name that ends in .lora.a or .lora.b"
            )
        other = f"{linear}.lora.{'b' if part == 'a' else 'a'}"
        if other not in weights:
            raise AdapterError(f"{prefix}: '{name}' has no '{other}'")
        rank_dim = -2 if part == "a" else -1
        if array.ndim < 2 or array.shape[rank_dim] != config.rank:
            raise AdapterError(
                f"{prefix}: '{name}' has the shape {list(array.shape)}, which does not match the rank {config.rank}"
            )


def _check_place(path: Path) -> None:
    """Check that `path` is absent, an empty folder, or an adapter without other files."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path / WEIGHTS).is_file():
        raise AdapterError(f"{path} exists and is not an adapter; it was not changed, choose another path")
    check_written(path, FILE_PATTERNS)


def _read_weights(folder: Path) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError, safe_open

    file = folder / WEIGHTS
    _open(folder, WEIGHTS).close()
    try:
        with safe_open(file, framework="numpy") as tensors:
            dtypes = {name: tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
            for name, dtype in dtypes.items():
                if dtype not in _DTYPES:
                    raise AdapterError(f"{file}: '{name}' is stored as {dtype}, expected {' or '.join(sorted(_DTYPES))}")
            return {name: tensors.get_tensor(name) for name in dtypes}
    except (SafetensorError, OSError) as error:
        raise AdapterError(f"{file} is missing, truncated or not a safetensors file ({error}); restore it") from error


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    file = folder / name
    try:
        with _open(folder, name) as stream:
            data = stream.read(MAX_METADATA_BYTES + 1)
        if len(data) > MAX_METADATA_BYTES:
            raise AdapterError(f"{file} has more than {MAX_METADATA_BYTES:,} bytes; restore it")
        values = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise AdapterError(f"{file} is not readable JSON ({error}); restore it") from error
    if not isinstance(values, dict):
        raise AdapterError(f"{file} is not a JSON object; restore it")
    return values


def _open(folder: Path, name: str) -> BinaryIO:
    try:
        return open_regular(folder, name)
    except FileNotFoundError:
        raise AdapterError(f"{folder / name} is missing; restore it, or choose the folder of an adapter") from None
    except (NotAFileError, OSError) as error:
        raise AdapterError(f"{error}; restore the adapter") from error
