"""What a decoder is made of, as data: a tuple of layer configs. Imports no tensor library.

On-device, server, draft and imported open-weight models are different tuples, not different classes. A new kind of position
embedding, attention or feed-forward is one new config class with the module that it builds; nothing that exists has to know
it (tests/models/test_new_kinds.py adds one of each).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from openafm.core.config import Config
from openafm.models.masks import BidirectionalMask, CausalMask, Mask, PrefixMask

if TYPE_CHECKING:
    from torch import Tensor

    from openafm.models.attention import BaseAttention
    from openafm.models.decoder import Decoder
    from openafm.models.layers import Sublayer
    from openafm.models.position_embedding import PositionEmbedding


@dataclass(frozen=True, kw_only=True)
class PositionConfig(Config, ABC):
    """A way to tell attention where a token stands, applied to queries and keys. `None` in its place means NoPE."""

    @abstractmethod
    def build(self, positions_BS: Tensor, head_dim: int) -> PositionEmbedding:
        """Return the embedding of a batch with these positions."""


@dataclass(frozen=True, kw_only=True)
class RotaryConfig(PositionConfig):
    """Rotary position embedding (arXiv 2104.09864).

    `layout` says which pairs of channels rotate together: "interleaved" (0,1), (2,3), ... as in the report's models, or
    "half" (0, C/2), (1, C/2 + 1), ... as in most open weights.
    """

    theta: float = 500_000.0
    layout: Literal["interleaved", "half"] = "interleaved"

    def __post_init__(self) -> None:
        self.require(self.theta > 0, f"theta must be positive, got {self.theta}")

    def build(self, positions_BS: Tensor, head_dim: int) -> PositionEmbedding:
        from openafm.models.rotary import Rotation

        return Rotation(self, positions_BS, head_dim)


@dataclass(frozen=True, kw_only=True)
class LinearRotaryConfig(RotaryConfig):
    """Rotation of positions divided by `factor`, for a longer context (arXiv 2306.15595)."""

    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.factor >= 1, f"factor must be at least 1, got {self.factor}")

    def build(self, positions_BS: Tensor, head_dim: int) -> PositionEmbedding:
        from openafm.models.rotary import LinearRotation

        return LinearRotation(self, positions_BS, head_dim)


@dataclass(frozen=True, kw_only=True)
class Llama3RotaryConfig(RotaryConfig):
    """Rotation that slow frequencies make `factor` times slower, for a longer context, as in Llama 3.1 (arXiv 2407.21783).

    A frequency is slow when it turns less than `low_turns` times within `original_context_length` tokens, and kept when it
    turns more than `high_turns` times; in between it goes over smoothly.
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
        from openafm.models.rotary import Llama3Rotation

        return Llama3Rotation(self, positions_BS, head_dim)


@dataclass(frozen=True, kw_only=True)
class QKNormConfig(Config):
    """RMSNorm over the head dim of queries and keys, its weight shared by the heads (arXiv 2302.05442).

    `order` says whether it comes after the position embedding, as in the report's models, or before it, as in most open
    weights. The two are equal only as long as the weight is the same for all channels.
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
    """The layer reads the keys and values that `layer` (an index below its own) stored: KV-cache sharing (report 2.1)."""

    layer: int


@dataclass(frozen=True, kw_only=True)
class BaseAttentionConfig(Config, ABC):
    """Base of the attention kinds: what the decoder, the caches and the accounting ask of any of them.

    `window` counts the keys that a query sees *including* the one at its own position; None sees all.
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

    @property
    def mask(self) -> Mask:
        """Which positions of its document a query sees."""
        return CausalMask(self.window)

    @abstractmethod
    def build(self, dim: int, layer: int) -> BaseAttention:
        """Return the module of layer number `layer`."""

    def store_flops(self, dim: int) -> int:
        """Floating-point operations of one token's key and value projections, a multiply-add counting as two."""
        num_kv_heads = self.keys_values.num_heads if isinstance(self.keys_values, OwnKeysValuesConfig) else 0
        return 2 * dim * 2 * num_kv_heads * self.head_dim

    def read_flops(self, dim: int) -> int:
        """The same of its query and output projections."""
        return 2 * dim * 2 * self.num_heads * self.head_dim


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(BaseAttentionConfig):
    """Grouped-query attention (arXiv 2305.13245). None as `position` means NoPE, as `qk_norm` no such norm."""

    position: PositionConfig | None = RotaryConfig()
    qk_norm: QKNormConfig | None = QKNormConfig()
    input_bias: bool = False
    output_bias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            self.head_dim % 2 == 0 or not isinstance(self.position, RotaryConfig),
            f"head_dim must be even to rotate pairs of channels, got {self.head_dim}",
        )

    def build(self, dim: int, layer: int) -> BaseAttention:
        from openafm.models.attention import Attention

        return Attention(self, dim, layer)


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


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig(Config, ABC):
    """Base of the feed-forward kinds."""

    @abstractmethod
    def build(self, dim: int) -> Sublayer:
        """Return the module; its forward takes x_BSD."""

    @abstractmethod
    def linear_flops(self, dim: int) -> int:
        """Return the floating-point operations of one token; a multiply-add counts as two."""

    def idle_parameters(self, dim: int) -> int:
        """Weights that a token does not pass; none, but for experts that are not chosen."""
        return 0


@dataclass(frozen=True, kw_only=True)
class DenseFeedForwardConfig(FeedForwardConfig):
    """Gated feed-forward: out(activation(gate(x)) * up(x)); SwiGLU with the default activation (arXiv 2002.05202)."""

    hidden_dim: int
    activation: Literal["silu", "gelu"] = "silu"
    bias: bool = False

    def __post_init__(self) -> None:
        self.require(self.hidden_dim > 0, f"hidden_dim must be positive, got {self.hidden_dim}")

    def build(self, dim: int) -> Sublayer:
        from openafm.models.feed_forward import FeedForward

        return FeedForward(self, dim)

    def linear_flops(self, dim: int) -> int:
        return 2 * 3 * dim * self.hidden_dim


@dataclass(frozen=True, kw_only=True)
class LayerConfig(Config):
    """One pre-norm transformer layer."""

    attention: BaseAttentionConfig
    feed_forward: FeedForwardConfig


@dataclass(frozen=True, kw_only=True)
class TiedHeadConfig(Config):
    """The output projection is the input embedding, transposed."""


@dataclass(frozen=True, kw_only=True)
class UntiedHeadConfig(Config):
    """The output projection has weights of its own."""


@dataclass(frozen=True, kw_only=True)
class TrackNormConfig(Config):
    """RMSNorm of each track's output before the tracks are combined, with weights of its own per block and track."""

    eps: float = 1e-5

    def __post_init__(self) -> None:
        self.require(self.eps > 0, f"eps must be positive, got {self.eps}")


@dataclass(frozen=True, kw_only=True)
class TracksConfig(Config):
    """Parallel tracks (report 2.2): transformers side by side that meet at the end of every block of `block_depth` layers.

    Each track takes the whole hidden state into a block and works on it alone; `combine` makes one state of theirs again.
    Layer configs give the heads, the feed-forward and the experts of one track.
    """

    num_tracks: int
    block_depth: int
    combine: Literal["mean", "sum"] = "mean"
    norm: TrackNormConfig | None = None

    def __post_init__(self) -> None:
        self.require(self.num_tracks > 0, f"num_tracks must be at least 1, got {self.num_tracks}")
        self.require(self.block_depth > 0, f"block_depth must be at least 1, got {self.block_depth}")


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(Config):
    """A whole language model: embedding, layers in order, final norm, head. `context_length` is in tokens.

    With `tracks`, every layer exists once per track; embedding, final norm and head are outside the tracks.
    """

    vocab_size: int
    dim: int
    layers: tuple[LayerConfig, ...]
    head: TiedHeadConfig | UntiedHeadConfig = TiedHeadConfig()
    norm_eps: float = 1e-5
    context_length: int = 4096
    tracks: TracksConfig | None = None

    def __post_init__(self) -> None:
        self.require(self.vocab_size > 0 and self.dim > 0, "vocab_size and dim must be positive")
        self.require(len(self.layers) > 0, "a decoder needs at least one layer")
        self.require(self.norm_eps > 0, f"norm_eps must be positive, got {self.norm_eps}")
        self.require(self.context_length > 0, f"context_length must be positive, got {self.context_length}")
        self.require(
            self.tracks is None or len(self.layers) % self.tracks.block_depth == 0,
            f"{len(self.layers)} layers do not divide into track blocks of {self.tracks and self.tracks.block_depth}",
        )
        for index, layer in enumerate(self.layers):
            if isinstance(layer.attention.keys_values, SharedKeysValuesConfig):
                self._check_source(index, layer.attention, layer.attention.keys_values.layer)

    @property
    def num_tracks(self) -> int:
        """How often each layer exists; 1 without tracks."""
        return 1 if self.tracks is None else self.tracks.num_tracks

    @property
    def own_layers(self) -> tuple[int, ...]:
        """Indices of the layers that project, and so cache, keys and values."""
        return tuple(
            index for index, layer in enumerate(self.layers) if isinstance(layer.attention.keys_values, OwnKeysValuesConfig)
        )

    @property
    def num_prefill_layers(self) -> int:
        """Layers that every prompt position passes: up to the last one that stores keys and values.

        Positions whose output nobody asks for only store there, and skip what follows, which reads other layers' alone.
        """
        return self.own_layers[-1] + 1

    def kv_heads(self, index: int) -> int:
        """Key/value heads of all tracks that layer `index` reads, its own or its source's."""
        return self.num_tracks * self._kv_heads_of_a_track(index)

    def build(self, seed: int = 0) -> Decoder:
        """The module with freshly initialized weights, or without storage under `torch.device("meta")`."""
        from openafm.models.decoder import Decoder

        return Decoder(self, seed)

    def _kv_heads_of_a_track(self, index: int) -> int:
        keys_values = self.layers[index].attention.keys_values
        if isinstance(keys_values, SharedKeysValuesConfig):
            return self._kv_heads_of_a_track(keys_values.layer)
        return keys_values.num_heads

    def _check_source(self, index: int, attention: BaseAttentionConfig, source: int) -> None:
        self.require(
            0 <= source < index and source in self.own_layers,
            f"layer {index} shares the keys and values of layer {source}, which must be an earlier layer with its own",
        )
        self.require(
            self.layers[source].attention.head_dim == attention.head_dim
            and attention.num_heads % self._kv_heads_of_a_track(source) == 0,
            f"layer {index} and its source {source} must agree in head_dim and divide into key/value heads",
        )
