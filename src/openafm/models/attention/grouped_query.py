"""Grouped-query attention with QK-norm on its own keys and values or an earlier layer's (report 2.1).

The attention context stores keys and values and applies the mask.

Shapes: B batch, S sequence, D model dim, H heads, K key/value heads, C head dim.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from openafm.models.attention.context import AttentionContext
from openafm.models.config import AttentionConfig, OwnKeysValuesConfig, SharedKeysValuesConfig
from openafm.models.layers import Linear, RMSNorm, Sublayer


class KeysValues(nn.Module):
    """Project, normalize, rotate and store the keys and values of one layer.

    `slot` is applied to keys and to values before they are stored, identity by default; compression puts KV quantization
    there.
    """

    def __init__(self, config: AttentionConfig, num_kv_heads: int, dim: int) -> None:
        super().__init__()
        self.num_kv_heads, self.head_dim = num_kv_heads, config.head_dim
        self.key = Linear(dim, num_kv_heads * config.head_dim, config.input_bias)
        self.value = Linear(dim, num_kv_heads * config.head_dim, config.input_bias)
        self.key_norm = None if config.qk_norm is None else RMSNorm(config.head_dim, config.qk_norm.eps)
        self.slot: nn.Module = nn.Identity()
        self._config = config

    def forward(self, x_BSD: Tensor, context: AttentionContext, layer: int) -> None:
        k_BSKC = self.key(x_BSD).unflatten(-1, (self.num_kv_heads, self.head_dim))
        v_BSKC = self.value(x_BSD).unflatten(-1, (self.num_kv_heads, self.head_dim))
        k_BSKC = _norm_and_position(k_BSKC, self.key_norm, self._config, context)
        context.store(layer, self.slot(k_BSKC), self.slot(v_BSKC))

    def initialize(self, generator: torch.Generator) -> None:
        self.key.initialize(generator)
        self.value.initialize(generator)
        if self.key_norm is not None:
            self.key_norm.initialize()


class BaseAttention(Sublayer):
    """Base of the attention kinds. Storing and reading are separate: a position without a wanted output only stores."""

    @abstractmethod
    def store(self, x_BSD: Tensor, context: AttentionContext) -> None:
        """Store these positions' keys and values in the context; does nothing if the layer reads another layer's."""

    @abstractmethod
    def forward(self, x_BSD: Tensor, context: AttentionContext) -> Tensor:
        """Return the attention output of these positions over the keys and values in the context, their own included."""


class Attention(BaseAttention):
    """Attention of layer number `layer`; with shared keys and values it has query and output projections only.

    `slot` is applied to the queries before attention, identity by default; attention computes in the dtype of its output.
    """

    def __init__(self, config: AttentionConfig, dim: int, layer: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.mask = config.num_heads, config.head_dim, config.mask
        self.position, self._config, self._layer = config.position, config, layer
        inner_dim = config.num_heads * config.head_dim
        self.query = Linear(dim, inner_dim, config.input_bias)
        self.query_norm = None if config.qk_norm is None else RMSNorm(config.head_dim, config.qk_norm.eps)
        self.output = Linear(inner_dim, dim, config.output_bias)
        self.slot: nn.Module = nn.Identity()
        match config.keys_values:
            case OwnKeysValuesConfig(num_heads=num_kv_heads):
                self.keys_values: KeysValues | None = KeysValues(config, num_kv_heads, dim)
                self._source = layer
            case SharedKeysValuesConfig(layer=source):
                self.keys_values = None
                self._source = source

    def store(self, x_BSD: Tensor, context: AttentionContext) -> None:
        if self.keys_values is not None:
            self.keys_values(x_BSD, context, self._layer)

    def forward(self, x_BSD: Tensor, context: AttentionContext) -> Tensor:
        q_BSHC = self.query(x_BSD).unflatten(-1, (self.num_heads, self.head_dim))
        q_BSHC = _norm_and_position(q_BSHC, self.query_norm, self._config, context)
        o_BSHC = context.attend(self._source, self.slot(q_BSHC), self.mask)
        return self.output(o_BSHC.flatten(-2).to(x_BSD.dtype))

    def initialize(self, generator: torch.Generator, residual_scale: float) -> None:
        self.query.initialize(generator)
        if self.query_norm is not None:
            self.query_norm.initialize()
        if self.keys_values is not None:
            self.keys_values.initialize(generator)
        self.output.initialize(generator, residual_scale)


def _norm_and_position(x_BSHC: Tensor, norm: RMSNorm | None, config: AttentionConfig, context: AttentionContext) -> Tensor:
    """Return queries or keys with QK-norm and position embedding applied in the config's order."""
    norm_comes_first = config.qk_norm is not None and config.qk_norm.order == "before_position"
    if norm is not None and norm_comes_first:
        x_BSHC = norm(x_BSHC)
    if config.position is not None:
        x_BSHC = context.position_embedding(config.position, config.head_dim).apply(x_BSHC)
    if norm is not None and not norm_comes_first:
        x_BSHC = norm(x_BSHC)
    return x_BSHC
