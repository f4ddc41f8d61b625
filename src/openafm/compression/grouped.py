"""Matrices in groups of 4 or 8 bits. Imports no tensor library.

A group is `group` consecutive inputs of a row with one fp16 scale and, in formats with minima, one fp16 minimum:

    4 bits with minima   w = minimum + code * scale     codes 0 to 15
    4 bits, symmetric    w = (code - 8) * scale         codes 0 to 15
    8 bits               w = code * scale               codes -127 to 127

`int8_per_row` has one fp32 scale for each row. Tensors: `<weight>` U8 [R, C / 2] (two codes a byte, low bits first) or I8
[R, C], `<weight>.scale` F16 [R, C / group] or F32 [R], `<weight>.minimum` F16 [R, C / group].

Shapes: R outputs, C inputs, G groups of a row, g inputs of a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openafm.compression.errors import CompressionError
from openafm.compression.int4_embedding import pack_nibbles, unpack_nibbles
from openafm.compression.post_training.groups import (
    ClippedRange,
    Floats,
    GroupQuantized,
    RangeConfig,
    checked_matrix,
    quantize_groups,
)

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
MIDDLE = 8  # the code of zero in symmetric 4 bits
LARGEST = 127
NEAREST: RangeConfig = ClippedRange(smallest=0.8, num_steps=4)  # a tenth of the time of 26 steps, for most of the gain
_SHARES = np.linspace(1, 0.8, 5, dtype=np.float32)  # of the full range, tried for symmetric 4 bits
_ROW_BYTES = 1 << 24  # of fp32 numbers rounded at once


@dataclass(frozen=True, kw_only=True)
class GroupFormat:
    """Bits of a code, inputs of a group (0: a scale for each row), and whether groups have a minimum."""

    bits: int
    group: int
    has_minimum: bool = False

    def num_groups(self, num_inputs: int) -> int:
        return num_inputs // self.group if self.group else 1

    def shapes(self, num_outputs: int, num_inputs: int) -> dict[str, tuple[type[Any], tuple[int, ...]]]:
        """Return dtype and shape of the tensors by their suffix: "", ".scale", ".minimum"."""
        groups = (num_outputs, self.num_groups(num_inputs))
        shapes: dict[str, tuple[type[Any], tuple[int, ...]]] = {
            "": (np.uint8, (num_outputs, num_inputs // 2)) if self.bits == 4 else (np.int8, (num_outputs, num_inputs)),
            ".scale": (np.float16, groups) if self.group else (np.float32, (num_outputs,)),
        }
        return shapes | ({".minimum": (np.float16, groups)} if self.has_minimum else {})

    def check(self, num_inputs: int, name: str) -> None:
        """Check that rows of this length divide into groups, and these into blocks of 32.

        Raises:
            CompressionError: they do not; the message holds `name`.
        """
        unit = self.group or 32
        if num_inputs % unit:
            raise CompressionError(f"{name} has {num_inputs} inputs; this format needs a multiple of {unit}")

    def quantize(self, weight_RC: Floats, name: str = "the matrix", range: RangeConfig = NEAREST) -> GroupedMatrix:
        """Return a matrix rounded to nearest; 4-bit ranges are shrunk where that reduces the squared error.

        Args:
            range: how to choose the levels, in formats with minima.

        Raises:
            CompressionError: the weight is not a finite matrix, exceeds fp16, or does not divide into groups.
        """
        weight_RC = checked_matrix(weight_RC, name)
        self.check(weight_RC.shape[1], name)
        rows = max(1, _ROW_BYTES // (4 * weight_RC.shape[1]))
        starts = np.arange(0, len(weight_RC), rows)
        parts = [self._rounded(weight_RC[row : row + rows], name, range) for row in starts]
        columns = list(zip(*((part.codes_RC, part.scale, part.minimum_RG) for part in parts), strict=True))
        minimum = np.concatenate(columns[2]) if self.has_minimum else None
        return GroupedMatrix(
            format=self, codes_RC=np.concatenate(columns[0]), scale=np.concatenate(columns[1]), minimum_RG=minimum
        )

    def _rounded(self, weight_RC: Floats, name: str, range: RangeConfig) -> GroupedMatrix:
        if self.has_minimum:
            groups = quantize_groups(weight_RC, bits=self.bits, group=self.group, range=range, name=name)
            return GroupedMatrix.from_groups(groups, self)
        num_rows, num_inputs = weight_RC.shape
        weight_RGg = weight_RC.reshape(num_rows, self.num_groups(num_inputs), -1)
        exact_RG = np.abs(weight_RGg).max(-1) / np.float32(LARGEST if self.bits == 8 else MIDDLE - 1)
        smallest = np.float32(2.0**-24 if self.group else np.finfo(np.float32).tiny)
        if self.group and exact_RG.max() > np.finfo(np.float16).max:
            raise CompressionError(
                f"{name} holds numbers above 65,504 times its levels, which fp16 scales cannot hold; scale it down"
            )
        stored = np.float16 if self.group else np.float32
        best_RG = np.maximum(exact_RG, smallest).astype(stored)
        codes_RGg = _codes(weight_RGg, best_RG, self.bits)
        if self.bits == 4:
            error_RG = _squared_error(weight_RGg, codes_RGg, best_RG)
            for share in _SHARES[1:]:
                tried_RG = np.maximum(exact_RG * share, smallest).astype(stored)
                tried_RGg = _codes(weight_RGg, tried_RG, self.bits)
                tried_error_RG = _squared_error(weight_RGg, tried_RGg, tried_RG)
                better_RG = tried_error_RG < error_RG
                error_RG = np.where(better_RG, tried_error_RG, error_RG)
                best_RG = np.where(better_RG, tried_RG, best_RG)
                codes_RGg = np.where(better_RG[..., None], tried_RGg, codes_RGg)
        codes_RC = codes_RGg.reshape(num_rows, num_inputs)
        codes_RC = codes_RC.astype(np.int8) if self.bits == 8 else (codes_RC + MIDDLE).astype(np.uint8)
        return GroupedMatrix(format=self, codes_RC=codes_RC, scale=best_RG if self.group else best_RG[:, 0])


def _codes(weight_RGg: Floats, scale_RG: NDArray[Any], bits: int) -> Floats:
    least, most = (-LARGEST, LARGEST) if bits == 8 else (-MIDDLE, MIDDLE - 1)
    codes: Floats = np.clip(np.rint(weight_RGg / scale_RG.astype(np.float32)[..., None]), least, most)
    return codes


def _squared_error(weight_RGg: Floats, codes_RGg: Floats, scale_RG: NDArray[Any]) -> Floats:
    error_RGg = codes_RGg * scale_RG.astype(np.float32)[..., None] - weight_RGg
    squared: Floats = np.einsum("rgi,rgi->rg", error_RGg, error_RGg)
    return squared


FORMATS: dict[str, GroupFormat] = {
    **{f"int4_group{group}": GroupFormat(bits=4, group=group, has_minimum=True) for group in (32, 64, 128)},
    **{f"int4_symmetric_group{group}": GroupFormat(bits=4, group=group) for group in (32, 64, 128)},
    **{f"int8_group{group}": GroupFormat(bits=8, group=group) for group in (32, 64, 128)},
    "int8_per_row": GroupFormat(bits=8, group=0),
}
"""The formats by their name in `Numerics`."""


@dataclass(frozen=True, kw_only=True)
class GroupedMatrix:
    """Codes, one per byte, and scales [R, G] or [R]; minima [R, G] in formats that have them."""

    format: GroupFormat
    codes_RC: NDArray[Any]
    scale: NDArray[Any]
    minimum_RG: NDArray[Any] | None = None

    def levels(self) -> NDArray[np.int8]:
        """Return the integers [R, C] that a scale multiplies."""
        is_symmetric_4 = self.format.bits == 4 and not self.format.has_minimum
        levels: NDArray[np.int8] = self.codes_RC.astype(np.int8) - np.int8(MIDDLE if is_symmetric_4 else 0)
        return levels

    def dequantize(self) -> Floats:
        """Return the fp32 values [R, C]: level * scale, plus the minimum."""
        num_rows, num_inputs = self.codes_RC.shape
        levels_RGg = self.levels().reshape(num_rows, self.format.num_groups(num_inputs), -1)
        values: Floats = levels_RGg.astype(np.float32) * self.scale.astype(np.float32).reshape(num_rows, -1, 1)
        if self.minimum_RG is not None:
            values += self.minimum_RG.astype(np.float32)[..., None]
        return values.reshape(num_rows, num_inputs)

    def tensors(self, name: str) -> dict[str, NDArray[Any]]:
        """Return the tensors of the stored form."""
        codes = pack_nibbles(self.codes_RC) if self.format.bits == 4 else self.codes_RC
        minimum = {} if self.minimum_RG is None else {f"{name}.minimum": self.minimum_RG}
        return {name: codes, f"{name}.scale": self.scale, **minimum}

    @classmethod
    def from_tensors(cls, name: str, tensors: Arrays, format: GroupFormat, shape: tuple[int, int]) -> GroupedMatrix:
        """Read the output of `tensors`.

        Raises:
            CompressionError: a tensor is missing, or has the wrong dtype or shape.
        """
        format.check(shape[1], name)
        found: dict[str, NDArray[Any]] = {}
        for suffix, (dtype, expected) in format.shapes(*shape).items():
            tensor = tensors.get(name + suffix)
            if tensor is None or tensor.dtype != dtype or tensor.shape != expected:
                kind = "missing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
                raise CompressionError(f"'{name}{suffix}' is {kind}; expected {np.dtype(dtype)} {list(expected)}")
            found[suffix] = tensor
        codes_RC = unpack_nibbles(found[""]) if format.bits == 4 else found[""]
        return cls(format=format, codes_RC=codes_RC, scale=found[".scale"], minimum_RG=found.get(".minimum"))

    @classmethod
    def from_groups(cls, groups: GroupQuantized, format: GroupFormat) -> GroupedMatrix:
        """Return the result of a post-training method in a format with minima."""
        return cls(format=format, codes_RC=groups.codes_RC, scale=groups.scale_RG, minimum_RG=groups.minimum_RG)
