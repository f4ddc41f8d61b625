"""Encoding of a stack of matrices, divided into jobs for worker processes.

Shapes: S matrices of a stack, R rows, C columns, T texels of a block (36), N blocks of a job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from openafm.compression.astc.block_layout import BLOCK_BITS, BLOCK_SIZE, NUM_TEXELS
from openafm.compression.astc.config import AstcConfig
from openafm.compression.astc.encoder import encode_blocks
from openafm.compression.astc.gptq import encode_calibrated
from openafm.compression.astc.level_search import Floats
from openafm.compression.astc.literal import encode_above_minimum
from openafm.compression.astc.rotation import rotate, rotate_inputs
from openafm.compression.errors import CompressionError

_BLOCKS_PER_JOB = 8192
_LITERAL_EXPONENT = 11  # weights below 2^11: block ranges fit fp16, and small weights are far from its smallest numbers
_MIN_EXPONENT = -149  # of fp32
_MAX_ROTATED_RANGE = 8  # times the range before the rotation
_CALIBRATION_MARGIN = 0.1  # margin of the range on either side, because calibration moves weights


@dataclass(frozen=True)
class Encoded:
    """Blocks [N, 16] in the order of their matrix; minima [N] in the literal recipe."""

    blocks: NDArray[np.uint8]
    minima: NDArray[np.float16] | None = None


class EncodingJob(Protocol):
    """A part of the work, picklable for other processes."""

    def run(self) -> Encoded: ...


@dataclass(frozen=True)
class BlocksJob:
    """Texels [T, N] of blocks, mapped to 0..1."""

    x_TN: Floats
    config: AstcConfig

    def run(self) -> Encoded:
        return Encoded(encode_blocks(self.x_TN, self.config))


@dataclass(frozen=True)
class CalibratedJob:
    """A whole matrix, mapped to 0..1, with the moments of its inputs; columns depend on each other."""

    x_RC: Floats
    moments_CC: NDArray[np.float64]
    config: AstcConfig

    def run(self) -> Encoded:
        blocks = encode_calibrated(self.x_RC, self.moments_CC, self.config)
        return Encoded(blocks.reshape(-1, BLOCK_BITS // 8))


@dataclass(frozen=True)
class LiteralJob:
    """Texels [T, N] in units of the matrix's scale."""

    x_TN: Floats

    def run(self) -> Encoded:
        coded = encode_above_minimum(self.x_TN)
        return Encoded(coded.blocks, coded.minima)


@dataclass(frozen=True)
class Affine:
    """The map from 0..1 back to the weights of each matrix: fp32 scale and offset, [S] each."""

    scale_S: Floats
    offset_S: Floats

    @staticmethod
    def identity(num_matrices: int) -> Affine:
        return Affine(np.ones(num_matrices, np.float32), np.zeros(num_matrices, np.float32))

    def fit(self, matrix: int, unit: Normalized, margin: float) -> Floats:
        """Set scale and offset of a matrix, with a relative margin on both sides, and return the matrix mapped to 0..1."""
        low, high = float(unit.weight_RC.min()), float(unit.weight_RC.max())
        room = margin * (high - low)
        scale, offset = np.float32(high - low + 2 * room or 1.0), np.float32(low - room)
        self.scale_S[matrix], self.offset_S[matrix] = np.ldexp((scale, offset), unit.exponent)
        return (unit.weight_RC - offset) / scale


@dataclass(frozen=True)
class Normalized:
    """A matrix times 2^-exponent, so that computing with it neither overflows nor loses small numbers."""

    weight_RC: Floats
    exponent: int

    @staticmethod
    def of(weight_RC: Floats, largest_exponent: int = 0) -> Normalized:
        """Scale a matrix, exactly, so that its largest magnitude is in [0.5, 1) * 2^largest_exponent."""
        exponent = max(int(np.frexp(np.abs(weight_RC).max())[1]) - largest_exponent, _MIN_EXPONENT)
        return Normalized(np.ldexp(weight_RC, -exponent), exponent)


def literal_jobs(stack_SRC: Floats, affine: Affine) -> Iterator[EncodingJob]:
    """Yield jobs matrix by matrix and set the scales of `affine`."""
    for s, weight_RC in enumerate(stack_SRC):
        unit = Normalized.of(weight_RC, _LITERAL_EXPONENT)
        affine.scale_S[s] = np.ldexp(np.float32(1), unit.exponent)
        for x_TN in _parts(_texels(_padded(unit.weight_RC))):
            yield LiteralJob(x_TN)


def rotation_seed(stack_SRC: Floats, config: AstcConfig) -> int | None:
    """Return the seed of the rotation; None if there is none, or if it would spread a matrix over a much wider range."""
    if config.rotation is None:
        return None
    for weight_RC in stack_SRC:
        unit_RC = Normalized.of(weight_RC).weight_RC
        if np.ptp(rotate(unit_RC, config.rotation.seed)) > _MAX_ROTATED_RANGE * np.ptp(unit_RC):
            return None
    return config.rotation.seed


def jobs(
    stack_SRC: Floats, config: AstcConfig, seed: int | None, moments: list[NDArray[np.float64]] | None, affine: Affine
) -> Iterator[EncodingJob]:
    """Yield jobs matrix by matrix and fill `affine`. `moments` are those of one matrix, of each, or none."""
    for s, weight_RC in enumerate(stack_SRC):
        unit = Normalized.of(weight_RC)
        rotated = Normalized(_padded(unit.weight_RC if seed is None else rotate(unit.weight_RC, seed)), unit.exponent)
        if moments is None:
            for x_TN in _parts(_texels(affine.fit(s, rotated, 0.0))):
                yield BlocksJob(x_TN, config)
        else:
            moments_CC = _of_rotated_and_padded(moments[s if len(moments) > 1 else 0], seed)
            yield CalibratedJob(affine.fit(s, rotated, _CALIBRATION_MARGIN), moments_CC, config)


def run(jobs: Iterable[EncodingJob], num_workers: int) -> Iterator[Encoded]:
    """Yield results in the order of the jobs; few jobs are in memory at a time.

    Raises:
        CompressionError: a worker process was killed.
    """
    if num_workers <= 1:
        yield from (job.run() for job in jobs)
        return
    # Spawned, not forked: the caller may have threads of a tensor library.
    with ProcessPoolExecutor(num_workers, mp_context=get_context("spawn")) as pool:
        waiting: deque[Future[Encoded]] = deque()
        try:
            for job in jobs:
                waiting.append(pool.submit(job.run))
                if len(waiting) > 2 * num_workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise CompressionError(
                "a worker process of the ASTC encoder was killed, probably for lack of memory; use fewer workers"
            ) from error


def _of_rotated_and_padded(moments_CC: NDArray[np.float64], seed: int | None) -> NDArray[np.float64]:
    """The moments of the inputs of the rotated and padded matrix; inputs of the padding are zero."""
    if seed is not None:
        moments_CC = rotate_inputs(rotate_inputs(moments_CC, seed).T, seed)
    return np.pad(moments_CC, (0, -len(moments_CC) % BLOCK_SIZE))


def _padded(weight_RC: Floats) -> Floats:
    return np.pad(weight_RC, [(0, -size % BLOCK_SIZE) for size in weight_RC.shape], mode="edge")


def _texels(weight_RC: Floats) -> Floats:
    """The blocks of a padded matrix as columns [T, N]."""
    num_rows, num_columns = weight_RC.shape
    tiles = weight_RC.reshape(num_rows // BLOCK_SIZE, BLOCK_SIZE, num_columns // BLOCK_SIZE, BLOCK_SIZE)
    return tiles.transpose(1, 3, 0, 2).reshape(NUM_TEXELS, -1)


def _parts(x_TN: Floats) -> Iterator[Floats]:
    for first in range(0, x_TN.shape[1], _BLOCKS_PER_JOB):
        yield x_TN[:, first : first + _BLOCKS_PER_JOB]
