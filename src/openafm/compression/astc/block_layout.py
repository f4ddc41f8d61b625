"""The layout of 6x6 blocks: weight grids, partitions, position and range of endpoints.

Khronos Data Format Specification 1.4, "Block Mode" to "Data Size Determination". Tables only; `decoder` reads blocks and
`encoder` writes them.

Shapes: T texels (36, row by row), L levels, S partition seeds (1024).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from openafm.compression.astc.integer_sequence import IntegerRange

BLOCK_SIZE = 6
NUM_TEXELS = BLOCK_SIZE * BLOCK_SIZE
BLOCK_BITS = 128
MAX_PARTITIONS = 4
NUM_PARTITION_SEEDS = 1024

# By the 3-bit range field (from 2 on) for each value of the precision bit.
WEIGHT_RANGES = (
    tuple(IntegerRange(base, bits) for base, bits in ((1, 1), (3, 0), (1, 2), (5, 0), (3, 1), (1, 3))),
    tuple(IntegerRange(base, bits) for base, bits in ((5, 1), (3, 2), (1, 4), (5, 2), (3, 3), (1, 5))),
)
# Largest first: a block stores its endpoints in the first that fits.
COLOR_RANGES = tuple(
    sorted(
        [IntegerRange(base, bits) for base, most in ((1, 8), (3, 6), (5, 5)) for bits in range(1, most + 1)],
        key=lambda values: -values.num_levels,
    )
)[:-2]  # at least 6 levels

# Places of the second and further low bits (b, c, ...), and the factor of a trit or quint.
_COLOR_BITS = {
    (3, 1): ("000000000", 204),
    (5, 1): ("000000000", 113),
    (3, 2): ("b000b0bb0", 93),
    (5, 2): ("b0000bb00", 54),
    (3, 3): ("cb000cbcb", 44),
    (5, 3): ("cb0000cbc", 26),
    (3, 4): ("dcb000dcb", 22),
    (5, 4): ("dcb0000dc", 13),
    (3, 5): ("edcb000ed", 11),
    (5, 5): ("edcb0000e", 6),
    (3, 6): ("fedcb000f", 5),
}
_WEIGHT_BITS = {
    (3, 1): ("0000000", 50),
    (5, 1): ("0000000", 28),
    (3, 2): ("b000b0b", 23),
    (5, 2): ("b0000b0", 13),
    (3, 3): ("cb000cb", 11),
}


@dataclass(frozen=True)
class WeightGrid:
    """The stored weights of a block: a grid of at most 6x6, one or two planes, in one range."""

    width: int
    height: int
    values: IntegerRange
    num_planes: int

    @property
    def num_weights(self) -> int:
        return self.width * self.height * self.num_planes

    @property
    def num_bits(self) -> int:
        return self.values.num_bits(self.num_weights)


@cache
def weight_grid(block_mode: int) -> WeightGrid | None:
    """Return the grid of an 11-bit block mode, None if it is reserved or exceeds a 6x6 block."""
    first, second = block_mode >> 5 & 3, block_mode >> 7 & 3
    has_precision_bits = True
    if block_mode & 3:
        range_field = (block_mode & 3) << 1 | block_mode >> 4 & 1
        width, height = (
            (second + 4, first + 2),
            (second + 8, first + 2),
            (first + 2, second + 8),
            (first + 2, second + 6) if second < 2 else (second, first + 2),
        )[block_mode >> 2 & 3]
    else:
        range_field = (block_mode >> 2 & 3) << 1 | block_mode >> 4 & 1
        width, height = ((12, first + 2), (first + 2, 12), (first + 6, (block_mode >> 9) + 6), (6, 10))[second]
        has_precision_bits = second != 2
    if range_field < 2 or width > BLOCK_SIZE or height > BLOCK_SIZE:
        return None
    is_precise, is_dual = (block_mode >> 9 & 1, block_mode >> 10) if has_precision_bits else (0, 0)
    grid = WeightGrid(width, height, WEIGHT_RANGES[is_precise][range_field - 2], 1 + is_dual)
    return grid if grid.num_weights <= 64 and 24 <= grid.num_bits <= 96 else None


@dataclass(frozen=True)
class BlockLayout:
    """Positions of the fields of a block, counted from bit 0."""

    grid: WeightGrid
    endpoint_modes: tuple[int, ...]  # of each partition
    colors: IntegerRange
    first_color_bit: int
    selector_bit: int | None  # of the component that the second plane weighs

    @property
    def num_colors(self) -> int:
        return sum(num_endpoint_values(mode) for mode in self.endpoint_modes)


def num_endpoint_values(endpoint_mode: int) -> int:
    """Return how many numbers encode the two endpoints of a partition."""
    return 2 * (endpoint_mode // 4 + 1)


def num_extra_mode_bits(num_partitions: int, mode_field: int) -> int:
    """Return how many bits of the endpoint modes are below the weights: some if partitions have different modes."""
    return 3 * num_partitions - 4 if num_partitions > 1 and mode_field & 3 else 0


@cache
def block_layout(block_mode: int, num_partitions: int, mode_field: int) -> BlockLayout | None:
    """Return the layout of these fields, None for an illegal block.

    `mode_field` is the whole endpoint mode field: 4 bits of one partition; of several, 6 with any extra bits above.
    """
    grid = weight_grid(block_mode)
    if grid is None or (grid.num_planes == 2 and num_partitions == MAX_PARTITIONS):
        return None
    modes = (mode_field,) if num_partitions == 1 else _partition_modes(num_partitions, mode_field)
    first_color_bit = 17 if num_partitions == 1 else 29
    below_weights = BLOCK_BITS - grid.num_bits - num_extra_mode_bits(num_partitions, mode_field)
    selector_bit = below_weights - 2 if grid.num_planes == 2 else None
    num_color_bits = (below_weights if selector_bit is None else selector_bit) - first_color_bit
    num_colors = sum(num_endpoint_values(mode) for mode in modes)
    fitting = (values for values in COLOR_RANGES if values.num_bits(num_colors) <= num_color_bits)
    colors = next(fitting, None)
    if colors is None or num_colors > 18:
        return None
    return BlockLayout(grid, modes, colors, first_color_bit, selector_bit)


def _partition_modes(num_partitions: int, mode_field: int) -> tuple[int, ...]:
    base, rest = mode_field & 3, mode_field >> 2
    if base == 0:
        return (rest & 15,) * num_partitions
    above = rest >> num_partitions
    return tuple((base - 1 + (rest >> i & 1)) << 2 | above >> 2 * i & 3 for i in range(num_partitions))


@cache
def color_levels(values: IntegerRange) -> NDArray[np.int32]:
    """Return the endpoint component 0..255 of each stored number: [L]."""
    if values.base == 1:
        return _replicated(values.bits, 8)
    pattern, factor = _COLOR_BITS[values.base, values.bits]
    return _scrambled(values, pattern, factor, 0x80)


@cache
def weight_levels(values: IntegerRange) -> NDArray[np.int32]:
    """Return the weight 0..64 of each stored number: [L]."""
    if values.base == 1:
        levels = _replicated(values.bits, 6)
    elif values.bits == 0:
        levels = np.array([0, 32, 63] if values.base == 3 else [0, 16, 32, 47, 63], np.int32)
    else:
        pattern, factor = _WEIGHT_BITS[values.base, values.bits]
        levels = _scrambled(values, pattern, factor, 0x20)
    return levels + (levels > 32)


def _replicated(bits: int, width: int) -> NDArray[np.int32]:
    """Numbers of `bits` bits widened by repeating them from the top."""
    repeats = -(-width // bits)
    return np.array(
        [sum(n << bits * i for i in range(repeats)) >> bits * repeats - width for n in range(1 << bits)], np.int32
    )


def _scrambled(values: IntegerRange, pattern: str, factor: int, top_bit: int) -> NDArray[np.int32]:
    levels = []
    for number in range(values.num_levels):
        lowest = number & 1
        spread = 0
        for letter in pattern:
            spread = spread << 1 | (number >> "abcdef".index(letter) & 1 if letter != "0" else 0)
        all_lowest = lowest * (1 << len(pattern)) - lowest
        level = (number >> values.bits) * factor + spread ^ all_lowest
        levels.append(all_lowest & top_bit | level >> 2)
    return np.array(levels, np.int32)


@cache
def infill(width: int, height: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the four grid weights around each texel, and their shares of 16: [T, 4] each."""
    step = (1024 + BLOCK_SIZE // 2) // (BLOCK_SIZE - 1)
    y_T, x_T = np.divmod(np.arange(NUM_TEXELS), BLOCK_SIZE)
    across_T = step * x_T * (width - 1) + 32 >> 6
    down_T = step * y_T * (height - 1) + 32 >> 6
    corner_T = (across_T >> 4) + (down_T >> 4) * width
    x_T, y_T = across_T & 15, down_T & 15
    both_T = x_T * y_T + 8 >> 4
    shares = np.stack([16 - x_T - y_T + both_T, x_T - both_T, y_T - both_T, both_T], 1)
    corners = np.stack([corner_T, corner_T + 1, corner_T + width, corner_T + width + 1], 1)
    return np.minimum(corners, width * height - 1), shares.astype(np.int32)  # places outside the grid have share 0


@cache
def partition_table(num_partitions: int) -> NDArray[np.uint8]:
    """Return the partition of each texel for each seed: [S, T]."""
    seed_S1 = np.arange(NUM_PARTITION_SEEDS, dtype=np.uint32)[:, None] + np.uint32(
        (num_partitions - 1) * NUM_PARTITION_SEEDS
    )
    hash_S1 = _hash52(seed_S1)
    y_T, x_T = np.divmod(np.arange(NUM_TEXELS, dtype=np.uint32), np.uint32(BLOCK_SIZE))
    four_or_five = np.where(seed_S1 & 2, 4, 5)
    five_or_six = np.full_like(four_or_five, 6 if num_partitions == 3 else 5)
    shift_even = np.where(seed_S1 & 1, four_or_five, five_or_six)
    shift_odd = np.where(seed_S1 & 1, five_or_six, four_or_five)
    scores = []
    for partition, offset in enumerate((14, 10, 6, 2)):
        across, down = (hash_S1 >> np.uint32(8 * partition + 4 * i) & 15 for i in (0, 1))
        score_ST = (across**2 >> shift_even) * x_T + (down**2 >> shift_odd) * y_T + (hash_S1 >> np.uint32(offset))
        scores.append(score_ST & 63 if partition < num_partitions else np.full_like(score_ST, -1, dtype=np.int64))
    return np.argmax(np.stack([score.astype(np.int64) for score in scores]), 0).astype(np.uint8)


def _hash52(number: NDArray[np.uint32]) -> NDArray[np.uint32]:
    def shifted(bits: int) -> NDArray[np.uint32]:
        return number >> np.uint32(bits) if bits > 0 else number << np.uint32(-bits)

    number = number ^ shifted(15)
    number = number - shifted(-17)
    number = number + shifted(-7)
    number = number + shifted(-4)
    number = number ^ shifted(5)
    number = number + shifted(-16)
    number = number ^ shifted(7)
    number = number ^ shifted(3)
    number = number ^ shifted(-6)
    return number ^ shifted(17)
