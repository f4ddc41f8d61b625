"""Rotary position embedding: relative, norm-preserving; the two layouts differ by a permutation."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_decoders import largest_difference
from torch import Tensor

from openafm.models.config import Llama3RotaryConfig, RotaryConfig, YarnRotaryConfig, yarn_attention_factor

HEAD_DIM = 8
LAYOUTS: list[Literal["interleaved", "half"]] = ["interleaved", "half"]


def rotated(x_C: Tensor, position: int, layout: Literal["interleaved", "half"], theta: float = 100.0) -> Tensor:
    rotation = RotaryConfig(theta=theta, layout=layout).build(torch.tensor([[position]]), HEAD_DIM)
    return rotation.apply(x_C.view(1, 1, 1, HEAD_DIM)).flatten()


@pytest.mark.parametrize(("layout", "pair"), [("interleaved", (2, 3)), ("half", (1, 5))])
def test_a_pair_turns_by_position_over_theta_to_its_share(
    layout: Literal["interleaved", "half"], pair: tuple[int, int]
) -> None:
    a, b = pair
    angle = 5 * 100.0 ** (-2 / HEAD_DIM)
    expected_C = torch.zeros(HEAD_DIM)
    expected_C[a], expected_C[b] = math.cos(angle), math.sin(angle)
    assert largest_difference(rotated(torch.eye(HEAD_DIM)[a], 5, layout), expected_C) < 1e-6
    expected_C[a], expected_C[b] = -math.sin(angle), math.cos(angle)
    assert largest_difference(rotated(torch.eye(HEAD_DIM)[b], 5, layout), expected_C) < 1e-6


@settings(deadline=None, max_examples=15)
@given(query=st.integers(0, 500), key=st.integers(0, 500), shift=st.integers(0, 500), layout=st.sampled_from(LAYOUTS))
def test_scores_depend_on_the_distance_only(
    query: int, key: int, shift: int, layout: Literal["interleaved", "half"]
) -> None:
    q_C, k_C = torch.randn(2, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    score = rotated(q_C, query, layout) @ rotated(k_C, key, layout)
    shifted = rotated(q_C, query + shift, layout) @ rotated(k_C, key + shift, layout)
    assert math.isclose(score.item(), shifted.item(), abs_tol=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_position_zero_changes_nothing_and_lengths_are_kept(layout: Literal["interleaved", "half"]) -> None:
    x_C = torch.randn(HEAD_DIM)
    assert torch.equal(rotated(x_C, 0, layout), x_C)
    assert math.isclose(rotated(x_C, 77, layout).norm().item(), x_C.norm().item(), rel_tol=1e-5)


def test_the_layouts_are_a_permutation_of_channels_apart() -> None:
    x_C = torch.randn(HEAD_DIM)
    to_half = torch.arange(HEAD_DIM).view(-1, 2).T.flatten()
    assert largest_difference(rotated(x_C, 9, "interleaved")[to_half], rotated(x_C[to_half], 9, "half")) < 1e-6
    assert largest_difference(rotated(x_C, 9, "interleaved"), rotated(x_C, 9, "half")) > 1e-2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_result_has_the_input_s_dtype(layout: Literal["interleaved", "half"]) -> None:
    assert rotated(torch.randn(HEAD_DIM).bfloat16(), 3, layout).dtype is torch.bfloat16


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_result_has_the_shape_of_its_input(layout: Literal["interleaved", "half"]) -> None:
    x_BSHC = torch.randn(2, 3, 4, HEAD_DIM)
    rotation = RotaryConfig(layout=layout).build(torch.arange(3).expand(2, 3), HEAD_DIM)
    assert rotation.apply(x_BSHC).shape == x_BSHC.shape


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_are_those_of_the_matrix_of_the_rotation(layout: Literal["interleaved", "half"]) -> None:
    rotation = RotaryConfig(theta=100.0, layout=layout).build(torch.arange(3).expand(2, 3), HEAD_DIM)
    x_BSHC, w_BSHC = torch.randn(2, 2, 3, 4, HEAD_DIM)
    x_BSHC.requires_grad_()
    turned_BSHC = rotation.apply(x_BSHC)
    assert turned_BSHC.equal(rotation.apply(x_BSHC.detach()))
    (found,) = torch.autograd.grad((turned_BSHC * w_BSHC).sum(), x_BSHC)
    rows_CSC = torch.stack([rotation.apply(basis.expand(2, 3, 1, HEAD_DIM))[0, :, 0] for basis in torch.eye(HEAD_DIM)])
    assert largest_difference(found, torch.einsum("bshd,csd->bshc", w_BSHC, rows_CSC)) < 1e-5


def test_llama3_divides_low_frequencies_by_the_factor() -> None:
    """The frequencies by the formula of Llama 3.1, which compares wavelengths with the original context length."""
    config = Llama3RotaryConfig(theta=100.0, factor=8.0, low_turns=1.0, high_turns=4.0, original_context_length=64)
    rotation = config.build(torch.tensor([[1]]), HEAD_DIM)
    expected = []
    for pair in range(HEAD_DIM // 2):
        frequency = 100.0 ** (-2 * pair / HEAD_DIM)
        wavelength = 2 * math.pi / frequency
        if wavelength < 64 / 4.0:
            expected.append(frequency)
        elif wavelength > 64 / 1.0:
            expected.append(frequency / 8.0)
        else:
            smooth = (64 / wavelength - 1.0) / (4.0 - 1.0)
            expected.append((1 - smooth) * frequency / 8.0 + smooth * frequency)
    assert (
        len({frequency * 100.0 ** (2 * pair / HEAD_DIM) for pair, frequency in enumerate(expected)}) == 4
    )  # all three rules
    for pair, frequency in enumerate(expected):
        turned_C = rotation.apply(torch.eye(HEAD_DIM)[2 * pair].view(1, 1, 1, HEAD_DIM)).flatten()
        assert math.atan2(turned_C[2 * pair + 1], turned_C[2 * pair]) == pytest.approx(frequency, rel=1e-4)


def test_yarn_keeps_early_pairs_and_divides_late_ones() -> None:
    """Qwen3 for 131,072 tokens: 32 turns within 32,768 tokens at pair 23.6, one turn at pair 39.7."""
    config = YarnRotaryConfig(theta=1e6, factor=4.0, original_context_length=32_768, attention_factor=1.0)
    shares = config.kept_shares(128)
    assert len(shares) == 64
    assert set(shares[:24]) == {1.0}
    assert set(shares[40:]) == {0.0}
    assert shares[24:40] == pytest.approx([1 - number / 17 for number in range(1, 17)])
    exact = dataclasses.replace(config, bounds="exact").kept_shares(128)
    assert exact[24:40] == pytest.approx([1 - (pair - 23.596) / (39.652 - 23.596) for pair in range(24, 40)], abs=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_yarn_multiplies_lengths_by_its_attention_factor(layout: Literal["interleaved", "half"]) -> None:
    factor = yarn_attention_factor(4.0)
    assert factor == pytest.approx(1.138629, abs=1e-6)
    assert yarn_attention_factor(1.0) == 1.0
    config = YarnRotaryConfig(layout=layout, factor=4.0, original_context_length=64, attention_factor=factor)
    x_C = torch.randn(HEAD_DIM)
    turned_C = config.build(torch.tensor([[77]]), HEAD_DIM).apply(x_C.view(1, 1, 1, HEAD_DIM))
    assert turned_C.norm() == pytest.approx(factor * x_C.norm().item(), rel=1e-5)
