"""Near-duplicate images: rescaled, encoded again, or cropped by up to a fifth of each side; grouped out of core.

An image is hashed by the signs of the 27 lowest frequencies (DCT) of a gray thumbnail: as a whole, and in 110 windows of
80 to 100 % of its sides. The whole of a crop then has the key of a window of the original. Signs of frequencies close to
zero are unsure; so the whole is entered under all 128 keys that its 7 least sure signs allow. Pairs with one key in common
are compared: the best place of one thumbnail in the other is searched, and the gray values must agree there.

`signatures` maps images to a table, `decide` reduces the tables of all shards to drops with bounded memory, as the methods
of `data/deduplication` do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from openafm.core.config import Config
from openafm.core.libraries import needed, pyarrow
from openafm.data.deduplication.components import Numbers, find_roots, join
from openafm.data.deduplication.groups import (
    ID_BYTES,
    disk_array,
    first_numbers,
    read_shard,
    read_signatures,
    working_folder,
)
from openafm.data.deduplication.minhash import ENTRY, candidates, write_drops
from openafm.data.deduplication.sorting import ExternalSort, Records

if TYPE_CHECKING:
    import pyarrow as pa

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Place = tuple[float, float, float]
"""A part of an image as shares of its sides: left, top and side."""

BASE = 128
"""Side of the thumbnail that windows are cut from."""
THUMBNAIL = 64
"""Side of the thumbnail that pairs are compared by."""
WINDOWS = ((1.0, 1), (0.96, 3), (0.92, 4), (0.88, 5), (0.84, 5), (0.8, 6))
"""Sides of windows as shares of the image, and positions of each along an axis."""
NUM_UNSURE = 7
_GRID = 32  # pixels of a window that the DCT sees
_FREQUENCIES = tuple((u, v) for u in range(7) for v in range(7) if 1 <= u + v <= 6)
_LEAST_CONTRAST = 2.0  # standard deviation of gray values; flatter images have no structure to compare
_LEAST_CORRELATION = 0.6  # of thumbnails of 16 x 16 pixels; saves the search for a better place
_STEPS = (0.02, 0.01, 0.005, 0.0025)  # of the search for the place of one thumbnail in the other


@dataclass(frozen=True, kw_only=True)
class ImageSignature:
    """What near-duplicates are found by: keys of the windows, keys of the whole, and a gray thumbnail.

    `quality` decides which image of a group is kept: the one with the most pixels. Flat images have no keys.
    """

    digest: str
    quality: float
    window_keys: npt.NDArray[np.uint32] = field(repr=False)
    whole_keys: npt.NDArray[np.uint32] = field(repr=False)
    thumbnail: Pixels = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class ImageDuplicatesConfig(Config):
    """Keep one image of each group of near-duplicates.

    `distance` is the largest mean difference of the gray values (0 to 255) of aligned thumbnails of near-duplicates. Memory
    of the reduction: `memory_mb` plus 64 MB, for any number of images; disk: about 10 KB for each image.
    """

    REASONS: ClassVar[tuple[str, ...]] = ("near_duplicate_image",)
    VERSION: ClassVar[int] = 2

    distance: float = 9.0
    memory_mb: int = 256

    def __post_init__(self) -> None:
        self.require(0 <= self.distance < 128, f"distance is from 0 to below 128 gray values, got {self.distance}")
        self.require(self.memory_mb >= 1, f"memory_mb must be at least 1, got {self.memory_mb}")

    def build(self) -> ImageDuplicates:
        """Return the method."""
        return ImageDuplicates(self)


class ImageDuplicates:
    """See `ImageDuplicatesConfig`. An image is identified by its place: its shard and its position there."""

    def __init__(self, config: ImageDuplicatesConfig) -> None:
        self._config = config

    def signatures(self, signatures: Iterable[ImageSignature]) -> pa.Table:
        """Return the signatures of the images of one shard as a table, in their order."""
        pa = pyarrow()
        rows = list(signatures)
        binary = {
            "window_keys": [row.window_keys.astype("<u4").tobytes() for row in rows],
            "whole_keys": [row.whole_keys.astype("<u4").tobytes() for row in rows],
            "thumbnail": [row.thumbnail.tobytes() for row in rows],
        }
        columns = {
            "id": pa.array([row.digest[:ID_BYTES].encode() for row in rows], pa.binary(ID_BYTES)),
            "quality": pa.array([row.quality for row in rows], pa.float64()),
            "digest": pa.array([int(row.digest[:16], 16) for row in rows], pa.uint64()),
        }
        return pa.table(columns | {name: pa.array(values, pa.binary()) for name, values in binary.items()})

    def decide(self, signatures: Sequence[Path], out: Path) -> None:
        """Read the Parquet files of all shards in order and write the drops as one Parquet file to `out`.

        Raises:
            SignaturesError: a file is missing or damaged; `out` is not written.
            OutOfSpaceError: the disk is full; `out` is not written.
        """
        budget = (self._config.memory_mb << 20) // 2
        first_of = first_numbers(signatures)
        with working_folder(out) as folder:
            links = disk_array(folder / "links", np.int64, int(first_of[-1]))
            links[:] = np.arange(len(links))
            thumbnails = disk_array(folder / "thumbnails", np.uint8, len(links) * THUMBNAIL**2)
            thumbnails = thumbnails.reshape(-1, THUMBNAIL, THUMBNAIL)
            sort = ExternalSort(folder, "keys", ENTRY, ("bucket", "digest", "number"), budget)
            for part in read_signatures(signatures, ("digest", "window_keys", "whole_keys", "thumbnail")):
                first = int(first_of[part.shard]) + part.start
                for offset, row in enumerate(part.batch.to_pylist()):
                    thumbnails[first + offset] = np.frombuffer(row["thumbnail"], np.uint8).reshape(THUMBNAIL, THUMBNAIL)
                    sort.add(_entries(row, first + offset))
            for left, right in candidates(sort.merged()):
                self._join(links, thumbnails, left, right)
            write_drops(signatures, first_of, links, out, folder, budget)

    def read_decisions(self, path: Path, shard: int) -> Mapping[int, str]:
        """Return the images to drop of the shard of this index: the digest (its beginning) of the one kept, by position."""
        table = read_shard(path, shard, ("position", "kept"))
        return dict(zip(table.column("position").to_pylist(), table.column("kept").to_pylist(), strict=True))

    def is_part(self, part: Pixels, whole: Pixels) -> bool:
        """Return whether a thumbnail shows the picture of another one, or a crop of it."""
        return _least_distance(part.astype(np.float64), whole, self._config.distance) <= self._config.distance

    def _join(self, links: Numbers, thumbnails: Pixels, left: Numbers, right: Numbers) -> None:
        """Join the candidates that are near-duplicates. Of a number, the last bit is 1 for the whole of an image."""
        is_pair = (left & 1) != (right & 1)
        numbers = np.stack([left[is_pair], right[is_pair]], axis=1)
        numbers = np.unique(np.where(numbers[:, :1] & 1, numbers, numbers[:, ::-1]) >> 1, axis=0)  # the part, the whole
        for part, whole in numbers[numbers[:, 0] != numbers[:, 1]]:
            roots = find_roots(links, np.array([part, whole]))
            if roots[0] != roots[1] and self.is_part(thumbnails[part], thumbnails[whole]):
                join(links, np.array([part]), np.array([whole]))


def image_signature(digest: str, pixels: Pixels) -> ImageSignature:
    """Return the signature of an image [H, W, 3]."""
    with needed("resizing images", "Pillow", "images"):
        from PIL import Image
    gray = Image.fromarray(pixels).convert("L")
    base = np.asarray(gray.resize((BASE, BASE), Image.Resampling.BOX), np.float64)
    thumbnail = np.rint(base.reshape(THUMBNAIL, BASE // THUMBNAIL, THUMBNAIL, -1).mean((1, 3))).astype(np.uint8)
    has_structure = base.std() >= _LEAST_CONTRAST
    empty = np.zeros(0, np.uint32)
    frequencies = _frequencies(base) if has_structure else np.zeros((0, len(_FREQUENCIES)))
    return ImageSignature(
        digest=digest,
        quality=float(pixels.shape[0] * pixels.shape[1]),
        window_keys=np.unique(_keys(frequencies > 0)) if has_structure else empty,
        whole_keys=_probes(frequencies[0]) if has_structure else empty,
        thumbnail=thumbnail,
    )


@cache
def _window_transforms() -> tuple[npt.NDArray[np.float64], ...]:
    """Return for each side of windows the matrices [positions, 7, BASE] from rows of the base to frequencies."""
    order, place = np.arange(7)[:, None], np.arange(_GRID)[None]
    cosines = np.cos(np.pi * (2 * place + 1) * order / (2 * _GRID))
    transforms = []
    for side, count in WINDOWS:
        starts = np.linspace(0, 1 - side, count)
        transforms.append(np.stack([cosines @ _averages(start * BASE, side * BASE, _GRID, BASE) for start in starts]))
    return tuple(transforms)


@cache
def _averages(start: float, length: float, num_parts: int, size: int) -> Floats:
    """Return the matrix [num_parts, size] that averages equal parts of the span start..start+length of `size` pixels."""
    edges = start + length * np.arange(num_parts + 1) / num_parts
    covered = np.clip(edges[:, None] - np.arange(size)[None], 0, 1)  # share of each pixel before each edge
    weights: Floats = np.diff(covered, axis=0) * num_parts / length
    return weights


def _frequencies(base: Floats) -> Floats:
    """Return the frequencies [windows, 27]; the first window is the whole. Rounded: signs must not depend on the machine."""
    rows, columns = (np.array([pair[axis] for pair in _FREQUENCIES]) for axis in (0, 1))
    found: list[Floats] = []
    for transform in _window_transforms():
        count = len(transform)
        flat = transform.reshape(-1, BASE)
        table = (flat @ base @ flat.T).reshape(count, 7, count, 7).swapaxes(1, 2).reshape(-1, 7, 7)
        found.append(table[:, rows, columns])
    frequencies: Floats = np.concatenate(found).round(6)
    return frequencies


def _keys(signs: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """Return signs [..., 27] as numbers."""
    bits = signs.astype(np.uint32) << np.arange(signs.shape[-1], dtype=np.uint32)
    keys: npt.NDArray[np.uint32] = bits.sum(axis=-1, dtype=np.uint32)
    return keys


def _probes(frequencies: Floats) -> npt.NDArray[np.uint32]:
    """Return the keys with all signs of the `NUM_UNSURE` frequencies closest to zero."""
    unsure = np.sort(np.argsort(np.abs(frequencies), kind="stable")[:NUM_UNSURE]).astype(np.uint32)
    choices = (np.arange(1 << NUM_UNSURE, dtype=np.uint32)[:, None] >> np.arange(NUM_UNSURE, dtype=np.uint32)) & 1
    flips = (choices << unsure).sum(axis=1, dtype=np.uint32)
    return np.unique(_keys(frequencies > 0) ^ flips)


def _entries(row: Mapping[str, Any], number: int) -> Records:
    """Return the keys of an image. `number` is doubled, plus 1 for keys of the whole."""
    keys = [np.frombuffer(row[name], "<u4") for name in ("window_keys", "whole_keys")]
    entries = np.zeros(sum(map(len, keys)), ENTRY)
    entries["bucket"], entries["digest"] = np.concatenate(keys), row["digest"]
    entries["number"] = 2 * number + np.repeat([0, 1], [len(each) for each in keys])
    return entries


def _least_distance(target: Floats, whole: Pixels, enough: float) -> float:
    """Return the distance of a thumbnail from the part of another one that is most like it; infinite if all are unlike.

    The search for the part ends as soon as the distance is `enough`.
    """
    from PIL import Image

    place, score = _coarse_place(target, whole.astype(np.float64))
    if score < _LEAST_CORRELATION:
        return np.inf
    image, best, found = Image.fromarray(whole), -np.inf, target
    centered = (target - target.mean()).ravel()
    for step in _STEPS:
        for left, top, side in _neighbors(place, step):
            box = (left * THUMBNAIL, top * THUMBNAIL, (left + side) * THUMBNAIL, (top + side) * THUMBNAIL)
            part = np.asarray(image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BILINEAR, box=box), np.float64)
            flat = part.ravel()
            deviation = float(flat @ flat) - float(flat.sum()) ** 2 / flat.size
            score = float(flat @ centered) / max(deviation, 1e-9) ** 0.5  # the correlation, times a constant
            if score > best:
                best, place, found = score, (left, top, side), part
        if _distance(found, target) <= enough:
            break
    return _distance(found, target)


def _coarse_place(target: Floats, whole: Floats) -> tuple[Place, float]:
    """Return the window of a thumbnail that correlates best with another one, at a quarter of the size, and how much."""
    size = THUMBNAIL // 4
    small = target.reshape(size, 4, size, 4).mean((1, 3))
    best, place = -2.0, (0.0, 0.0, 1.0)
    for side, count in WINDOWS:
        starts = np.linspace(0, 1 - side, count)
        averages = np.concatenate([_averages(start * THUMBNAIL, side * THUMBNAIL, size, THUMBNAIL) for start in starts])
        parts = (averages @ whole @ averages.T).reshape(count, size, count, size).swapaxes(1, 2).reshape(count**2, -1)
        parts -= parts.mean(axis=1, keepdims=True)
        scores = parts @ (small - small.mean()).ravel() / np.maximum(np.linalg.norm(parts, axis=1), 1e-9)
        index = int(scores.argmax())
        if scores[index] > best:
            best, place = float(scores[index]), (float(starts[index % count]), float(starts[index // count]), side)
    return place, best / max(float(np.linalg.norm(small - small.mean())), 1e-9)


def _neighbors(place: Place, step: float) -> list[Place]:
    left, top, side = place
    found = set()
    for sides, lefts, tops in np.ndindex(3, 3, 3):
        new_side = min(1.0, side + (sides - 1) * step)
        new_left, new_top = left + (lefts - 1) * step, top + (tops - 1) * step
        found.add((min(max(new_left, 0.0), 1 - new_side), min(max(new_top, 0.0), 1 - new_side), new_side))
    return sorted(found)


def _distance(one: Floats, other: Floats) -> float:
    """Return the mean difference of gray values, after a shift that makes both equally bright."""
    difference = one - other
    return float(np.abs(difference - difference.mean()).mean())
