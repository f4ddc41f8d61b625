"""An adapter's folder: its weights, what they were trained for, and a digest. Never pickle, no tensor library.

NAME.fmadapter/metadata.json  adapter_weights.safetensors

The extension is that of Apple's toolkit, the content is not compatible with it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.adapters.config import LoRAConfig, ZeroStart
from openafm.core.config import Config, ConfigError, from_dict, to_dict
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.files import atomic_folder, write_json

FORMAT = "openafm.adapter"
FORMAT_VERSION = 1
METADATA, WEIGHTS = "metadata.json", "adapter_weights.safetensors"
_DTYPES = {"F16", "F32"}


class AdapterError(OpenAFMError):
    """A folder that is not a readable adapter, or an adapter that cannot be written."""


class AdapterNotFoundError(UsageError):
    """There is no adapter at this path."""


class AdapterVersionError(AdapterError):
    """The adapter was written for another version of the format."""


class AdapterTamperedError(AdapterError):
    """The adapter is not the one that was written."""


class AdapterMismatchError(UsageError):
    """The adapter was made for another base."""


@dataclass(frozen=True, kw_only=True)
class AdapterMetadata(Config):
    """What `metadata.json` holds. An adapter is bound to the signature of the very bundle that it was trained on."""

    format: str = FORMAT
    version: int = FORMAT_VERSION
    name: str
    base_signature: str
    config: LoRAConfig
    created_by: str
    digest: str = ""

    def __post_init__(self) -> None:
        self.require(
            self.name.strip() != "" and self.name.isprintable(),
            f"{self.name!r} is no name for an adapter; use some printable text on one line",
        )
        self.require(
            re.fullmatch(r"[0-9a-f]{40}", self.base_signature) is not None,
            f"base_signature must be the 40 hex digits that sign a bundle, got '{self.base_signature}'",
        )
        self.require(
            isinstance(self.config.start, ZeroStart), "a written adapter starts from its weights, with no config.start"
        )


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """An opened adapter. Weights are read when asked for; `verify` compares every byte with the digest."""

    path: Path
    metadata: AdapterMetadata

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def config(self) -> LoRAConfig:
        """What to install on the base before the weights are loaded."""
        return self.metadata.config

    @property
    def base_signature(self) -> str:
        """The signature of the bundle that the adapter belongs to, 40 hex digits."""
        return self.metadata.base_signature

    @property
    def digest(self) -> str:
        """SHA-256, in hex, over the metadata and every weight's name, dtype, shape and bytes, as written."""
        return self.metadata.digest

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The weights by their names in the decoder, `layers.0.attention.query.lora.a` [rank, in] and `.b` [out, rank].

        Raises:
            AdapterError: the file is missing, damaged or another adapter's.
        """
        return {name: array.astype(np.float32) for name, array in self._stored().items()}

    def verify(self) -> None:
        """Compute the digest again from every byte.

        Raises:
            AdapterTamperedError: it is not the recorded one.
            AdapterError: the weights are missing, damaged or another adapter's.
        """
        if _digest(self.metadata, self._stored()) != self.digest:
            raise AdapterTamperedError(
                f"{self.path}: {METADATA} and {WEIGHTS} are not what was written; restore the adapter or train it again"
            )

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

    def _stored(self) -> dict[str, NDArray[Any]]:
        file = self.path / WEIGHTS
        weights = _read_weights(file)
        _check_weights(weights, self.config, f"{file} is damaged or another adapter's")
        return weights


def open_adapter(path: Path) -> Adapter:
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
    if values.get("format") != FORMAT:
        raise AdapterError(f'{file} is not the metadata of an openafm adapter (no "format": "{FORMAT}")')
    if values.get("version") != FORMAT_VERSION:
        raise AdapterVersionError(
            f"{path} is an adapter of format version {values.get('version')}, this openafm reads version {FORMAT_VERSION}; "
            "install the matching version or train the adapter again"
        )
    try:
        metadata = from_dict(AdapterMetadata, values)
    except ConfigError as error:
        raise AdapterError(f"{file} does not describe an adapter that this version knows: {error}") from error
    if not (path / WEIGHTS).is_file():
        raise AdapterError(f"{path / WEIGHTS} is missing; restore it")
    return Adapter(path=path, metadata=metadata)


def write_adapter(
    path: Path, *, weights: Mapping[str, NDArray[Any]], config: LoRAConfig, base_signature: str, name: str
) -> Adapter:
    """Write an adapter at `path`, whole or not at all; an adapter that stands there is replaced, nothing else is.

    Raises:
        ConfigError: `name` or `base_signature` is not one.
        AdapterError: the weights are not those of one adapter, not finite in `config.precision`, or `path` holds
            something else.
        OutOfSpaceError: the disk is full; what stood at `path` is untouched.
    """
    from safetensors.numpy import save_file

    metadata = AdapterMetadata(
        name=name,
        base_signature=base_signature,
        config=replace(config, start=ZeroStart()),
        created_by=f"openafm {version('openafm')}",
    )
    _check_place(path)
    _check_weights(weights, config, "these weights cannot be written")
    stored = {key: _rounded(key, array, config) for key, array in weights.items()}
    metadata = replace(metadata, digest=_digest(metadata, stored))
    with atomic_folder(path) as folder:
        write_json(folder / METADATA, _to_json(metadata))
        save_file(stored, folder / WEIGHTS, {"format": "pt"})
    return Adapter(path=path, metadata=metadata)


def _digest(metadata: AdapterMetadata, stored: Mapping[str, NDArray[Any]]) -> str:
    values = _to_json(replace(metadata, digest=""))
    digest = hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())
    for name, array in sorted(stored.items()):
        digest.update(f"\n{name} {array.dtype.name} {list(array.shape)}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _to_json(metadata: AdapterMetadata) -> dict[str, Any]:
    values = to_dict(metadata)
    del values["config"]["start"]
    return values


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
