"""Weight matrices as ASTC blocks and back: the public interface of this package.

Stacks of matrices (experts, tracks) are encoded matrix by matrix. A matrix whose sides are not multiples of six is padded by
repeating its last row and column. `bits_per_weight` counts everything stored.

Shapes: S matrices of a stack, R rows, C columns, T texels of a block (36), N blocks of a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.compression.astc.block_layout import BLOCK_BITS, BLOCK_SIZE, NUM_TEXELS
from openafm.compression.astc.config import AstcConfig, LiteralAstcConfig
from openafm.compression.astc.decoder import decode_blocks
from openafm.compression.astc.jobs import Affine, jobs, literal_jobs, rotation_seed, run
from openafm.compression.astc.level_search import Floats
from openafm.compression.astc.rotation import unrotate
from openafm.compression.errors import CompressionError
from openafm.core.errors import UsageError

_MAX_WEIGHT = 2.0**96  # scales and rotated weights of larger ones may exceed fp32


@dataclass(frozen=True, kw_only=True, eq=False)
class AstcMatrix:
    """A matrix or a stack of them in blocks. Decoded weights are block values * scale + offset, unrotated and cropped.

    `blocks` [S, ceil(R / 6), ceil(C / 6), 16] uint8; `scale`, `offset` [S] fp32; `rotation_seed` of `HadamardConfig`, if
    rotated. In the report's literal recipe, weights are (block values + minima) * scale, with `minima` [S, ceil(R / 6),
    ceil(C / 6)] fp16 and a power of two as scale (1 in files of earlier versions, which do not store it).
    """

    blocks: NDArray[np.uint8]
    scale: Floats
    offset: Floats
    shape: tuple[int, ...]
    rotation_seed: int | None = None
    minima: NDArray[np.float16] | None = None

    @property
    def num_bits(self) -> int:
        """Bits of everything stored."""
        return sum(array.nbytes * 8 for array in self.tensors("").values())

    @property
    def bits_per_weight(self) -> float:
        """Stored bits, including padding, per weight of the original."""
        return self.num_bits / math.prod(self.shape)

    @property
    def padding_bits(self) -> int:
        """Bits of the blocks that encode padding."""
        num_blocks = self.blocks.size * 8 // BLOCK_BITS
        return round((num_blocks * NUM_TEXELS - math.prod(self.shape)) * BLOCK_BITS / NUM_TEXELS)

    def tensors(self, name: str) -> dict[str, NDArray[Any]]:
        """Return the stored tensors: the blocks under `name`, the rest under `name` and a suffix."""
        tensors: dict[str, NDArray[Any]] = {name: self.blocks, f"{name}.scale": self.scale}
        if self.minima is None:
            tensors[f"{name}.offset"] = self.offset
        else:
            tensors[f"{name}.minima"] = self.minima
        if self.rotation_seed is not None:
            tensors[f"{name}.rotation_seed"] = np.array([self.rotation_seed], np.int64)
        return tensors

    @staticmethod
    def from_tensors(name: str, tensors: Mapping[str, NDArray[Any]], shape: tuple[int, ...]) -> AstcMatrix:
        """Read the output of `tensors` of a matrix of `shape`.

        Raises:
            CompressionError: a tensor is missing, or does not fit the shape.
        """
        blocks = tensors.get(name)
        grid = (math.prod(shape[:-2]), *_grid(shape))
        if blocks is None or blocks.dtype != np.uint8 or blocks.shape != (*grid, BLOCK_BITS // 8):
            found = "nothing" if blocks is None else f"{blocks.dtype} {list(blocks.shape)}"
            raise CompressionError(
                f"'{name}': expected ASTC blocks uint8 {[*grid, 16]} for a {list(shape)} tensor, got {found}"
            )
        minima, seed = (
            _fitting(tensors, f"{name}.{part}", fits) for part, fits in (("minima", grid), ("rotation_seed", (1,)))
        )
        scale, offset = (_fitting(tensors, f"{name}.{part}", grid[:1]) for part in ("scale", "offset"))
        if minima is None and (scale is None or offset is None):
            raise CompressionError(f"'{name}': its .scale and .offset (or .minima) are missing; restore the file")
        return AstcMatrix(
            blocks=blocks,
            scale=np.ones(grid[0], np.float32) if scale is None else scale,
            offset=np.zeros(grid[0], np.float32) if offset is None else offset,
            shape=shape,
            rotation_seed=None if seed is None else int(seed[0]),
            minima=minima,
        )


def encode_matrix(
    weight: NDArray[np.floating[Any]],
    config: AstcConfig | LiteralAstcConfig,
    *,
    calibration: NDArray[np.floating[Any]] | None = None,
    num_workers: int = 1,
    on_progress: Callable[[int], None] | None = None,
    name: str = "weight",
) -> AstcMatrix:
    """Return weights [..., R, C] encoded in blocks.

    `calibration` is the sum of x x^T over inputs of the layer, [C, C] or one for each matrix [..., C, C]; blocks then
    minimize the error of the outputs (see `gptq`). `num_workers` > 1 spawns processes; the result is the same. `on_progress`
    is called with the number of encoded weights. `name` is the tensor's name in errors.

    Raises:
        CompressionError: weights are not finite, are 2^96 or larger, are all zero or have fewer than 6 rows or columns, or a
            worker process was killed.
        UsageError: the calibration does not fit the weights, is not finite or is not a sum of x x^T.
    """
    _check(weight, name)
    stack_SRC = np.asarray(weight, np.float32).reshape(-1, *weight.shape[-2:])
    affine, seed = Affine.identity(len(stack_SRC)), None
    if isinstance(config, LiteralAstcConfig):
        if calibration is not None:
            raise UsageError(f"'{name}': the literal recipe does not support calibration; use AstcConfig")
        work = literal_jobs(stack_SRC, affine)
    else:
        seed = rotation_seed(stack_SRC, config)
        work = jobs(stack_SRC, config, seed, None if calibration is None else _moments(calibration, weight, name), affine)
    grid = (len(stack_SRC), *_grid(weight.shape))
    encoded, num_done = [], 0
    try:
        for part in run(work, num_workers):
            encoded.append(part)
            num_done += len(part.blocks)
            if on_progress is not None:
                on_progress(weight.size * num_done // math.prod(grid))
    except np.linalg.LinAlgError as error:
        raise UsageError(f"'{name}': the damped calibration is not positive definite; pass a sum of x x^T") from error
    minima = [part.minima for part in encoded if part.minima is not None]
    return AstcMatrix(
        blocks=np.concatenate([part.blocks for part in encoded]).reshape(*grid, BLOCK_BITS // 8),
        scale=affine.scale_S,
        offset=affine.offset_S,
        shape=weight.shape,
        rotation_seed=seed,
        minima=np.concatenate(minima).reshape(grid) if minima else None,
    )


def _fitting(tensors: Mapping[str, NDArray[Any]], key: str, shape: tuple[int, ...]) -> NDArray[Any] | None:
    found = tensors.get(key)
    if found is not None and found.shape != shape:
        raise CompressionError(f"'{key}' has shape {list(found.shape)}, expected {list(shape)}")
    return found


def _grid(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of blocks."""
    return -(-shape[-2] // BLOCK_SIZE), -(-shape[-1] // BLOCK_SIZE)


def decode_matrix(matrix: AstcMatrix) -> Floats:
    """Return the decoded weights [..., R, C].

    Raises:
        CompressionError: the blocks are damaged.
    """
    num_rows, num_columns = matrix.shape[-2:]
    weight_SRC = np.empty((len(matrix.blocks), num_rows, num_columns), np.float32)
    for s, blocks in enumerate(matrix.blocks):
        values = decode_blocks(blocks.reshape(-1, BLOCK_BITS // 8)).astype(np.float32)
        if matrix.minima is None:
            values = values * matrix.scale[s] + matrix.offset[s]
        else:
            values = (values + matrix.minima[s].reshape(-1, 1)) * matrix.scale[s]
        tiles = values.reshape(*blocks.shape[:2], BLOCK_SIZE, BLOCK_SIZE)
        padded_RC = tiles.swapaxes(1, 2).reshape(blocks.shape[0] * BLOCK_SIZE, -1)
        weight_RC = padded_RC[:num_rows, :num_columns]
        weight_SRC[s] = weight_RC if matrix.rotation_seed is None else unrotate(weight_RC, matrix.rotation_seed)
    return weight_SRC.reshape(matrix.shape)


def _check(weight: NDArray[np.floating[Any]], name: str) -> None:
    shape = list(weight.shape)
    if weight.ndim < 2 or min(weight.shape[-2:]) < BLOCK_SIZE or weight.size == 0:
        raise CompressionError(
            f"'{name}' {shape} is too small to block: ASTC needs at least 6 rows and 6 columns; keep it uncompressed"
        )
    if not np.isfinite(weight).all():
        raise CompressionError(f"'{name}' {shape} holds NaN or infinity: the model diverged, train it again")
    if not weight.any():
        raise CompressionError(f"'{name}' {shape} is all zero: remove it from the model or keep it uncompressed")
    if np.abs(weight).max() >= _MAX_WEIGHT:
        raise CompressionError(f"'{name}' {shape} holds weights of 2^96 or more: scale it down or train the model again")


def _moments(
    calibration: NDArray[np.floating[Any]],
    weight: NDArray[np.floating[Any]],
    name: str,
) -> list[NDArray[np.float64]]:
    """One moment matrix for the whole stack, or one for each matrix."""
    num_columns = weight.shape[-1]
    one = (num_columns, num_columns)
    if calibration.shape not in (one, weight.shape[:-2] + one):
        raise UsageError(
            f"'{name}': calibration {list(calibration.shape)} does not fit weights {list(weight.shape)}; "
            f"expected the sum of x x^T over inputs, {list(one)} or one for each matrix"
        )
    if not np.isfinite(calibration).all():
        raise UsageError(f"'{name}': calibration holds NaN or infinity; leave out the inputs that cause it")
    return list(np.asarray(calibration, np.float64).reshape(-1, *one))
