"""The two end points of a partition: ASTC's sixteen encodings of a pair of colors.

Khronos Data Format Specification 1.4, "Endpoint Interpretation". Weight matrices use the red component, so only red is
computed. Endpoints are on the 16-bit scale of interpolation: linear for the LDR modes, nearly logarithmic for the HDR modes.

Shapes: N blocks, K stored numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int32]

HDR_MODES = frozenset({2, 3, 7, 11, 14, 15})


@dataclass(frozen=True)
class RedEndpoints:
    """Red at weight 0 and at weight 64: [N] each, 0..65535."""

    low: Integers
    high: Integers


def red_ends(endpoint_mode: int, values_NK: Integers) -> RedEndpoints:
    """Return the end points of a partition from its stored components 0..255."""
    v = [values_NK[:, k] for k in range(values_NK.shape[1])]
    match endpoint_mode:
        case 0 | 4:
            low, high = v[0], v[1]
        case 1:
            low = v[0] >> 2 | v[1] & 0xC0
            high = low + (v[1] & 0x3F)
        case 2:
            is_ordered = v[1] >= v[0]
            low = np.where(is_ordered, v[0] << 4, (v[1] << 4) + 8)
            high = np.where(is_ordered, v[1] << 4, (v[0] << 4) - 8)
        case 3:
            low, high = _hdr_small_range(v)
        case 5:
            offset, low = _transfer_bit(v[1], v[0])
            high = low + offset
        case 6 | 10:
            low, high = v[0] * v[3] >> 8, v[0]
        case 7:
            low, high = _hdr_base_scale(v)
        case 8 | 12:
            is_direct = v[1] + v[3] + v[5] >= v[0] + v[2] + v[4]
            low = np.where(is_direct, v[0], v[1] + v[5] >> 1)
            high = np.where(is_direct, v[1], v[0] + v[4] >> 1)
        case 9 | 13:
            low, high = _base_offset(v)
        case _:
            low, high = _hdr_direct(v)
    if endpoint_mode in HDR_MODES:
        return RedEndpoints(np.clip(low, 0, 0xFFF) << 4, np.clip(high, 0, 0xFFF) << 4)
    return RedEndpoints(np.clip(low, 0, 0xFF) * 257, np.clip(high, 0, 0xFF) * 257)


def _transfer_bit(offset: Integers, base: Integers) -> tuple[Integers, Integers]:
    """A 6-bit signed offset and an 8-bit base from two bytes; the top bit of the offset byte belongs to the base."""
    signed = offset >> 1 & 0x3F
    return signed - ((signed & 0x20) << 1), base >> 1 | offset & 0x80


def _base_offset(v: list[Integers]) -> tuple[Integers, Integers]:
    (d_red, red), (d_green, _), (d_blue, blue) = (_transfer_bit(v[i + 1], v[i]) for i in (0, 2, 4))
    is_direct = d_red + d_green + d_blue >= 0
    low = np.where(is_direct, red, red + d_red + blue + d_blue >> 1)
    high = np.where(is_direct, red + d_red, red + blue >> 1)
    return low, high


def _hdr_small_range(v: list[Integers]) -> tuple[Integers, Integers]:
    is_coarse = v[0] & 0x80 != 0
    low = np.where(is_coarse, (v[1] & 0xE0) << 4 | (v[0] & 0x7F) << 2, (v[1] & 0xF0) << 4 | (v[0] & 0x7F) << 1)
    return low, low + np.where(is_coarse, (v[1] & 0x1F) << 2, (v[1] & 0x0F) << 1)


def _placed(modes: Integers, number: Integers, extras: list[Integers], places: str) -> Integers:
    """`number` with the extra bits of each mode. `places` holds "modes:extra>bit" items."""
    for item in places.split():
        chosen, move = item.split(":")
        extra, bit = move.split(">")
        is_chosen = np.isin(modes, [int(mode) for mode in chosen])
        number = number | np.where(is_chosen, extras[int(extra)] << int(bit), 0)
    return number


def _hdr_base_scale(v: list[Integers]) -> tuple[Integers, Integers]:
    mode_bits = v[0] >> 6 | v[1] >> 7 << 2 | v[2] >> 7 << 3
    mode = np.where(mode_bits < 12, mode_bits & 3, np.where(mode_bits < 15, 4, 5))
    major = np.where(mode_bits < 12, mode_bits >> 2, np.where(mode_bits < 15, mode_bits & 3, 0))
    extras = [v[byte] >> bit & 1 for byte, bit in ((1, 6), (1, 5), (2, 6), (2, 5), (3, 7), (3, 6), (3, 5))]
    red = _placed(mode, v[0] & 0x3F, extras, "01345:4>6 2:3>6 4:5>7 0123:2>7 02:1>8 13:0>8 02:0>9 1:6>9 0:3>10 1:5>10")
    green = _placed(mode, v[1] & 0x1F, extras, "45:0>6 1345:1>5")
    blue = _placed(mode, v[2] & 0x1F, extras, "45:2>6 1345:3>5")
    scale = _placed(mode, v[3] & 0x1F, extras, "02345:6>5 0235:5>6 2:4>7")
    shift = np.array([1, 1, 2, 3, 4, 5], np.int32)[mode]
    minor = np.where(major == 1, green, blue)
    high = np.where(major == 0, red, np.where(mode == 5, minor, red - minor)) << shift
    return high - (scale << shift), high


def _hdr_direct(v: list[Integers]) -> tuple[Integers, Integers]:
    major = v[4] >> 7 | v[5] >> 7 << 1
    mode = v[1] >> 7 | v[2] >> 7 << 1 | v[3] >> 7 << 2
    extras = [v[byte] >> bit & 1 for byte, bit in ((2, 6), (3, 6), (4, 6), (5, 6), (4, 5), (5, 5))]
    a = _placed(mode, v[0] | (v[1] & 0x40) << 2, extras, "257:0>9 3:2>9 46:4>9 46:5>10 57:1>10 67:2>11")
    c = _placed(mode, v[1] & 0x3F, extras, "2:1>6 3567:3>6 5:2>7")
    b_green = _placed(mode, v[2] & 0x3F, extras, "01346:0>6 14:2>7")
    b_blue = _placed(mode, v[3] & 0x3F, extras, "01346:1>6 14:3>7")
    num_bits = np.array([7, 6, 7, 6, 5, 6, 5, 6], np.int32)[mode]
    d_green, d_blue = (((v[k] & 0x7F) << 32 - num_bits).astype(np.int32) >> 32 - num_bits for k in (4, 5))
    is_green = major == 1
    b = np.where(major == 0, 0, np.where(is_green, b_green, b_blue))
    d = np.where(major == 0, 0, np.where(is_green, d_green, d_blue))
    shift = mode >> 1 ^ 3
    high = np.where(major == 3, v[1] << 4, (a - b) << shift)
    return np.where(major == 3, v[0] << 4, (a - b - c - d) << shift), high
