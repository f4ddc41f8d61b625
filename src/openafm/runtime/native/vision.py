"""The vision encoder and the adapter of a bundle on the native kernels: the same function as `models/vision`, without torch.

Shapes: V views, Y and X pixels or patches of a side, N windows of W patches, R registers, T tokens of a view, S tokens that
attend to each other, H heads, C head dim, D encoder dim, E values of a patch, L tokens of the decoder, M its dim,
K taps of a side of a convolution, I its inputs for one output, O its outputs. Of letters: P cells of a view, K classes,
N cells of a token, F patches of a token's side, C cells of a patch, B tokens to the left of another, E any values.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from openafm.bundle import Bundle
from openafm.bundle.errors import BundleError
from openafm.compression.errors import CompressionError
from openafm.compression.grouped import FORMATS, GroupedMatrix
from openafm.compression.int8_rows import with_vision_for_products
from openafm.models.vision.config import (
    GlobalScopeConfig,
    RegisterWindowScopeConfig,
    VisionLayerConfig,
    WindowScopeConfig,
)
from openafm.models.vision.letters import LETTER_TOKENS, NO_LETTER, NUM_CLASSES
from openafm.models.vision.letters_adapter_config import LettersAdapterConfig
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.pixel_shuffle_config import PixelShuffleAdapterConfig
from openafm.models.vision.pooling import pooling_of_taps
from openafm.runtime.native.vision_parts import TowerParts, Weights

Floats = NDArray[np.float32]
NEIGHBORHOOD_BYTES = 500_000
"""Inputs of a convolution that are made at once: they stay in the cache until they are multiplied."""
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
        except (ValueError, KeyError, CompressionError) as error:
            raise BundleError(f"{self._bundle.path}: the vision weights do not fit config.json: {error}") from error

    def _loaded(self) -> VisionTower:
        with self._loading:
            if self._tower is None:
                numerics, config = self._bundle.numerics, cast(MultimodalConfig, self._bundle.config)
                tensors = with_vision_for_products(self._bundle.tensors(), numerics)
                if isinstance(config.adapter, LettersAdapterConfig) and numerics.embedding in FORMATS:
                    format, shape = FORMATS[numerics.embedding], (config.vocab_size, config.dim)
                    tensors["embedding"] = GroupedMatrix.from_tensors("embedding", tensors, format, shape).dequantize()
                self._tower = VisionTower(config, tensors, num_threads=self._num_threads, kernels=self._kernels)
            return self._tower

    def release(self) -> None:
        """Free the memory, once running calls have ended."""
        with self._loading:
            self._tower = None


class VisionTower:
    """Encodes views as the embeddings of image tokens.

    Args:
        tensors: the bundle's, in fp32; matrices with rounded inputs in int8 with their scales. An adapter of letters
            uses the decoder's embedding.
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
        if isinstance(config.adapter, LettersAdapterConfig):
            table_KD = tensors["embedding"][LETTER_TOKENS.start : LETTER_TOKENS.stop]
            self._letter_embeddings_KM = np.array(table_KD, np.float32)  # a copy: the embedding is freed
            self._check_letters(config.adapter)
        self._check_stem()
        self._fold_normalization()
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
        x_1YXC: NDArray[Any] = self._stem(view_YXC[None]) if self._vision.stem else view_YXC[None]
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
        match adapter:
            case PixelShuffleAdapterConfig():
                return self._shuffled(adapter, patches_YXD)
            case LettersAdapterConfig():
                return self._letters(adapter, patches_YXD)
        x_TD = self._parts.norm(
            "adapter.norm", adapter.norm_eps, self._layer("adapter.layer", adapter.layer, adapter.norm_eps, x_TD)
        )
        x_YXM = self._parts.linear("adapter.projection", x_TD[self._vision.num_registers :]).reshape(grid, grid, -1)
        return self._pooled(x_YXM, tokens_side)

    def _check_stem(self) -> None:
        """Check the matrices of the convolutions before memory is taken for their inputs.

        Raises:
            ValueError, KeyError: a matrix has another shape than the config gives it, or is missing.
        """
        for index, (convolution, num_inputs) in enumerate(zip(self._vision.stem, self._vision.stem_inputs, strict=True)):
            name, expected = f"vision.stem.convolutions.{index}.product.weight", (convolution.channels, num_inputs)
            if self._weights[name].shape != expected:
                raise ValueError(f"{name} has the shape {self._weights[name].shape}, expected {expected}")

    def _check_letters(self, adapter: LettersAdapterConfig) -> None:
        scales = (adapter.cells_of_token, self._config.dim)
        for name, expected in (
            ("letters.weight", (math.prod(adapter.cells) * NUM_CLASSES, self._vision.dim)),
            ("scale_ND", scales),
            ("scale_before_PND", (adapter.num_before, *scales)),
        ):
            found = self._weights[f"adapter.{name}"].shape
            if found != expected:
                raise ValueError(f"adapter.{name} has the shape {found}, expected {expected}")

    def _fold_normalization(self) -> None:
        """Make the first product one of pixels from 0 to 255: (p / 255 - mean) / std is a factor and an offset."""
        name = "vision.stem.convolutions.0.product" if self._vision.stem else "vision.patch"
        weight_RI = self._weights[f"{name}.weight"].astype(np.float32)
        mean_I, std_I = (
            np.tile(np.array(each), weight_RI.shape[1] // 3) for each in (self._vision.pixel_mean, self._vision.pixel_std)
        )
        scaled_RI = weight_RI / std_I
        self._weights[f"{name}.weight"] = (scaled_RI / 255).astype(np.float32)
        self._weights[f"{name}.bias"] = (self._weights[f"{name}.bias"] - scaled_RI @ mean_I).astype(np.float32)

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

    def _stem(self, views_VYXC: NDArray[np.uint8]) -> Floats:
        """Return the outputs of the convolutions; see `models.vision.stem`."""
        x_VYXC: NDArray[Any] = views_VYXC
        border_C = 255 * np.array(self._vision.pixel_mean, np.float32)  # zero in units of standard deviations
        for index, convolution in enumerate(self._vision.stem):
            name = f"vision.stem.convolutions.{index}"
            y_VYXO = np.concatenate(
                [
                    self._parts.linear(f"{name}.product", taps_VYXI, has_gelu=True)
                    for taps_VYXI in neighborhoods(x_VYXC, convolution.kernel_side, convolution.stride, border_C)
                ],
                axis=1,
            )
            rows_PO = self._parts.norm(f"{name}.norm", self._vision.norm_eps, y_VYXO.reshape(-1, convolution.channels))
            x_VYXC, border_C = rows_PO.reshape(y_VYXO.shape), np.zeros(convolution.channels, np.float32)
        return x_VYXC

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

    def _letters(self, config: LettersAdapterConfig, x_YXD: Floats) -> Floats:
        """Return the tokens of a grid of patches; see `models.vision.letters_adapter`."""
        table_KM, tokens_side = self._letter_embeddings_KM, len(x_YXD) // config.factor
        logits_PK = self._parts.linear("adapter.letters", x_YXD.reshape(-1, x_YXD.shape[-1])).reshape(-1, NUM_CLASSES)
        exponentials_PK = np.exp(logits_PK - logits_PK.max(-1, keepdims=True))
        probabilities_PK = exponentials_PK / exponentials_PK.sum(-1, keepdims=True)
        letters_TTNM = self._by_token(config, probabilities_PK[:, 1 : 1 + len(table_KM)] @ table_KM, tokens_side)
        empty_TT1 = self._by_token(config, probabilities_PK[:, NO_LETTER, None], tokens_side).prod(2)
        tokens_TTM = np.einsum("yxnm,nm->yxm", letters_TTNM, self._weights["adapter.scale_ND"])
        before_BTTM = np.einsum("yxnm,bnm->byxm", letters_TTNM, self._weights["adapter.scale_before_PND"])
        nearest = [np.zeros((number + 1, *before_BTTM.shape[1::2]), np.float32) for number in range(config.num_before)]
        for column in range(1, tokens_side):
            empty_T1 = empty_TT1[:, column - 1]
            for number, letters_TTM in enumerate(before_BTTM):
                # [0] are the letters of the nearest token to the left that has some, [1] of the one before that, ...
                shifted_BTM = np.concatenate([letters_TTM[None, :, column - 1], (1 - empty_T1) * nearest[number][:-1]])
                nearest[number] = shifted_BTM + empty_T1 * nearest[number]
                tokens_TTM[:, column] += nearest[number][-1]
        return tokens_TTM.reshape(tokens_side**2, -1)

    def _by_token(self, config: LettersAdapterConfig, values_PE: Floats, tokens_side: int) -> Floats:
        """Return the values of cells by token, values_TTNE; cells are in the order of patches."""
        values_TFTFCE = values_PE.reshape(tokens_side, config.factor, tokens_side, config.factor, -1, values_PE.shape[1])
        return values_TFTFCE.swapaxes(1, 2).reshape(tokens_side, tokens_side, -1, values_PE.shape[1])

    def _pooled(self, x_YXM: Floats, tokens_side: int) -> Floats:
        grid, _, dim = x_YXM.shape
        rows_TKY = pooling_of_taps(grid, tokens_side)
        rows_PY = rows_TKY.reshape(-1, grid)  # P: a token and its tap
        x_PXM = (rows_PY @ x_YXM.reshape(grid, -1)).reshape(-1, grid, dim)
        x_TKSJM = np.matmul(rows_PY, x_PXM).reshape(*rows_TKY.shape[:2], *rows_TKY.shape[:2], dim)
        # [row, column, tap of rows, tap of columns, dim]
        return self._parts.linear("adapter.convolution.taps", x_TKSJM.swapaxes(1, 2).reshape(tokens_side**2, -1))


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
