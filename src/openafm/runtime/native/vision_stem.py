"""The convolutions of a vision encoder on the native kernels; see `models.vision.stem`.

Shapes: V views, Y and X pixels or outputs of a side, K taps of a side of a convolution, I its inputs for one output,
O its outputs, C channels, R rows of a matrix, P outputs of all views.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from openafm.models.vision.config import VisionConfig
from openafm.runtime.native.vision_parts import TowerParts, Weights

Floats = NDArray[np.float32]
NEIGHBORHOOD_BYTES = 500_000
"""Inputs of a convolution that are made at once: they stay in the cache until they are multiplied."""


def check_stem(vision: VisionConfig, weights: Weights) -> None:
    """Check the matrices of the convolutions before memory is taken for their inputs.

    Raises:
        ValueError, KeyError: a matrix has another shape than the config gives it, or is missing.
    """
    for index, (convolution, num_inputs) in enumerate(zip(vision.stem, vision.stem_inputs, strict=True)):
        name, expected = f"vision.stem.convolutions.{index}.product.weight", (convolution.channels, num_inputs)
        if weights[name].shape != expected:
            raise ValueError(f"{name} has the shape {weights[name].shape}, expected {expected}")


def fold_normalization(vision: VisionConfig, weights: Weights) -> None:
    """Make the first product one of pixels from 0 to 255: (p / 255 - mean) / std is a factor and an offset."""
    name = "vision.stem.convolutions.0.product" if vision.stem else "vision.patch"
    weight_RI = weights[f"{name}.weight"].astype(np.float32)
    mean_I, std_I = (np.tile(np.array(each), weight_RI.shape[1] // 3) for each in (vision.pixel_mean, vision.pixel_std))
    scaled_RI = weight_RI / std_I
    weights[f"{name}.weight"] = (scaled_RI / 255).astype(np.float32)
    weights[f"{name}.bias"] = (weights[f"{name}.bias"] - scaled_RI @ mean_I).astype(np.float32)


def convolved(vision: VisionConfig, parts: TowerParts, views_VYXC: NDArray[np.uint8]) -> Floats:
    """Return the outputs of the convolutions. The normalization of pixels is folded into the first one."""
    x_VYXC: NDArray[Any] = views_VYXC
    border_C = 255 * np.array(vision.pixel_mean, np.float32)  # zero in units of standard deviations
    for index, convolution in enumerate(vision.stem):
        name = f"vision.stem.convolutions.{index}"
        y_VYXO = np.concatenate(
            [
                parts.linear(f"{name}.product", taps_VYXI, has_gelu=True)
                for taps_VYXI in neighborhoods(x_VYXC, convolution.kernel_side, convolution.stride, border_C)
            ],
            axis=1,
        )
        rows_PO = parts.norm(f"{name}.norm", vision.norm_eps, y_VYXO.reshape(-1, convolution.channels))
        x_VYXC, border_C = rows_PO.reshape(y_VYXO.shape), np.zeros(convolution.channels, np.float32)
    return x_VYXC


def neighborhoods(x_VYXC: NDArray[Any], kernel_side: int, stride: int, border_C: Floats) -> Iterator[Floats]:
    """Yield the inputs of a convolution at its outputs, some rows at a time, [V, rows, X, K * K * C].

    Beyond the image they are the border.
    """
    num_views, height, width, channels = x_VYXC.shape
    margin = kernel_side // 2
    padded_VYXC = np.empty((num_views, height + 2 * margin, width + 2 * margin, channels), np.float32)
    padded_VYXC[:] = border_C
    padded_VYXC[:, margin : margin + height, margin : margin + width] = x_VYXC
    windows_VYXKKC = sliding_window_view(padded_VYXC, (kernel_side, kernel_side), axis=(1, 2)).transpose(0, 1, 2, 4, 5, 3)
    strided_VYXKKC = windows_VYXKKC[:, ::stride, ::stride]
    num_rows, num_inputs = strided_VYXKKC.shape[1], kernel_side**2 * channels
    rows_at_once = max(1, NEIGHBORHOOD_BYTES // (4 * num_views * strided_VYXKKC.shape[2] * num_inputs))
    for first in range(0, num_rows, rows_at_once):
        part_VYXKKC = strided_VYXKKC[:, first : first + rows_at_once]
        yield np.ascontiguousarray(part_VYXKKC).reshape(*part_VYXKKC.shape[:3], num_inputs)
