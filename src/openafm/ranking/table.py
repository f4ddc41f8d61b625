"""Embedding tables in 4-bit codes, and the files of rankers.

Shapes: N buckets, D dim, F features.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from openafm.core.config import Config, ConfigError, dump
from openafm.core.errors import OpenAFMError
from openafm.core.regular_files import read_document

PartT = TypeVar("PartT")

_LEVELS = 7  # on each side of zero
_MOST_BUCKETS, _MOST_DIM = 1 << 20, 1024


class RankerError(OpenAFMError):
    """A ranker is missing, or its files do not fit each other."""


@dataclass(frozen=True, kw_only=True)
class TableConfig(Config):
    """Base of the configs of rankers: the size of the table, and the SHA-256 of the file of weights as `digest`."""

    num_buckets: int
    dim: int
    digest: str = ""

    def __post_init__(self) -> None:
        self.require(0 < self.num_buckets <= _MOST_BUCKETS, f"'num_buckets' must be from 1 to {_MOST_BUCKETS}")
        self.require(0 < self.dim <= _MOST_DIM and self.dim % 2 == 0, f"'dim' must be even and at most {_MOST_DIM}")


class QuantizedTable:
    """Embeddings as codes [N, D / 2] uint8, two of 4 bits each, and a scale for each bucket [N]."""

    def __init__(self, codes: NDArray[np.uint8], scales: NDArray[np.float16]) -> None:
        self._codes, self._scales = codes, scales.astype(np.float32)
        self.dim = 2 * codes.shape[1]

    def embeddings(self, features: Sequence[int]) -> NDArray[np.float32]:
        """Return the embeddings of features, [F, D]."""
        rows = np.asarray(features, np.intp)
        codes_FH = self._codes[rows]
        codes_FD = np.stack([codes_FH & 15, codes_FH >> 4], axis=-1).reshape(len(rows), self.dim)
        found_FD: NDArray[np.float32] = (codes_FD.astype(np.float32) - 8) * self._scales[rows, None]
        return found_FD


def quantized(table_ND: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """Return the 4-bit codes [N, D / 2] and the scales [N] of an embedding table."""
    scales_N = (np.abs(table_ND).max(axis=1) / _LEVELS).astype(np.float16)
    divisors_N = np.maximum(scales_N.astype(np.float32), np.finfo(np.float16).tiny)
    codes_ND = (np.clip(np.round(table_ND / divisors_N[:, None]), -_LEVELS, _LEVELS) + 8).astype(np.uint8)
    return codes_ND[:, ::2] | codes_ND[:, 1::2] << 4, scales_N


def check_weights(weights: Mapping[str, NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that `codes` are uint8 and all other weights finite numbers in fp16, of these shapes.

    Raises:
        RankerError: they are not; the message names one.
    """
    expected = {name: (np.dtype(np.uint8 if name == "codes" else np.float16), shape) for name, shape in shapes.items()}
    found = {name: (tensor.dtype, tensor.shape) for name, tensor in weights.items()}
    if wrong := sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)):
        raise RankerError(
            f"the weights do not fit the config: {wrong[0]} is {found.get(wrong[0])}, not {expected.get(wrong[0])}"
        )
    if infinite := [name for name, tensor in weights.items() if not np.isfinite(tensor).all()]:
        raise RankerError(f"the weights {infinite[0]} are not finite")


def write_part(folder: Path, name: str, config: TableConfig, weights: Mapping[str, NDArray[Any]]) -> None:
    """Write NAME.safetensors, and NAME.json with its digest in the field `digest` of the config."""
    from safetensors.numpy import save

    data = save(dict(sorted(weights.items())))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.safetensors").write_bytes(data)
    text = dump(replace(config, digest=hashlib.sha256(data).hexdigest()))
    (folder / f"{name}.json").write_text(text, encoding="utf-8")


def read_part(folder: Path, name: str, build: Callable[[dict[str, Any], dict[str, NDArray[Any]]], PartT]) -> PartT:
    """Return what `build` makes of NAME.json and of the tensors of NAME.safetensors.

    Raises:
        RankerError: a file is missing or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        documents = [read_document(folder / file) for file in (f"{name}.json", f"{name}.safetensors")]
    except OSError as error:
        raise RankerError(f"{folder} needs {name}.json and {name}.safetensors ({error})") from error
    try:
        config = json.loads(documents[0])
        if not isinstance(config, dict) or hashlib.sha256(documents[1]).hexdigest() != config.get("digest"):
            raise ValueError(f"{name}.safetensors is not the file of {name}.json")
        return build(config, load(documents[1]))
    except (SafetensorError, ConfigError, RankerError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise RankerError(f"{folder}: the ranker is damaged: {error}; restore it") from error
