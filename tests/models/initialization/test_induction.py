"""The induction start: attention to the previous token, content matching, tracks."""

from __future__ import annotations

import pytest
import torch

from openafm.core.config import ConfigError
from openafm.models.attention.context import WholeRows
from openafm.models.attention.masks import Mask
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    LayerConfig,
    OwnKeysValuesConfig,
    RotaryConfig,
)
from openafm.models.initialization.induction import CONTENT_SCALE, NUM_POSITION_LAYERS, start_induction
from openafm.models.sizes import named_size, shared_kv_decoder

CONFIG = shared_kv_decoder(
    vocab_size=512,
    dim=64,
    num_own_layers=3,
    num_shared_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    hidden_dim=64,
    context_length=64,
)


class Recorder(WholeRows):
    """Keeps the queries of each layer."""

    def __init__(self, length: int) -> None:
        super().__init__(1, length)
        self.queries: dict[int, torch.Tensor] = {}
        self.keys: dict[int, torch.Tensor] = {}

    def store(self, layer: int, k_BSKC: torch.Tensor, v_BSKC: torch.Tensor) -> None:
        self.keys[layer] = k_BSKC
        super().store(layer, k_BSKC, v_BSKC)

    def attend(self, layer: int, q_BSHC: torch.Tensor, mask: Mask) -> torch.Tensor:
        self.queries.setdefault(layer, q_BSHC)
        return super().attend(layer, q_BSHC, mask)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_the_first_head_attends_to_the_previous_token(layout: str) -> None:
    attention = AttentionConfig(
        num_heads=4,
        head_dim=32,
        keys_values=OwnKeysValuesConfig(num_heads=2),
        position=RotaryConfig(layout=layout),  # type: ignore[arg-type]
    )
    layer = LayerConfig(attention=attention, feed_forward=DenseFeedForwardConfig(hidden_dim=64))
    model = DecoderConfig(vocab_size=512, dim=64, layers=(layer, layer)).build(seed=1)
    length = 20
    tokens = torch.randint(512, (1, length), generator=torch.Generator().manual_seed(0))

    def mass_on_previous() -> float:
        context = Recorder(length)
        with torch.no_grad():
            model.hidden(tokens, context)
        q_SC, k_SC = context.queries[0][0, :, 0], context.keys[0][0, :, 0]
        scores_SS = (q_SC @ k_SC.T / 32**0.5).masked_fill(torch.ones(length, length).triu(1) > 0, -torch.inf)
        return scores_SS.softmax(-1).diagonal(-1)[4:].mean().item()

    before = mass_on_previous()
    start_induction(model, seed=0)
    assert 3 * before < mass_on_previous() > 0.3


def test_the_start_is_deterministic_and_keeps_the_projections_of_sharing_layers() -> None:
    first, second, plain = CONFIG.build(), CONFIG.build(), CONFIG.build()
    start_induction(first, seed=3)
    start_induction(second, seed=3)
    weights, fresh = first.state_dict(), plain.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in second.state_dict().items())
    assert torch.equal(weights["layers.3.attention.query.weight"], fresh["layers.3.attention.query.weight"])
    assert not torch.equal(weights["layers.0.attention.query.weight"], fresh["layers.0.attention.query.weight"])


def test_every_track_gets_the_start_of_a_plain_model() -> None:
    spread = named_size("server.micro")
    model, fresh = spread.build(), spread.build()
    start_induction(model, seed=3)
    for index, (layer, before) in enumerate(zip(model.layers, fresh.layers, strict=True)):
        key, query = layer.attention.keys_values.key.weight, layer.attention.query.weight
        for track in range(2):
            written = query[track] - before.attention.query.weight[track] - CONTENT_SCALE * key[track]
            outside = written[32:] if index < NUM_POSITION_LAYERS else written  # without the first head
            assert outside.abs().max() < 1e-6
            assert (written[:32].abs().max() > 0.01) == (index < NUM_POSITION_LAYERS)


def test_the_start_needs_rotary_attention() -> None:
    attention = AttentionConfig(num_heads=2, head_dim=8, keys_values=OwnKeysValuesConfig(num_heads=1), position=None)
    layer = LayerConfig(attention=attention, feed_forward=DenseFeedForwardConfig(hidden_dim=8))
    model = DecoderConfig(vocab_size=32, dim=16, layers=(layer,)).build()
    with pytest.raises(ConfigError, match="rotary"):
        start_induction(model, seed=0)
