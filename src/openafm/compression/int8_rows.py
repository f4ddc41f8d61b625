"""Vision weights in 8 bits: the matrices of the vision encoder and its adapter, with one scale for each row.

Tensors: `<matrix>.weight` I8 [R, C] with `<matrix>.weight.scale` F32 [R]. Biases, norms, positions and registers stay in
fp32. With the numerics `int8_per_row_and_token`, engines round the inputs of these matrices as well, except pixels, those of
convolutions, and inputs that do not divide into blocks of 32. Imports no tensor library.

Shapes: R outputs, C inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openafm.compression.numerics import Numerics

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
_PREFIXES = ("vision.", "adapter.")
_PIXELS = "vision.patch.weight"
_STEM = "vision.stem."
_LARGEST = 127
_BLOCK = 32


def is_vision(name: str) -> bool:
    """Return True for a tensor of the vision encoder or its adapter."""
    return name.startswith(_PREFIXES)


def with_vision_in_8_bits(tensors: Arrays, numerics: Numerics) -> tuple[dict[str, NDArray[Any]], Numerics]:
    """Return tensors with those of the vision encoder in 8 bits, and their numerics. A text model's stay as they are."""
    rounded: dict[str, NDArray[Any]] = {}
    for name, tensor in tensors.items():
        if not (is_vision(name) and name.endswith(".weight") and tensor.ndim == 2):
            rounded[name] = tensor
            continue
        weight_RC = np.asarray(tensor, np.float32)
        scale_R = np.maximum(np.abs(weight_RC).max(axis=1) / _LARGEST, np.finfo(np.float32).tiny).astype(np.float32)
        rounded[name] = np.rint(weight_RC / scale_R[:, None]).astype(np.int8)
        rounded[f"{name}.scale"] = scale_R
    has_vision = any(map(is_vision, tensors))
    return rounded, replace(numerics, vision="int8_per_row_and_token") if has_vision else numerics


def with_vision_in_float(tensors: Arrays, numerics: Numerics) -> dict[str, NDArray[Any]]:
    """Return tensors with those of the vision encoder in fp32.

    Raises:
        KeyError, ValueError: a scale is missing, or does not fit its matrix.
    """
    return dict(tensors) if numerics.vision == "float32" else _decoded(tensors, _scales(tensors))


def with_vision_for_products(tensors: Arrays, numerics: Numerics) -> dict[str, NDArray[Any]]:
    """Return tensors as engines multiply them: matrices whose inputs are rounded as they are stored, all others in fp32.

    Raises:
        KeyError, ValueError: a scale is missing, or does not fit its matrix.
    """
    if not numerics.rounds_vision:
        return with_vision_in_float(tensors, numerics)
    codes = {name: tensor for name, tensor in tensors.items() if is_vision(name) and tensor.dtype == np.int8}
    for name, codes_RC in codes.items():
        scale_R = tensors[f"{name}.scale"]
        if codes_RC.ndim != 2 or scale_R.shape != codes_RC.shape[:1]:
            raise ValueError(f"{name} has codes {codes_RC.shape} and scales {scale_R.shape}, expected [R, C] and [R]")
    return _decoded(tensors, {f"{name}.scale" for name, codes_RC in codes.items() if not is_rounded(name, codes_RC.shape)})


def is_rounded(name: str, shape: Sequence[int]) -> bool:
    """Return whether the inputs of a matrix [R, C] of these numerics are rounded; if not, engines hold it in fp32."""
    return name != _PIXELS and not name.startswith(_STEM) and shape[1] % _BLOCK == 0


def _scales(tensors: Arrays) -> set[str]:
    return {f"{name}.scale" for name in tensors if is_vision(name)} & tensors.keys()


def _decoded(tensors: Arrays, scales: set[str]) -> dict[str, NDArray[Any]]:
    decoded = {name: tensor for name, tensor in tensors.items() if name not in scales}
    for scale in scales:
        name = scale.removesuffix(".scale")
        decoded[name] = tensors[name].astype(np.float32) * tensors[scale][:, None]
    return decoded
