"""Memory by arithmetic, compared with what autograd saves and with the model's parameters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from openafm.data.loading.batch import Batch
from openafm.models.accounting import active_parameters, num_parameters
from openafm.models.activations import Microbatch
from openafm.models.attention.spans import Span
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    LayerConfig,
    OwnKeysValuesConfig,
    TrackNormConfig,
    UntiedHeadConfig,
)
from openafm.models.feed_forward.experts_config import ExpertsConfig, TopKRouterConfig
from openafm.models.sizes import SIZES, named_size
from openafm.training.distributed.config import MeshShape
from openafm.training.objectives.base import NextToken
from openafm.training.optimizer_config import AdamWConfig, MuonConfig
from openafm.training.planning.device_memory import device_memory
from openafm.training.planning.footprint import (
    DeviceShare,
    decoder_footprint,
    decoder_weights,
)

torch.set_num_threads(1)
ALONE = MeshShape(slices=1, replicate=1, shard=1, expert=1, track=1)


def bytes_saved(config: DecoderConfig, dtype: torch.dtype, rows: int, row_tokens: int, document_tokens: int) -> int:
    """Storages that autograd holds after the forward pass and the loss, without the weights."""
    model = config.build()
    model.compute_dtype = dtype
    tokens_BS = np.random.default_rng(0).integers(1, config.vocab_size, (rows, row_tokens))
    starts = range(0, row_tokens, document_tokens)
    documents = tuple(Span(r, s, min(s + document_tokens, row_tokens)) for r in range(rows) for s in starts)
    batch = Batch(
        tokens_BS=tokens_BS,
        targets_BS=tokens_BS,
        loss_mask_BS=np.ones_like(tokens_BS, dtype=bool),
        documents=documents,
        origins=(),
    )
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    held: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            held.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        NextToken()(model, batch)
    return sum(tensor.untyped_storage().nbytes() for tensor in held.values())


def microbatch(dtype: torch.dtype, rows: int, row_tokens: int, document_tokens: int) -> Microbatch:
    return Microbatch(
        num_rows=rows,
        row_tokens=row_tokens,
        document_tokens=document_tokens,
        number_bytes=dtype.itemsize,
        attention_bytes=4,
    )


def share_of(config: DecoderConfig) -> DeviceShare:
    return DeviceShare(tracks=config.num_tracks)


def with_attention(config: DecoderConfig, attention: AttentionConfig) -> DecoderConfig:
    return replace(config, layers=tuple(replace(layer, attention=attention) for layer in config.layers))


PLAIN = AttentionConfig(num_heads=4, head_dim=16, keys_values=OwnKeysValuesConfig(num_heads=2), position=None, qk_norm=None)
MANY_EXPERTS = ExpertsConfig(num_experts=48, hidden_dim=16, router=TopKRouterConfig(num_chosen=3))
MODELS = {
    "shared": named_size("on_device.micro"),
    "tracks": named_size("server.micro"),
    "nope": with_attention(named_size("on_device.micro_draft"), PLAIN),
    "untied": replace(named_size("on_device.micro_draft"), head=UntiedHeadConfig()),
    "experts": replace(
        named_size("on_device.micro_draft"), layers=(LayerConfig(attention=PLAIN, feed_forward=MANY_EXPERTS),) * 4
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("rows", "row_tokens", "document_tokens"),
    [(2, 256, 64), (1, 384, 100), (2, 300, 300), (1, 130, 128)],
    ids=["within the window", "under a mask", "in blocks", "a rest"],
)
def test_what_autograd_saves(name: str, dtype: torch.dtype, rows: int, row_tokens: int, document_tokens: int) -> None:
    config = MODELS[name]
    expected = bytes_saved(config, dtype, rows, row_tokens, document_tokens)
    found = decoder_footprint(config, share_of(config), microbatch(dtype, rows, row_tokens, document_tokens))
    assert found.activations == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize("name", SIZES)
def test_weights_by_arithmetic_are_those_of_the_model(name: str) -> None:
    config = named_size(name)
    weights = decoder_weights(config)
    idle = sum(layer.feed_forward.idle_parameters(config.dim) for layer in config.layers) * config.num_tracks
    assert weights.total == num_parameters(config)
    assert weights.total - idle == active_parameters(config)


def test_weights_of_every_part_are_counted() -> None:
    tracks = named_size("server.micro")
    assert tracks.tracks is not None
    normed = replace(tracks, tracks=replace(tracks.tracks, norm=TrackNormConfig()))
    biased = with_attention(named_size("on_device.micro_draft"), replace(PLAIN, input_bias=True, output_bias=True))
    layer = LayerConfig(attention=PLAIN, feed_forward=DenseFeedForwardConfig(hidden_dim=8, bias=True))
    for config in (normed, biased, MODELS["untied"], replace(biased, layers=(layer,))):
        assert decoder_weights(config).total == num_parameters(config)


def test_a_device_has_its_part_of_tracks_and_experts() -> None:
    config = named_size("server.nano")
    batch = microbatch(torch.float32, 2, 256, 256)
    whole = decoder_footprint(config, DeviceShare(tracks=4), batch)
    quarter = decoder_footprint(config, DeviceShare(tracks=1, expert_ranks=2), batch)
    assert quarter.weights.experts * 8 == whole.weights.experts
    assert (quarter.weights.dense - quarter.outside.dense) * 4 == whole.weights.dense - whole.outside.dense
    assert quarter.activations < whole.activations / 3


@pytest.mark.parametrize("size", ["on_device.micro", "server.micro"])
@pytest.mark.parametrize("optimizer", [AdamWConfig(), MuonConfig()], ids=["adamw", "muon"])
def test_state_of_the_optimizers(optimizer: AdamWConfig | MuonConfig, size: str) -> None:
    config = named_size(size)
    model = config.build()
    model(torch.ones(1, 4, dtype=torch.long)).sum().backward()
    held = 0
    for one in optimizer.build(dict(model.named_parameters())):
        one.step()
        held += sum(tensor.nbytes for state in one.state.values() for tensor in state.values() if tensor.ndim)
    footprint = decoder_footprint(config, share_of(config), microbatch(torch.float32, 1, 64, 64))
    found = device_memory(config, footprint, ALONE, optimizer=optimizer, has_average=True, has_several_microbatches=False)
    assert found.optimizer == held
    assert found.parameters == found.average == 4 * num_parameters(config)


def test_microbatches_hold_gradients_while_they_compute() -> None:
    config = named_size("server.nano")
    footprint = decoder_footprint(config, share_of(config), microbatch(torch.float32, 1, 512, 512))
    one, several = (
        device_memory(config, footprint, ALONE, optimizer=AdamWConfig(), has_average=False, has_several_microbatches=several)
        for several in (False, True)
    )
    assert 0 < several.peak - one.peak <= one.gradients
