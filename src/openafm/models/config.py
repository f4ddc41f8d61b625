"""Decoders as data: a tuple of layer configs. Imports no tensor library.

On-device, server, draft and imported open-weight models differ in these configs, not in their classes. A new kind of
position embedding, attention or feed-forward is a config class below `PositionConfig`, `BaseAttentionConfig` or
`FeedForwardConfig` and the module that it builds, in one new file; `tests/models/test_new_kinds.py` adds one of each. This
module exports the built-in kinds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from openafm.core.config import Config
from openafm.models.attention.config import (
    AttentionConfig,
    BaseAttentionConfig,
    BidirectionalAttentionConfig,
    LinearRotaryConfig,
    Llama3RotaryConfig,
    OwnKeysValuesConfig,
    PositionConfig,
    PrefixAttentionConfig,
    QKNormConfig,
    RotaryConfig,
    SharedKeysValuesConfig,
    YarnRotaryConfig,
    yarn_attention_factor,
)
from openafm.models.feed_forward.config import DenseFeedForwardConfig, FeedForwardConfig
from openafm.models.feed_forward.experts_config import ExpertsConfig, RouterConfig, TopKRouterConfig

if TYPE_CHECKING:
    from openafm.models.decoder import Decoder

__all__ = [
    "AttentionConfig",
    "BaseAttentionConfig",
    "BidirectionalAttentionConfig",
    "DecoderConfig",
    "DenseFeedForwardConfig",
    "ExpertsConfig",
    "FeedForwardConfig",
    "LayerConfig",
    "LinearRotaryConfig",
    "Llama3RotaryConfig",
    "OwnKeysValuesConfig",
    "PositionConfig",
    "PrefixAttentionConfig",
    "QKNormConfig",
    "RotaryConfig",
    "RouterConfig",
    "SharedKeysValuesConfig",
    "TiedHeadConfig",
    "TopKRouterConfig",
    "TrackNormConfig",
    "TracksConfig",
    "UntiedHeadConfig",
    "YarnRotaryConfig",
    "yarn_attention_factor",
]


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
    """The output projection has separate weights."""


@dataclass(frozen=True, kw_only=True)
class TrackNormConfig(Config):
    """RMSNorm of each track's output before the tracks are combined, with separate weights per block and track."""

    eps: float = 1e-5

    def __post_init__(self) -> None:
        self.require(self.eps > 0, f"eps must be positive, got {self.eps}")


@dataclass(frozen=True, kw_only=True)
class TracksConfig(Config):
    """Parallel tracks (report 2.2): transformers side by side, combined after every block of `block_depth` layers.

    Each track receives the whole hidden state at the start of a block; `combine` reduces the tracks' outputs to one state.
    Layer configs hold the heads, the feed-forward and the experts of one track.
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
    """A language model: embedding, layers in order, final norm, head. `context_length` is in tokens.

    With `tracks`, every layer exists once per track; embedding, final norm and head exist once.
    """

    generates_text: ClassVar[bool] = True
    """False for models that encode texts only."""

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
        """Copies of each layer; 1 without tracks."""
        return 1 if self.tracks is None else self.tracks.num_tracks

    @property
    def own_layers(self) -> tuple[int, ...]:
        """Indices of the layers that project and store keys and values."""
        return tuple(
            index for index, layer in enumerate(self.layers) if isinstance(layer.attention.keys_values, OwnKeysValuesConfig)
        )

    @property
    def num_prefill_layers(self) -> int:
        """Number of layers that every prompt position passes: up to the last one that stores keys and values.

        In that layer, positions without a wanted output only store keys and values; they skip the layers after it.
        """
        return self.own_layers[-1] + 1

    def kv_heads(self, index: int) -> int:
        """Return the key/value heads of all tracks that layer `index` reads, its own or its source's."""
        return self.num_tracks * self._kv_heads_of_a_track(index)

    def other_parameters(self) -> int:
        """Return the number of weights beside embedding, layers, norm and head, such as those of a vision encoder."""
        return 0

    def build(self, seed: int = 0) -> Decoder:
        """Return the module with freshly initialized weights, or without storage under `torch.device("meta")`."""
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
