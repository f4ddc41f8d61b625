"""Search for similar images: embeddings of a corpus and exact nearest neighbors, in blocks of NumPy.

Exact search of 1,000 queries in a million embeddings of 256 dims is one matrix product of 0.5 TFLOP. An approximate index
would cost recall and a dependency.

Shape suffixes: Q queries, N images, B images of a block, D dims, K neighbors.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from openafm.core.config import Config, to_dict
from openafm.core.files import atomic_file
from openafm.data.images.decoding import pixels
from openafm.data.images.documents import StoredImage
from openafm.data.images.shards import ImageCorpus

Floats: TypeAlias = npt.NDArray[np.float32]

_GRID = 8
_LEVELS = 4
_BLOCK = 65_536


class Embedder(ABC):
    """Maps images to vectors whose inner product is their similarity. Several threads call it at once."""

    @abstractmethod
    def embed(self, image: StoredImage) -> Floats:
        """Return a vector [D] of length 1."""


@dataclass(frozen=True, kw_only=True)
class EmbedderConfig(Config, ABC):
    """Base of the embedders, also of those in plugins, such as CLIP. Their values identify stored embeddings."""

    @abstractmethod
    def build(self) -> Embedder:
        """Return the embedder."""


@dataclass(frozen=True, kw_only=True)
class ColorLayoutConfig(EmbedderConfig):
    """A stand-in for a CLIP-like model: colors and where they are. It does not recognize objects.

    Half of the vector is the image at 8 x 8 pixels, half is its histogram of 64 colors.
    """

    def build(self) -> Embedder:
        return _ColorLayout()


class _ColorLayout(Embedder):
    def embed(self, image: StoredImage) -> Floats:
        from PIL import Image

        array = pixels(image, side=4 * _GRID)
        small = np.asarray(Image.fromarray(array).resize((_GRID, _GRID), Image.Resampling.BOX), np.float32)
        levels = np.asarray(Image.fromarray(array).resize((4 * _GRID, 4 * _GRID), Image.Resampling.BOX)) // (256 // _LEVELS)
        bins = (levels.astype(np.int64) * (_LEVELS * _LEVELS, _LEVELS, 1)).sum(axis=-1)
        histogram = np.sqrt(np.bincount(bins.ravel(), minlength=_LEVELS**3).astype(np.float32))
        vector = np.concatenate([_unit(small.ravel() - 127.5), _unit(histogram)])
        return _unit(vector)


def embeddings(corpus: ImageCorpus, config: EmbedderConfig, folder: Path, num_threads: int = 1) -> tuple[list[str], Floats]:
    """Return the digests of a corpus' images, sorted, and their embeddings [N, D], which are stored in `folder`."""
    key = hashlib.sha256(json.dumps([type(config).__name__, to_dict(config), corpus.manifest.digest]).encode()).hexdigest()
    digests = sorted({digest for document in corpus.documents() for digest in document.digests})
    path = folder / f"embeddings-{key[:16]}.npy"
    if path.exists():
        return digests, np.load(path, allow_pickle=False)
    embedder = config.build()
    with ThreadPoolExecutor(num_threads, "openafm-embedding") as threads:
        rows = list(threads.map(lambda digest: embedder.embed(corpus.image(digest)), digests))
    found_ND = np.stack(rows).astype(np.float32) if rows else np.zeros((0, 1), np.float32)
    with atomic_file(path) as file:
        np.lib.format.write_array(file, found_ND, allow_pickle=False)
    return digests, found_ND


def nearest(queries_QD: Floats, rows_ND: Floats, k: int, block: int = _BLOCK) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the indices [Q, K] and similarities [Q, K] of the K rows with the largest inner products, largest first.

    K is the smaller of `k` and N. Of equal similarities the row with the smaller index comes first.
    """
    k = min(k, len(rows_ND))
    found: list[tuple[npt.NDArray[np.int64], Floats]] = [(np.zeros(0, np.int64), np.zeros(0, np.float32))] * len(queries_QD)
    for start in range(0, len(rows_ND), block):
        similar_QB = queries_QD @ rows_ND[start : start + block].T
        for query, similar_B in enumerate(similar_QB):
            best_K, similar_K = found[query]
            candidates = np.flatnonzero(similar_B > similar_K[-1]) if len(best_K) == k else np.arange(len(similar_B))
            if len(candidates) > k:  # sorting all of a block takes longer than the product
                kth = np.partition(similar_B[candidates], -k)[-k]
                candidates = candidates[similar_B[candidates] >= kth]
            indices = np.concatenate([best_K, candidates + start])
            similar = np.concatenate([similar_K, similar_B[candidates]])
            order = np.argsort(-similar, kind="stable")[:k]
            found[query] = indices[order], similar[order]
    indices_QK = np.array([indices for indices, _ in found], np.int64).reshape(len(queries_QD), k)
    return indices_QK, np.array([similar for _, similar in found], np.float32).reshape(len(queries_QD), k)


def _unit(vector: Floats) -> Floats:
    length = float(np.linalg.norm(vector))
    return vector / length if length else vector
