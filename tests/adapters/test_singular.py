"""Singular-vector initialization: exact, the best approximation of its rank, outputs unchanged."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_adapters import random_tokens, tiny_config, tiny_decoder

from openafm.adapters.config import LoRAConfig, SingularValueStart, num_adapter_parameters
from openafm.adapters.lora import (
    AdapterInstalledError,
    AdapterTargetError,
    adapter_weights,
    install,
    installed,
    load_adapter_weights,
    remove,
)
from openafm.adapters.singular import (
    NonFiniteWeightError,
    SingularRankError,
    adapter_bits_per_weight,
    move_singular_vectors,
    split,
)
from openafm.models.layers import Linear
from openafm.models.sizes import named_size

CONFIG = LoRAConfig(rank=4, alpha=8.0, start=SingularValueStart())


@settings(max_examples=15)
@given(
    out_dim=st.integers(1, 12),
    in_dim=st.integers(1, 12),
    stack=st.lists(st.integers(1, 3), max_size=2),
    scale=st.floats(0.05, 20),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_the_parts_are_the_weight_and_the_best_of_their_rank(
    out_dim: int, in_dim: int, stack: list[int], scale: float, seed: int, data: st.DataObject
) -> None:
    """Eckart-Young: the residual of a matrix of this rank has at least the energy of the other singular values, in every
    slice."""
    rank = data.draw(st.integers(1, min(out_dim, in_dim)))
    weight = torch.randn(*stack, out_dim, in_dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    parts = split(weight, rank, scale)
    assert parts.a.shape == (*stack, rank, in_dim)
    assert parts.b.shape == (*stack, out_dim, rank)
    torch.testing.assert_close(scale * (parts.b @ parts.a) + parts.residual, weight, rtol=0, atol=1e-12)
    left = torch.linalg.svdvals(weight)[..., rank:].square().sum(-1)
    torch.testing.assert_close(parts.residual.square().sum((-2, -1)), left, rtol=1e-9, atol=1e-12)


def test_singular_values_are_shared_evenly() -> None:
    weight = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    parts = split(weight, 5, scale=0.5)
    torch.testing.assert_close(parts.a @ parts.a.T, parts.b.T @ parts.b, rtol=1e-4, atol=1e-4)


def test_slices_of_a_stack_are_split_alone() -> None:
    stack = torch.randn(3, 2, 8, 6, generator=torch.Generator().manual_seed(0))
    together, alone = split(stack, 2, 0.5), split(stack[1, 1], 2, 0.5)
    torch.testing.assert_close(together.residual[1, 1], alone.residual, rtol=1e-5, atol=1e-5)


def test_low_precision_is_split_in_fp32() -> None:
    weight = torch.randn(8, 6).to(torch.bfloat16)
    parts = split(weight, 2, 0.5)
    assert parts.residual.dtype is torch.float32
    torch.testing.assert_close(0.5 * (parts.b @ parts.a) + parts.residual, weight.float(), rtol=1e-5, atol=1e-5)


def test_weights_that_cannot_be_split_are_refused() -> None:
    for rank in (0, 7):
        with pytest.raises(SingularRankError, match=rf"\[8, 6\] has 6 singular vectors; .* got {rank}"):
            split(torch.ones(8, 6), rank, 0.5)
    for value in (float("nan"), float("inf")):
        with pytest.raises(NonFiniteWeightError, match="NaN or infinity"):
            split(torch.full((2, 3, 3), value), 1, 0.5)


@torch.no_grad()
def test_the_outputs_of_the_decoder_are_unchanged() -> None:
    plain, model = tiny_decoder(), tiny_decoder()
    install(model, CONFIG)
    tokens_BS = random_tokens()
    torch.testing.assert_close(model(tokens_BS), plain(tokens_BS), rtol=1e-4, atol=1e-4)
    for name, weight in plain.named_parameters():
        assert not model.get_parameter(name).requires_grad
        moved = name.removesuffix(".weight") in installed(model)
        assert torch.equal(weight, model.get_parameter(name)) != moved
        if moved:
            values = torch.linalg.svdvals(weight)
            torch.testing.assert_close(torch.linalg.svdvals(model.get_parameter(name))[0], values[4], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_the_residual_base_and_the_adapter_are_stored_separately() -> None:
    """As in compression: the adapter is stored, removed, and installed on the compressed residual."""
    model = tiny_decoder()
    move_singular_vectors(model, CONFIG)
    expected = model(random_tokens())
    weights = {name: weight.clone() for name, weight in adapter_weights(model).items()}
    remove(model)
    assert (model(random_tokens()) - expected).abs().max() > 0.1
    other = tiny_config().build(seed=3)
    other.load_state_dict(model.state_dict())
    install(other, LoRAConfig(rank=4, alpha=8.0))
    load_adapter_weights(other, weights)
    assert torch.equal(other(random_tokens()), expected)


class OtherLinear(Linear):
    """A compressed Linear, which does not compute with its weight."""


def test_a_refused_move_leaves_the_decoder_unchanged() -> None:
    model = tiny_decoder()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with pytest.raises(SingularRankError, match="got 17"):  # the keys have 16 rows, other matrices more
        move_singular_vectors(model, LoRAConfig(rank=17))
    model.get_submodule("layers.2.feed_forward").down.__class__ = OtherLinear
    with pytest.raises(AdapterTargetError, match=r"layers\.2\.feed_forward\.down.*OtherLinear.*before compression"):
        move_singular_vectors(model, CONFIG)
    model.get_submodule("layers.2.feed_forward").down.__class__ = Linear
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())
    with torch.no_grad():
        model.get_parameter("layers.2.attention.output.weight")[0, 0] = float("nan")
    with pytest.raises(NonFiniteWeightError, match=r"layers\.2\.attention\.output\.weight"):
        move_singular_vectors(model, CONFIG)
    assert not installed(model)


def test_an_adapted_decoder_is_unchanged() -> None:
    model = tiny_decoder()
    install(model, LoRAConfig(rank=2))
    before = model.get_parameter("layers.0.attention.query.weight").clone()
    with pytest.raises(AdapterInstalledError):
        move_singular_vectors(model, CONFIG)
    assert torch.equal(model.get_parameter("layers.0.attention.query.weight"), before)


def test_bits_per_weight() -> None:
    """The rank-32 adapter costs 3.0 bits per weight of nano."""
    nano = named_size("on_device.nano")
    assert adapter_bits_per_weight(nano, LoRAConfig()) == pytest.approx(2.95, abs=0.1)
    assert adapter_bits_per_weight(nano, LoRAConfig(rank=8), bits=32) == adapter_bits_per_weight(nano, LoRAConfig()) / 2
    one = adapter_bits_per_weight(nano, LoRAConfig(targets=("gate",)))
    assert one < adapter_bits_per_weight(nano, LoRAConfig()) / 3
    num_weights = sum(p.numel() for name, p in tiny_decoder().layers.named_parameters() if "norm" not in name)
    expected = 16 * num_adapter_parameters(tiny_config(), CONFIG) / num_weights
    assert adapter_bits_per_weight(tiny_config(), CONFIG) == pytest.approx(expected)
