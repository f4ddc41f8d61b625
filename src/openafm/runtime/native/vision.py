"""The vision encoder and the adapter of a bundle on the native kernels: the same function as `models/vision`, without torch.

Shapes: V views, Y and X pixels or patches of a side, N windows of W patches, R registers, T tokens of a view, S tokens that
attend to each other, H heads, C head dim, D encoder dim, E values of a patch, L tokens of the decoder, M its dim,
K taps of a side of a convolution, I its inputs for one output, O its outputs.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from openafm.bundle import Bundle
from openafm.bundle.errors import BundleError
from openafm.compression.int8_rows import with_vision_for_products
from openafm.models.vision.config import (
    GlobalScopeConfig,
    RegisterWindowScopeConfig,
    VisionLayerConfig,
    WindowScopeConfig,
)
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.pixel_shuffle_config import PixelShuffleAdapterConfig
from openafm.models.vision.pooling import pooling_of_taps
from openafm.runtime.native.vision_parts import TowerParts, Weights
from openafm.runtime.native.vision_stem import check_stem, convolved, fold_normalization

Floats = NDArray[np.float32]
_CUBIC = -0.75  # the coefficient of torch's bicubic interpolation


class LazyVisionTower:
    """The vision encoder of a bundle, loaded for the first image after a release. Safe to share between threads."""

    def __init__(self, bundle: Bundle, num_threads: int, kernels: str | None) -> None:
        self._bundle, self._num_threads, self._kernels = bundle, num_threads, kernels
        self._tower: VisionTower | None = None
        self._loading = threading.Lock()

    def encode(self, views_VYXC: NDArray[np.uint8], num_tokens: int) -> Floats:
        """See `VisionTower.encode`. The bundle's config is a `MultimodalConfig`.

        Raises:
            BundleError: the vision weights do not fit the config.
        """
        try:
            return self._loaded().encode(views_VYXC, num_tokens)
        except (ValueError, KeyError) as error:
            raise BundleError(f"{self._bundle.path}: the vision weights do not fit config.json: {error}") from error

    def _loaded(self) -> VisionTower:
        with self._loading:
            if self._tower is None:
                tensors = with_vision_for_products(self._bundle.tensors(), self._bundle.numerics)
                config = cast(MultimodalConfig, self._bundle.config)
                self._tower = VisionTower(config, tensors, num_threads=self._num_threads, kernels=self._kernels)
            return self._tower

    def release(self) -> None:
        """Free the memory, once running calls have ended."""
        with self._loading:
            self._tower = None


class VisionTower:
    """Encodes views as the embeddings of image tokens.

    Args:
        tensors: the bundle's, in fp32; matrices with rounded inputs in int8 with their scales.
        kernels: name of a kernel set; None for the best of this processor.
    """

    def __init__(
        self,
        config: MultimodalConfig,
        tensors: Mapping[str, NDArray[Any]],
        *,
        num_threads: int = 1,
        kernels: str | None = None,
    ) -> None:
        self._config, self._vision = config, config.vision
        self._weights: Weights = {
            name: np.ascontiguousarray(tensor, np.int8 if tensor.dtype == np.int8 else np.float32)
            for name, tensor in tensors.items()
            if name.startswith(("vision.", "adapter."))
        }
        check_stem(self._vision, self._weights)
        fold_normalization(self._vision, self._weights)
        self._fold_layer_scales()
        self._parts = TowerParts(self._weights, num_threads, kernels)
        self._one_at_a_time = threading.Lock()

    def encode(self, views_VYXC: NDArray[np.uint8], num_tokens: int) -> Floats:
        """Return the embeddings of views, `num_tokens` of each, [V * num_tokens, M]."""
        side = math.isqrt(num_tokens)
        with self._one_at_a_time:
            embeddings = [self._encoded(view_YXC, side) for view_YXC in views_VYXC]
        if wrong := next((len(each) for each in embeddings if len(each) != num_tokens), 0):
            raise ValueError(f"a view of {views_VYXC.shape[1]} pixels has {wrong} tokens, not {num_tokens}")
        return np.concatenate(embeddings)

    def states(self, view_YXC: NDArray[np.uint8]) -> Floats:
        """Return the encoder's output for a view, without the adapter: registers, then patches row by row, [T, D].

        One call at a time.
        """
        image_side = len(view_YXC)
        x_1YXC: NDArray[Any] = convolved(self._vision, self._parts, view_YXC[None]) if self._vision.stem else view_YXC[None]
        if not self._vision.layers:
            return x_1YXC.reshape(-1, self._vision.dim)
        x_1NWD = self._embedded(x_1YXC, image_side)
        num_windows, num_registers = x_1NWD.shape[1], self._vision.num_registers
        x_TD = np.concatenate([self._weights["vision.registers_RD"], x_1NWD.reshape(-1, self._vision.dim)])
        for index, layer in enumerate(self._vision.layers):
            x_TD = self._layer(f"vision.layers.{index}", layer, self._vision.norm_eps, x_TD, num_windows)
        if self._vision.final_norm:
            x_TD = self._parts.norm("vision.norm", self._vision.norm_eps, x_TD)
        x_TD[num_registers:] = self._rows_from_windows(x_TD[num_registers:], self._vision.grid_side(image_side))
        return x_TD

    def _encoded(self, view_YXC: NDArray[np.uint8], tokens_side: int) -> Floats:
        grid, x_TD, adapter = self._vision.grid_side(len(view_YXC)), self.states(view_YXC), self._config.adapter
        patches_YXD = x_TD[self._vision.num_registers :].reshape(grid, grid, -1)
        if isinstance(adapter, PixelShuffleAdapterConfig):
            return self._shuffled(adapter, patches_YXD)
        x_TD = self._parts.norm(
            "adapter.norm", adapter.norm_eps, self._layer("adapter.layer", adapter.layer, adapter.norm_eps, x_TD)
        )
        x_YXM = self._parts.linear("adapter.projection", x_TD[self._vision.num_registers :]).reshape(grid, grid, -1)
        return self._pooled(x_YXM, tokens_side)

    def _fold_layer_scales(self) -> None:
        """Multiply the matrices before a residual sum by the scale of the layer's output."""
        for name in [name for name in self._weights if name.endswith(("attention_scale", "mlp_scale"))]:
            scale_D = self._weights.pop(name)
            layer, _, kind = name.rpartition(".")
            matrix = f"{layer}.output" if kind == "attention_scale" else f"{layer}.down"
            row_scales = f"{matrix}.weight.scale"
            if row_scales in self._weights:
                self._weights[row_scales] = self._weights[row_scales] * scale_D
            else:
                self._weights[f"{matrix}.weight"] = self._weights[f"{matrix}.weight"] * scale_D[:, None]
            self._weights[f"{matrix}.bias"] = self._weights[f"{matrix}.bias"] * scale_D

    def _embedded(self, x_VYXC: NDArray[Any], image_side: int) -> Floats:
        """Return the patches of pixels, or of outputs of the stem, with their positions, window by window, [V, N, W, D]."""
        grid, side = self._vision.grid_side(image_side), self._vision.patch_side // self._vision.stem_stride
        values_VYXE = x_VYXC.reshape(len(x_VYXC), grid, side, grid, side, -1).swapaxes(2, 3)
        values_VNWE = self._windows_from_rows(values_VYXE.reshape(-1, grid, grid, self._vision.patch_inputs))
        position_YXD = interpolated(self._weights["vision.position_GGD"], grid)
        patches_VNWD = self._parts.linear("vision.patch", values_VNWE.astype(np.float32, copy=False))
        return patches_VNWD + self._windows_from_rows(position_YXD[None])

    def _windows_from_rows(self, x_VYXE: NDArray[Any]) -> NDArray[Any]:
        grid, size = x_VYXE.shape[1], x_VYXE.shape[-1]
        window = self._vision.window_side or grid
        num = grid // window
        return x_VYXE.reshape(-1, num, window, num, window, size).swapaxes(2, 3).reshape(-1, num**2, window**2, size)

    def _rows_from_windows(self, x_PD: Floats, grid: int) -> Floats:
        window = self._vision.window_side or grid
        num = grid // window
        return x_PD.reshape(num, num, window, window, -1).swapaxes(1, 2).reshape(x_PD.shape)

    def _layer(self, name: str, config: VisionLayerConfig, eps: float, x_TD: Floats, num_windows: int = 1) -> Floats:
        """Return the output of a layer; see `models.vision.encoder.VisionLayer`."""
        parts = self._parts
        qkv_TD = parts.linear(f"{name}.query_key_value", parts.norm(f"{name}.attention_norm", eps, x_TD))
        o_TD = self._attended(config, qkv_TD.reshape(len(x_TD), 3, config.num_heads, -1), num_windows)
        attended_TD = parts.linear(f"{name}.output", o_TD)
        attended_TD += x_TD
        return parts.feed_forward(f"{name}.mlp_norm", f"{name}.up", f"{name}.down", eps, attended_TD)

    def _attended(self, config: VisionLayerConfig, qkv_T3HC: Floats, num_windows: int) -> Floats:
        """Return the attention output of all tokens of a view, [T, D]; see `models.vision.scopes`."""
        num_registers, scope = self._vision.num_registers, config.scope
        if isinstance(scope, GlobalScopeConfig) or (num_windows == 1 and isinstance(scope, RegisterWindowScopeConfig)):
            return self._parts.attention(qkv_T3HC, num_shared=0, num_windows=1)[0]
        if isinstance(scope, WindowScopeConfig):
            patches_NWD = self._parts.attention(qkv_T3HC[num_registers:], num_shared=0, num_windows=num_windows)
            dim = patches_NWD.shape[-1]
            return np.concatenate([np.zeros((num_registers, dim), np.float32), patches_NWD.reshape(-1, dim)])
        o_NSD = self._parts.attention(qkv_T3HC, num_shared=num_registers, num_windows=num_windows)
        patches_PD = o_NSD[:, num_registers:].reshape(-1, o_NSD.shape[-1])
        return np.concatenate([o_NSD[:, :num_registers].mean(axis=0), patches_PD])

    def _shuffled(self, config: PixelShuffleAdapterConfig, x_YXD: Floats) -> Floats:
        """Return the tokens of a grid of patches; see `models.vision.pixel_shuffle`."""
        tokens_side = len(x_YXD) // config.factor
        x_TFTFD = x_YXD.reshape(tokens_side, config.factor, tokens_side, config.factor, -1)
        x_LJ = self._parts.norm("adapter.norm", config.norm_eps, x_TFTFD.swapaxes(1, 2).reshape(tokens_side**2, -1))
        return self._parts.linear("adapter.down", self._parts.linear("adapter.up", x_LJ, has_gelu=True))

    def _pooled(self, x_YXM: Floats, tokens_side: int) -> Floats:
        grid, _, dim = x_YXM.shape
        rows_TKY = pooling_of_taps(grid, tokens_side)
        rows_PY = rows_TKY.reshape(-1, grid)  # P: a token and its tap
        x_PXM = (rows_PY @ x_YXM.reshape(grid, -1)).reshape(-1, grid, dim)
        x_TKSJM = np.matmul(rows_PY, x_PXM).reshape(*rows_TKY.shape[:2], *rows_TKY.shape[:2], dim)
        # [row, column, tap of rows, tap of columns, dim]
        return self._parts.linear("adapter.convolution.taps", x_TKSJM.swapaxes(1, 2).reshape(tokens_side**2, -1))


def interpolated(position_GGD: Floats, grid: int) -> Floats:
    """Return position embeddings of another grid by bicubic interpolation, as `models.vision.encoder.interpolated`."""
    if grid == len(position_GGD):
        return position_GGD
    weights_YG = _cubic_weights(len(position_GGD), grid)
    rows_YGD = np.tensordot(weights_YG, position_GGD, axes=(1, 0))
    return np.ascontiguousarray(np.tensordot(weights_YG, rows_YGD, axes=(1, 1)).swapaxes(0, 1))


def _cubic_weights(size: int, new_size: int) -> Floats:
    """Return the weights of the old positions for each new one, [new, old]; positions beyond the border repeat it."""
    weights = np.zeros((new_size, size))
    for place in range(new_size):
        at = (place + 0.5) * size / new_size - 0.5
        first = math.floor(at)
        for tap in range(-1, 3):
            weights[place, min(max(first + tap, 0), size - 1)] += _cubic(abs(at - first - tap))
    return weights.astype(np.float32)


def _cubic(distance: float) -> float:
    a = _CUBIC
    if distance <= 1:
        return ((a + 2) * distance - (a + 3)) * distance**2 + 1
    return ((distance - 5) * distance + 8) * distance * a - 4 * a if distance < 2 else 0.0
