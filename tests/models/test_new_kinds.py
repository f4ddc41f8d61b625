"""A new kind of layer part needs no change of existing code, the modularity measure of AXLearn (arXiv 2507.05411).

Each kind below is a config and the module it builds, written here; decoders, contexts, the bypass, JSON and dotted overrides
use them without changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from tiny_decoders import (
    DOCUMENTS,
    NUM_ROWS,
    ROW_LENGTH,
    decoder_config,
    largest_difference,
    layer,
    perturbed,
    random_tokens,
)
from torch import Tensor

from openafm.core.config import dump, from_dict, override, to_dict
from openafm.models.accounting import flops_per_token, num_parameters
from openafm.models.attention.context import AttentionContext, PackedDocuments
from openafm.models.attention.grouped_query import BaseAttention
from openafm.models.attention.position_embedding import PositionEmbedding
from openafm.models.config import (
    AttentionConfig,
    BaseAttentionConfig,
    Config,
    DecoderConfig,
    FeedForwardConfig,
    LayerConfig,
    OwnKeysValuesConfig,
    PositionConfig,
    SharedKeysValuesConfig,
    TracksConfig,
)
from openafm.models.layers import Linear, Sublayer


@dataclass(frozen=True, kw_only=True)
class DecayConfig(PositionConfig):
    """Scale channels by a power of the position; unlike a rotation."""

    rate: float = 0.9

    def build(self, positions_BS: Tensor, head_dim: int) -> PositionEmbedding:
        return Decay(self.rate ** positions_BS[..., None, None].float())


class Decay(PositionEmbedding):
    def __init__(self, scale_BS11: Tensor) -> None:
        self._scale_BS11 = scale_BS11

    def apply(self, x_BSHC: Tensor) -> Tensor:
        return x_BSHC * self._scale_BS11


@dataclass(frozen=True, kw_only=True)
class SquaredReluConfig(FeedForwardConfig):
    """Ungated: out(relu(in(x))^2) (arXiv 2109.08668)."""

    hidden_dim: int

    def build(self, dim: int) -> Sublayer:
        return SquaredRelu(self, dim)


class SquaredRelu(Sublayer):
    def __init__(self, config: SquaredReluConfig, dim: int) -> None:
        super().__init__()
        self.up, self.down = Linear(dim, config.hidden_dim), Linear(config.hidden_dim, dim)

    def forward(self, x_BSD: Tensor) -> Tensor:
        return self.down(self.up(x_BSD).relu().square())

    def initialize(self, generator: torch.Generator, residual_scale: float) -> None:
        self.up.initialize(generator)
        self.down.initialize(generator, residual_scale)


@dataclass(frozen=True, kw_only=True)
class OneMatrixAttentionConfig(BaseAttentionConfig):
    """Queries, keys and values are one projection, used as they are or, in sharing layers, as queries alone."""

    gain: float = 1.0

    def build(self, dim: int, layer: int) -> BaseAttention:
        return OneMatrixAttention(self, dim, layer)


class OneMatrixAttention(BaseAttention):
    def __init__(self, config: OneMatrixAttentionConfig, dim: int, layer: int) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        self.input = Linear(dim, config.num_heads * config.head_dim)
        self.output = Linear(config.num_heads * config.head_dim, dim)

    def store(self, x_BSD: Tensor, context: AttentionContext) -> None:
        if isinstance(self.config.keys_values, OwnKeysValuesConfig):
            k_BSKC = self._heads(x_BSD)[..., : self.config.keys_values.num_heads, :]
            context.store(self.layer, k_BSKC, k_BSKC)

    def forward(self, x_BSD: Tensor, context: AttentionContext) -> Tensor:
        keys_values = self.config.keys_values
        source = keys_values.layer if isinstance(keys_values, SharedKeysValuesConfig) else self.layer
        o_BSHC = context.attend(source, self._heads(x_BSD) * self.config.gain, self.config.mask)
        return self.output(o_BSHC.flatten(-2))

    def _heads(self, x_BSD: Tensor) -> Tensor:
        return self.input(x_BSD).unflatten(-1, (self.config.num_heads, self.config.head_dim))

    def initialize(self, generator: torch.Generator, residual_scale: float) -> None:
        self.input.initialize(generator)
        self.output.initialize(generator, residual_scale)


def with_position(position: PositionConfig) -> tuple[LayerConfig, ...]:
    return layer(position=position), layer(source=0, position=position)


def with_feed_forward(feed_forward: FeedForwardConfig) -> tuple[LayerConfig, ...]:
    return replace(layer(), feed_forward=feed_forward), replace(layer(source=0), feed_forward=feed_forward)


def with_attention(config: Config) -> tuple[LayerConfig, ...]:
    assert isinstance(config, BaseAttentionConfig)
    sharing = replace(config, keys_values=SharedKeysValuesConfig(layer=0))
    return replace(layer(), attention=config), replace(layer(), attention=sharing)


KINDS = {
    "position": decoder_config(*with_position(DecayConfig(rate=0.8))),
    "feed-forward": decoder_config(*with_feed_forward(SquaredReluConfig(hidden_dim=24))),
    "attention": decoder_config(
        *with_attention(
            OneMatrixAttentionConfig(num_heads=4, head_dim=8, keys_values=OwnKeysValuesConfig(num_heads=2), gain=2.0)
        )
    ),
}
EVERYTHING = decoder_config(*(part for config in KINDS.values() for part in config.layers[:1]))
IN_TRACKS = {
    f"{name}, in tracks": replace(config, tracks=TracksConfig(num_tracks=3, block_depth=1)) for name, config in KINDS.items()
}


@torch.no_grad()
@pytest.mark.parametrize("name", KINDS | IN_TRACKS)
def test_a_new_kind_runs_packed_and_through_the_bypass(name: str) -> None:
    model = perturbed((KINDS | IN_TRACKS)[name])
    tokens_BS = random_tokens(NUM_ROWS, ROW_LENGTH)
    full = model.hidden(tokens_BS, PackedDocuments(DOCUMENTS, NUM_ROWS, ROW_LENGTH))
    last = model.last_hidden(tokens_BS, PackedDocuments(DOCUMENTS, NUM_ROWS, ROW_LENGTH))
    for index, d in enumerate(DOCUMENTS):
        alone = model.hidden(tokens_BS[d.row : d.row + 1, d.start : d.stop])
        assert largest_difference(full[d.row, d.start : d.stop], alone[0]) < 1e-5
        assert largest_difference(last[0, index], alone[0, -1]) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("name", KINDS)
def test_a_new_kind_makes_another_model(name: str) -> None:
    tokens_BS = random_tokens(1, 8)
    assert (
        largest_difference(perturbed(KINDS[name])(tokens_BS), perturbed(decoder_config(layer(), layer()))(tokens_BS)) > 1e-2
    )


@torch.no_grad()
def test_kinds_mix_in_one_decoder_and_survive_json() -> None:
    read = from_dict(DecoderConfig, to_dict(EVERYTHING))
    assert read == EVERYTHING
    tokens_BS = random_tokens(1, 8)
    assert torch.equal(perturbed(read)(tokens_BS), perturbed(EVERYTHING)(tokens_BS))
    for kind in (DecayConfig, SquaredReluConfig, OneMatrixAttentionConfig, AttentionConfig):
        assert f'"type": "{kind.__name__}"' in dump(EVERYTHING)


def test_a_new_kind_takes_dotted_overrides() -> None:
    assert override(KINDS["attention"].layers[0], {"attention.gain": "3"}).attention == replace(
        KINDS["attention"].layers[0].attention, gain=3.0
    )


@torch.no_grad()
@pytest.mark.parametrize("name", KINDS)
def test_tracks_of_a_new_kind_are_tracks(name: str) -> None:
    """The weights of tracks differ; with equal weights the model has the outputs of the plain one."""
    plain, tracks = perturbed(KINDS[name]), perturbed(IN_TRACKS[f"{name}, in tracks"])
    tokens_BS = random_tokens(1, 8)
    for parameter_name, parameter in tracks.layers.named_parameters():
        assert "norm" in parameter_name or not torch.equal(parameter[0], parameter[1])
        parameter.copy_(plain.layers.get_parameter(parameter_name).expand_as(parameter))
    tracks.embedding.copy_(plain.embedding)
    tracks.norm.weight.copy_(plain.norm.weight)
    assert largest_difference(tracks(tokens_BS), plain(tokens_BS)) < 1e-4


@pytest.mark.parametrize("tracks", [None, TracksConfig(num_tracks=3, block_depth=1)])
def test_a_new_kind_is_trained_and_counted(tracks: TracksConfig | None) -> None:
    model = replace(EVERYTHING, tracks=tracks).build()
    model(random_tokens(1, 8)).logsumexp(-1).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.count_nonzero() for parameter in model.parameters())
    dense, squared = decoder_config(layer()), decoder_config(KINDS["feed-forward"].layers[0])
    assert flops_per_token(dense, 0) - flops_per_token(squared, 0) == 2 * 32 * 3 * 48 - 4 * 32 * 24
    assert num_parameters(model.config) == sum(parameter.numel() for parameter in model.parameters())
    assert SquaredReluConfig(hidden_dim=24).activation_bytes(32, 2).saved == 2 * (32 + 2 * 24)
