"""Rounding in groups and the 4-bit embedding: published errors, exact round trips, equal bits in numpy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from openafm.compression.errors import CompressionError
from openafm.compression.fake_quant_embedding import fake_quantize_embedding
from openafm.compression.int4_embedding import Int4Embedding, pack_nibbles, quantize_embedding, unpack_nibbles
from openafm.compression.post_training.config import ClippedConfig, GroupConfig, RoundToNearestConfig
from openafm.compression.post_training.groups import ClippedRange, MinMaxRange, RangeConfig
from openafm.core.config import ConfigError


def gaussian(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def relative_error(weight_RC: np.ndarray, config: GroupConfig) -> float:
    return float(np.linalg.norm(config.quantize(weight_RC).dequantize() - weight_RC) / np.linalg.norm(weight_RC))


@pytest.mark.parametrize(
    ("bits", "group", "plain", "clipped"),
    [(4, 32, 0.078, 0.075), (4, 128, 0.100, 0.094), (3, 64, 0.193, 0.172)],
)
def test_gaussian_errors_equal_published_values(bits: int, group: int, plain: float, clipped: float) -> None:
    weight_RC = gaussian(256, 512)
    assert relative_error(weight_RC, RoundToNearestConfig(bits=bits, group=group)) == pytest.approx(plain, rel=0.02)
    assert relative_error(weight_RC, ClippedConfig(bits=bits, group=group)) == pytest.approx(clipped, rel=0.02)


def test_two_bits_clipped() -> None:
    assert relative_error(gaussian(256, 512), ClippedConfig(bits=2, group=64)) < 0.34


@pytest.mark.parametrize("config", [RoundToNearestConfig(bits=5, group=64), ClippedConfig(bits=5, group=64)])
def test_a_shorter_last_group_has_its_own_levels(config: GroupConfig) -> None:
    weight_RC = gaussian(7, 150)
    weight_RC[:, 128:] *= 1000
    quantized = config.quantize(weight_RC)
    assert quantized.scale_RG.shape == (7, 3)
    assert quantized.bits_per_weight == 5 + 32 * 3 / 150
    alone = config.quantize(weight_RC[:, 128:])
    np.testing.assert_array_equal(quantized.dequantize()[:, 128:], alone.dequantize())


def test_min_max_errors_are_at_most_half_a_step() -> None:
    weight_RC = gaussian(16, 96)
    quantized = RoundToNearestConfig(bits=8, group=32).quantize(weight_RC)
    steps_RC = quantized.scale_RG.astype(np.float32).repeat(32, axis=1)
    assert (
        np.abs(quantized.dequantize() - weight_RC) <= 0.6 * steps_RC
    ).all()  # the rest is rounding of scale and minimum to fp16


def test_constant_groups_and_zeros_are_kept() -> None:
    weight_RC = np.zeros((2, 64), dtype=np.float32)
    weight_RC[1] = 0.75
    np.testing.assert_array_equal(ClippedConfig(bits=2, group=32).quantize(weight_RC).dequantize(), weight_RC)


@pytest.mark.parametrize(
    "weight_RC",
    [
        np.array([[1.0, np.nan]], dtype=np.float32),
        np.array([[1.0, np.inf]], dtype=np.float32),
        np.array([[1.0, -1e6]], dtype=np.float32),
        np.zeros((0, 4), dtype=np.float32),
        np.zeros(4, dtype=np.float32),
    ],
)
def test_errors_name_the_matrix(weight_RC: np.ndarray) -> None:
    with pytest.raises(CompressionError, match=r"layers\.3\.up"):
        RoundToNearestConfig(bits=4, group=32).quantize(weight_RC, "layers.3.up")


@pytest.mark.parametrize("bits", [1, 9])
def test_bits_out_of_range_are_refused(bits: int) -> None:
    with pytest.raises(ConfigError, match=r"2 to 8"):
        ClippedConfig(bits=bits)


@given(
    hnp.arrays(np.uint8, st.tuples(st.integers(1, 5), st.integers(1, 9).map(lambda n: 2 * n)), elements=st.integers(0, 15))
)
def test_nibbles_round_trip(codes_VD: np.ndarray) -> None:
    packed = pack_nibbles(codes_VD)
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(unpack_nibbles(packed), codes_VD)


def test_the_low_nibble_comes_first() -> None:
    np.testing.assert_array_equal(pack_nibbles(np.array([[1, 2, 15, 0]], dtype=np.uint8)), [[0x21, 0x0F]])


embeddings = st.builds(
    lambda seed, scale, offset: scale * gaussian(4, 64, seed=seed) + np.float32(offset * scale),
    st.integers(0, 10_000),
    st.sampled_from([1e-3, 0.02, 1.0, 50.0]),
    st.floats(-3, 3),
)


@settings(max_examples=30)
@given(embeddings, st.sampled_from([MinMaxRange(), ClippedRange()]))
def test_quantization_is_idempotent(weight_VD: np.ndarray, how: RangeConfig) -> None:
    once = quantize_embedding(weight_VD, how)
    for again in (MinMaxRange(), ClippedRange()):
        twice = quantize_embedding(once.dequantize(), again)
        np.testing.assert_array_equal(twice.dequantize(), once.dequantize())
        np.testing.assert_array_equal(twice.codes_VD, once.codes_VD)


@settings(max_examples=50)
@given(embeddings)
def test_training_uses_the_stored_values(weight_VD: np.ndarray) -> None:
    seen = fake_quantize_embedding(torch.from_numpy(weight_VD)).numpy()
    stored = quantize_embedding(weight_VD, MinMaxRange()).dequantize()
    np.testing.assert_array_equal(seen.view(np.int32), stored.view(np.int32))


def test_training_uses_constant_groups_as_stored() -> None:
    weight_VD = np.concatenate([np.zeros((2, 32)), np.full((2, 32), 0.3)], axis=1).astype(np.float32)
    seen = fake_quantize_embedding(torch.from_numpy(weight_VD)).numpy()
    np.testing.assert_array_equal(seen, quantize_embedding(weight_VD, MinMaxRange()).dequantize())


def test_gradients_pass_to_the_weight_unchanged() -> None:
    weight_VD = torch.from_numpy(gaussian(3, 64)).requires_grad_()
    slope_VD = torch.from_numpy(gaussian(3, 64, seed=1))
    (fake_quantize_embedding(weight_VD) * slope_VD).sum().backward()
    assert torch.equal(weight_VD.grad, slope_VD)


def test_an_embedding_round_trips_through_its_tensors() -> None:
    embedding = quantize_embedding(gaussian(10, 64))
    tensors = embedding.tensors("embedding")
    shapes = {name: (str(tensor.dtype), tensor.shape) for name, tensor in tensors.items()}
    assert shapes == {
        "embedding": ("uint8", (10, 32)),
        "embedding.scale": ("float16", (10, 2)),
        "embedding.minimum": ("float16", (10, 2)),
    }
    read = Int4Embedding.from_tensors("embedding", tensors)
    np.testing.assert_array_equal(read.dequantize(), embedding.dequantize())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("embedding", np.zeros((10, 32), dtype=np.float32)),
        ("embedding.scale", np.zeros((10, 3), dtype=np.float16)),
        ("embedding.minimum", np.zeros((10, 2), dtype=np.float32)),
        ("embedding.minimum", None),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(key: str, value: np.ndarray | None) -> None:
    tensors = quantize_embedding(gaussian(10, 64)).tensors("embedding")
    tensors.pop(key)
    if value is not None:
        tensors[key] = value
    with pytest.raises(CompressionError, match=f"'{key}'"):
        Int4Embedding.from_tensors("embedding", tensors)


def test_other_widths_are_refused() -> None:
    with pytest.raises(CompressionError, match="multiple of 32"):
        quantize_embedding(gaussian(4, 48))
    with pytest.raises(CompressionError, match="multiple of 32"):
        fake_quantize_embedding(torch.zeros(4, 48))
