"""Attention and position embeddings as data. Imports no tensor library."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Literal

from openafm.core.config import Config
from openafm.models.activations import Microbatch, attention_bytes
from openafm.models.attention.masks import BidirectionalMask, CausalMask, Mask, PrefixMask

if TYPE_CHECKING:
    from torch import Tensor

    from openafm.models.attention.grouped_query import BaseAttention
    from openafm.models.attention.position_embedding import PositionEmbedding


@dataclass(frozen=True, kw_only=True)
class PositionConfig(Config, ABC):
    """Base of the position embeddings, applied to queries and keys. `None` in its place means NoPE."""

    @abstractmethod
    def build(self, positions_BS: Tensor, head_dim: int) -> PositionEmbedding:
        """Return the embedding of a batch with these positions."""

    def check_head_dim(self, head_dim: int) -> None:
        """Raise `ConfigError` unless the embedding applies to heads of this dim."""


@dataclass(frozen=True, kw_only=True)
class RotaryConfig(PositionConfig):
    """Rotary position embedding (arXiv 2104.09864).

    `layout` selects the pairs of channels that rotate together: "interleaved" is (0, 1), (2, 3), ... as in the report's
    models; "half" is (0, C/2), (1, C/2 + 1), ... as in most open-weight models.
    """

    theta: float = 500_000.0
    layout: Literal["interleaved", "half"] = "interleaved"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            self.require(not isinstance(value, float) or math.isfinite(value), f"{field.name} must be finite, got {value}")
        self.require(self.theta > 0, f"theta must be positive, got {self.theta}")

    @property
    def amplitude(self) -> float:
        """The factor of sines and cosines."""
        return 1.0

    def build(self, positions_BS: Tensor, head_dim: int) -> PositionEmbedding:
        from openafm.models.attention.rotary import Rotation

        return Rotation(self, positions_BS, head_dim)

    def check_head_dim(self, head_dim: int) -> None:
        self.require(head_dim % 2 == 0, f"head_dim must be even to rotate pairs of channels, got {head_dim}")


@dataclass(frozen=True, kw_only=True)
class LinearRotaryConfig(RotaryConfig):
    """Rotary embedding of positions divided by `factor`, for a longer context (arXiv 2306.15595)."""

    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.factor >= 1, f"factor must be at least 1, got {self.factor}")

    def build(self, positions_BS: Tensor, head_dim: int) -> PositionEmbedding:
        from openafm.models.attention.rotary import LinearRotation

        return LinearRotation(self, positions_BS, head_dim)


@dataclass(frozen=True, kw_only=True)
class Llama3RotaryConfig(RotaryConfig):
    """Rotary embedding with the low frequencies divided by `factor`, for a longer context: Llama 3.1 (arXiv 2407.21783).

    A frequency is divided if it makes fewer than `low_turns` turns within `original_context_length` tokens, and kept if it
    makes more than `high_turns`; in between the two are interpolated.
    """

    FORMER_NAMES: ClassVar[tuple[str, ...]] = ("BandedRotaryConfig",)

    factor: float
    low_turns: float
    high_turns: float
    original_context_length: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.factor >= 1, f"factor must be at least 1, got {self.factor}")
        self.require(0 < self.low_turns < self.high_turns, "low_turns must be positive and below high_turns")
        self.require(self.original_context_length > 0, "original_context_length must be positive")

    def build(self, positions_BS: Tensor, head_dim: int) -> PositionEmbedding:
        from openafm.models.attention.rotary import Llama3Rotation

        return Llama3Rotation(self, positions_BS, head_dim)


@dataclass(frozen=True, kw_only=True)
class YarnRotaryConfig(RotaryConfig):
    """Rotary embedding with the low frequencies divided by `factor`, and longer queries and keys: YaRN (arXiv 2309.00071).

    Pairs up to the one that makes `fast_turns` turns within `original_context_length` tokens keep their frequency; from the
    one that makes `slow_turns` on they are divided. Between these bounds, by default the whole numbers around them, the kept
    share falls linearly with the number of the pair. Sines and cosines are multiplied by `attention_factor`.
    """

    factor: float
    original_context_length: int
    attention_factor: float
    fast_turns: float = 32.0
    slow_turns: float = 1.0
    bounds: Literal["whole", "exact"] = "whole"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.theta > 1, f"theta must be above 1, got {self.theta}")
        self.require(self.factor >= 1, f"factor must be at least 1, got {self.factor}")
        self.require(self.original_context_length > 0, "original_context_length must be positive")
        self.require(self.attention_factor > 0, f"attention_factor must be positive, got {self.attention_factor}")
        self.require(0 < self.slow_turns < self.fast_turns, "slow_turns must be positive and below fast_turns")

    def build(self, positions_BS: Tensor, head_dim: int) -> PositionEmbedding:
        from openafm.models.attention.rotary import YarnRotation

        return YarnRotation(self, positions_BS, head_dim)

    @property
    def amplitude(self) -> float:
        return self.attention_factor

    def kept_shares(self, head_dim: int) -> tuple[float, ...]:
        """Return for each pair the share of its frequency that is kept; the rest is divided by `factor`."""
        first, last = (
            head_dim * math.log(self.original_context_length / (turns * 2 * math.pi)) / (2 * math.log(self.theta))
            for turns in (self.fast_turns, self.slow_turns)
        )
        if self.bounds == "whole":
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, head_dim - 1)
        span = (last - first) or 0.001
        return tuple(1 - min(max((pair - first) / span, 0.0), 1.0) for pair in range(head_dim // 2))


def yarn_attention_factor(factor: float, scale: float = 1.0) -> float:
    """Return the attention factor that YaRN proposes for a context that is `factor` times longer."""
    return 1 + 0.1 * scale * math.log(factor) if factor > 1 else 1.0


@dataclass(frozen=True, kw_only=True)
class QKNormConfig(Config):
    """RMSNorm over the head dim of queries and keys; all heads share its weight (arXiv 2302.05442).

    `order` places it after the position embedding, as in the report's models, or before it, as in most open-weight models.
    The two are equal only while all channels have the same weight.
    """

    eps: float = 1e-5
    order: Literal["after_position", "before_position"] = "after_position"

    def __post_init__(self) -> None:
        self.require(self.eps > 0, f"eps must be positive, got {self.eps}")


@dataclass(frozen=True, kw_only=True)
class OwnKeysValuesConfig(Config):
    """The layer projects its own keys and values, with `num_heads` key/value heads (grouped-query attention)."""

    num_heads: int


@dataclass(frozen=True, kw_only=True)
class SharedKeysValuesConfig(Config):
    """The layer reads the keys and values that the earlier layer `layer` stored: KV-cache sharing (report 2.1)."""

    layer: int


@dataclass(frozen=True, kw_only=True)
class BaseAttentionConfig(Config, ABC):
    """Base of the attention kinds: what decoders, caches and accounting read.

    `window` counts the keys that a query sees, the one at its own position included; None sees all. The accounting methods
    count one track and have defaults for grouped-query attention; a multiply-add is two operations.
    """

    num_heads: int
    head_dim: int
    keys_values: OwnKeysValuesConfig | SharedKeysValuesConfig
    window: int | None = None

    def __post_init__(self) -> None:
        self.require(self.num_heads > 0 and self.head_dim > 0, "num_heads and head_dim must be positive")
        self.require(self.window is None or self.window > 0, f"window must be positive, got {self.window}")
        if isinstance(self.keys_values, OwnKeysValuesConfig):
            kv_heads = self.keys_values.num_heads
            self.require(
                kv_heads > 0 and self.num_heads % kv_heads == 0,
                f"num_heads ({self.num_heads}) must be a multiple of the key/value heads ({kv_heads})",
            )

    @abstractmethod
    def build(self, dim: int, layer: int) -> BaseAttention:
        """Return the module of layer number `layer`."""

    @property
    def mask(self) -> Mask:
        """Which positions of its document a query sees."""
        return CausalMask(self.window)

    @property
    def num_own_kv_heads(self) -> int:
        """Key/value heads that the layer itself stores; 0 for a layer that reads another layer's."""
        return self.keys_values.num_heads if isinstance(self.keys_values, OwnKeysValuesConfig) else 0

    @property
    def kv_vectors(self) -> int:
        """Vectors of `head_dim` numbers that the layer stores for each token: a key and a value per head."""
        return 2 * self.num_own_kv_heads

    def num_parameters(self, dim: int) -> int:
        """Return the number of weights. The default counts the built module without allocating it, which imports torch."""
        from openafm.models.layers import count_parameters

        return count_parameters(lambda: self.build(dim, layer=0))

    def matrix_parameters(self, dim: int) -> int:
        """Return the number of weights in matrices."""
        return 2 * dim * self.head_dim * (self.num_heads + self.num_own_kv_heads)

    def store_flops(self, dim: int) -> int:
        """Return the floating-point operations of one token's key and value projections."""
        return 2 * dim * self.kv_vectors * self.head_dim

    def read_flops(self, dim: int) -> int:
        """Return the floating-point operations of one token's query and output projections."""
        return 2 * dim * 2 * self.num_heads * self.head_dim

    @property
    def pair_flops(self) -> int:
        """Floating-point operations of one query and one key: the score, and the value's share of the output."""
        return 4 * self.num_heads * self.head_dim

    def saved_bytes(self, batch: Microbatch, num_kv_heads: int, tracks: int = 1) -> int:
        """Return the bytes saved for the backward pass between projections; the layer reads `num_kv_heads` heads."""
        return attention_bytes(
            self.mask,
            num_heads=self.num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=self.head_dim,
            is_own=self.num_own_kv_heads > 0,
            has_norms=False,
            tracks=tracks,
            batch=batch,
        )


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(BaseAttentionConfig):
    """Grouped-query attention (arXiv 2305.13245). `position` None means NoPE; `qk_norm` None means no such norm."""

    position: PositionConfig | None = RotaryConfig()
    qk_norm: QKNormConfig | None = QKNormConfig()
    input_bias: bool = False
    output_bias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.position is not None:
            self.position.check_head_dim(self.head_dim)

    def build(self, dim: int, layer: int) -> BaseAttention:
        from openafm.models.attention.grouped_query import Attention

        return Attention(self, dim, layer)

    def num_parameters(self, dim: int) -> int:
        queries, keys = self.num_heads * self.head_dim, self.num_own_kv_heads * self.head_dim
        norms = 0 if self.qk_norm is None else self.head_dim * (2 if keys else 1)
        biases = self.input_bias * (queries + 2 * keys) + self.output_bias * dim
        return self.matrix_parameters(dim) + norms + biases

    def saved_bytes(self, batch: Microbatch, num_kv_heads: int, tracks: int = 1) -> int:
        return attention_bytes(
            self.mask,
            num_heads=self.num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=self.head_dim,
            is_own=self.num_own_kv_heads > 0,
            has_norms=self.qk_norm is not None,
            tracks=tracks,
            batch=batch,
        )


@dataclass(frozen=True, kw_only=True)
class PrefixAttentionConfig(AttentionConfig):
    """Causal attention in which the positions of an embedding span, such as an image, also see each other."""

    @property
    def mask(self) -> Mask:
        return PrefixMask(self.window)


@dataclass(frozen=True, kw_only=True)
class BidirectionalAttentionConfig(AttentionConfig):
    """Attention of every position to every position of its document, as in an encoder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.window is None, f"bidirectional attention has no window, got {self.window}; use null")

    @property
    def mask(self) -> Mask:
        return BidirectionalMask()
