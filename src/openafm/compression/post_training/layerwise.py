"""GPTQ of a model whose layers are read one at a time: memory holds one layer in fp32 and its inputs.

For each layer in order: `begin` reads its weights and collects the second moments of the inputs of its matrices, `quantize`
rounds a matrix, `finish` computes the layer's outputs with the rounded weights, so that later layers compensate the errors.

Shapes: B rows, S tokens of a row, D model dim, R outputs, C inputs of a matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from openafm.compression.errors import UncompressibleModelError
from openafm.compression.grouped import GroupedMatrix, GroupFormat
from openafm.compression.post_training.calibration import Moments, out_of_memory_explained
from openafm.compression.post_training.config import GPTQConfig
from openafm.compression.post_training.groups import Floats
from openafm.models.attention.context import WholeRows
from openafm.models.config import DecoderConfig
from openafm.models.decoder import Layer
from openafm.models.layers import Linear


class LayerwiseGPTQ:
    """Rounds the matrices of a model layer by layer, calibrated on the given inputs.

    Args:
        embedded_BSD: the embeddings of the calibration tokens, the input of the first layer.

    Raises:
        UncompressibleModelError: layers share keys and values, or the model has tracks.
    """

    def __init__(self, config: DecoderConfig, embedded_BSD: NDArray[np.float32], method: GPTQConfig | None = None) -> None:
        if config.tracks is not None or len(config.own_layers) < len(config.layers):
            raise UncompressibleModelError("GPTQ layer by layer needs layers with their own keys and values, without tracks")
        self._config, self._method = config, method or GPTQConfig()
        self._rows_1SD = list(torch.from_numpy(embedded_BSD).split(1))
        self._layer: Layer | None = None
        self._moments: Mapping[str, Tensor] = {}

    @torch.no_grad()
    def begin(self, index: int, weights: Mapping[str, NDArray[np.float32]]) -> None:
        """Collect the second moments of a layer with its original weights, named as in the layer."""
        with torch.device("meta"):
            self._layer = layer = Layer(self._config.layers[index], self._config.dim, index, self._config.norm_eps)
        _load(layer, weights)
        prefix = f"layers.{index}."
        linears = {prefix + name: module for name, module in layer.named_modules() if isinstance(module, Linear)}
        with out_of_memory_explained("calibration"):
            moments = Moments(linears)
            with moments.gathering():
                for x_1SD in self._rows_1SD:
                    moments.positions_N = torch.arange(x_1SD.shape[1])
                    layer(x_1SD, self._context(x_1SD))
            self._moments = moments.complete()

    def quantize(self, name: str, weight_RC: Floats, format: GroupFormat) -> GroupedMatrix:
        """Return a matrix of the current layer rounded by GPTQ; to nearest in formats of 8 bits or without minima."""
        if not format.has_minimum:
            return format.quantize(weight_RC, name)
        method = replace(self._method, bits=format.bits, group=format.group)
        return GroupedMatrix.from_groups(method.quantize(torch.from_numpy(weight_RC), self._moments[name], name), format)

    @torch.no_grad()
    def finish(self, index: int, weights: Mapping[str, NDArray[np.float32]]) -> None:
        """Compute the outputs of a layer with its rounded weights: the inputs of the next layer."""
        with torch.device("meta"):
            layer = Layer(self._config.layers[index], self._config.dim, index, self._config.norm_eps)
        _load(layer, weights)
        self._layer, self._moments = None, {}
        with out_of_memory_explained("calibration"):
            self._rows_1SD = [layer(x_1SD, self._context(x_1SD)) for x_1SD in self._rows_1SD]

    def _context(self, x_1SD: Tensor) -> WholeRows:
        return WholeRows(1, x_1SD.shape[1])


def _load(layer: nn.Module, weights: Mapping[str, NDArray[np.float32]]) -> None:
    layer.load_state_dict({name: torch.from_numpy(np.array(weight)) for name, weight in weights.items()}, assign=True)
