"""Calibration: inputs of each matrix, at real positions only, from compressed layers."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

from openafm.compression.errors import CompressionError
from openafm.compression.low_bit import layer_linears
from openafm.compression.post_training.calibration import collect_second_moments, compress_linears
from openafm.compression.post_training.config import GPTQConfig
from openafm.core.errors import UsageError
from openafm.data.loading.batch import Batch
from openafm.models.attention.context import PackedDocuments
from openafm.models.attention.spans import Span
from openafm.models.decoder import Decoder
from openafm.models.sizes import shared_kv_decoder

DOCUMENTS = (
    Span(row=0, start=0, stop=6),
    Span(row=0, start=6, stop=13),  # then three positions of padding
    Span(row=1, start=2, stop=16),
)


@pytest.fixture
def decoder() -> Decoder:
    torch.set_num_threads(1)
    return shared_kv_decoder(
        vocab_size=61,
        dim=32,
        num_own_layers=2,
        num_shared_layers=1,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        hidden_dim=48,
        context_length=64,
    ).build(0)


def batch(seed: int = 0, documents: tuple[Span, ...] = DOCUMENTS) -> Batch:
    tokens_BS = np.random.default_rng(seed).integers(61, size=(2, 16))
    nothing_BS = np.zeros((2, 16), dtype=np.bool_)
    return Batch(tokens_BS=tokens_BS, targets_BS=tokens_BS, loss_mask_BS=nothing_BS, documents=documents, origins=())


def logits(decoder: Decoder, of: Batch) -> Tensor:
    return decoder(torch.from_numpy(of.tokens_BS), PackedDocuments(of.documents, 2, 16))


def test_moments_of_the_first_matrices_are_of_the_normalized_embedding(decoder: Decoder) -> None:
    moments = collect_second_moments(decoder, [batch()])
    x_BSD = decoder.layers[0].attention_norm(decoder.embed(torch.from_numpy(batch().tokens_BS)))
    x_ND = torch.cat([x_BSD[d.row, d.start : d.stop] for d in DOCUMENTS])
    assert torch.allclose(moments["layers.0.attention.query"], x_ND.T @ x_ND, rtol=1e-4)
    assert torch.equal(moments["layers.0.attention.query"], moments["layers.0.attention.keys_values.value"])


def test_moments_cover_every_matrix_of_the_layers(decoder: Decoder) -> None:
    moments = collect_second_moments(decoder, [batch()])
    linears = layer_linears(decoder)
    assert list(moments) == list(linears)
    assert all(moments[name].shape == (linear.in_dim, linear.in_dim) for name, linear in linears.items())


def test_padding_is_left_out(decoder: Decoder) -> None:
    other = batch()
    other.tokens_BS[0, 13:] = 7
    for name, moment_CC in collect_second_moments(decoder, [other]).items():
        assert torch.equal(moment_CC, collect_second_moments(decoder, [batch()])[name])


def test_batches_add_up(decoder: Decoder) -> None:
    name = "layers.1.feed_forward.down"
    first, second = (collect_second_moments(decoder, [batch(seed)], [name])[name] for seed in (0, 1))
    both = collect_second_moments(decoder, (batch(seed) for seed in (0, 1)), [name])
    assert list(both) == [name]
    assert torch.allclose(both[name], first + second, rtol=1e-4, atol=1e-6)


def test_an_unknown_name_is_refused_with_the_nearest(decoder: Decoder) -> None:
    with pytest.raises(UsageError, match=r"did you mean 'layers\.0\.feed_forward\.up'"):
        collect_second_moments(decoder, [batch()], ["layers.0.feed_forward.upp"])


@pytest.mark.parametrize("batches", [[], [batch(documents=())]], ids=["no batches", "only padding"])
def test_calibration_without_tokens_is_an_error(decoder: Decoder, batches: list[Batch]) -> None:
    with pytest.raises(CompressionError, match="no calibration tokens"):
        collect_second_moments(decoder, batches)
    with pytest.raises(CompressionError, match="no calibration tokens"):
        compress_linears(decoder, batches, lambda name, weight_RC, moment_CC: weight_RC)


def test_identity_compression_changes_nothing_and_has_the_same_moments(decoder: Decoder) -> None:
    before, seen = logits(decoder, batch()), {}

    def keep(name: str, weight_RC: Tensor, moment_CC: Tensor) -> Tensor:
        seen[name] = moment_CC
        return weight_RC

    expected = collect_second_moments(decoder, [batch()])
    compress_linears(decoder, [batch()], keep)
    assert torch.equal(logits(decoder, batch()), before)
    assert list(seen) == list(expected)
    assert all(torch.equal(seen[name], expected[name]) for name in expected)


def test_layers_are_calibrated_on_outputs_of_compressed_layers(decoder: Decoder) -> None:
    changed, seen = copy.deepcopy(decoder), {}
    with torch.no_grad():
        for name, linear in layer_linears(changed).items():
            linear.weight.mul_(0.5 if name.startswith("layers.0.") else 1.0)

    def halve_first(name: str, weight_RC: Tensor, moment_CC: Tensor) -> Tensor:
        seen[name] = moment_CC
        return weight_RC * (0.5 if name.startswith("layers.0.") else 1.0)

    compress_linears(decoder, [batch()], halve_first)
    expected = collect_second_moments(changed, [batch()])
    later = [name for name in expected if not name.startswith("layers.0.")]
    assert all(torch.equal(seen[name], expected[name]) for name in later)
    assert torch.equal(logits(decoder, batch()), logits(changed, batch()))


def test_gptq_through_a_whole_decoder(decoder: Decoder) -> None:
    before = logits(decoder, batch())

    def compress(name: str, weight_RC: Tensor, moment_CC: Tensor) -> Tensor:
        return torch.from_numpy(GPTQConfig(bits=8, group=16).quantize(weight_RC, moment_CC, name).dequantize())

    compress_linears(decoder, [batch(seed) for seed in range(3)], compress)
    difference = (logits(decoder, batch()) - before).abs().max()
    assert 0 < difference < 0.05 * before.abs().max()


@pytest.mark.parametrize("fault", [lambda: torch.empty(1 << 56), lambda: np.empty(1 << 56)], ids=["torch", "numpy"])
def test_exhausted_memory_is_a_typed_error_and_removes_hooks(decoder: Decoder, fault: object) -> None:
    hook = decoder.layers[1].feed_forward.up.register_forward_pre_hook(lambda module, inputs: fault() and None)
    with pytest.raises(CompressionError, match="fewer or shorter calibration rows"):
        collect_second_moments(decoder, [batch()])
    with pytest.raises(CompressionError, match="fewer or shorter calibration rows"):
        compress_linears(decoder, [batch()], lambda name, weight_RC, moment_CC: weight_RC)
    hook.remove()
    assert not any(linear._forward_pre_hooks for linear in layer_linears(decoder).values())


def test_other_errors_pass_unchanged(decoder: Decoder) -> None:
    def fail(name: str, weight_RC: Tensor, moment_CC: Tensor) -> Tensor:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        compress_linears(decoder, [batch()], fail)
