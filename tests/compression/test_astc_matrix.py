"""Whole matrices: padding, stacks, rotation, stored tensors, extreme values, errors."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openafm.compression.astc.config import AstcConfig, HadamardConfig, LiteralAstcConfig
from openafm.compression.astc.jobs import Encoded, run
from openafm.compression.astc.matrix import AstcMatrix, decode_matrix, encode_matrix
from openafm.compression.astc.rotation import rotate, rotate_inputs, unrotate
from openafm.compression.errors import CompressionError
from openafm.core.errors import UsageError

CONFIGS = [AstcConfig(), AstcConfig(partitions=1, rotation=None), LiteralAstcConfig()]


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(0.01, 0.05, shape).astype(np.float32)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
@pytest.mark.parametrize("shape", [(6, 6), (7, 13), (64, 100), (3, 12, 8), (2, 2, 9, 24)])
def test_any_shape_round_trips(shape: tuple[int, ...], config: AstcConfig | LiteralAstcConfig) -> None:
    weight = weights(*shape)
    matrix = encode_matrix(weight, config)
    decoded = decode_matrix(matrix)
    assert decoded.shape == shape
    assert decoded.dtype == np.float32
    assert np.linalg.norm(decoded - weight) < 0.35 * np.linalg.norm(weight)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_a_stack_is_encoded_like_its_matrices(config: AstcConfig | LiteralAstcConfig) -> None:
    weight = weights(3, 20, 18)
    weight[1] *= 100  # its own scale
    together = decode_matrix(encode_matrix(weight, config))
    for alone, stacked in zip(weight, together, strict=True):
        np.testing.assert_array_equal(decode_matrix(encode_matrix(alone, config)), stacked)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_stored_tensors_hold_everything(config: AstcConfig | LiteralAstcConfig) -> None:
    matrix = encode_matrix(weights(2, 20, 30), config)
    tensors = matrix.tensors("layers.0.up")
    assert all(name.startswith("layers.0.up") for name in tensors)
    assert tensors["layers.0.up"].shape == (2, 4, 5, 16)
    again = AstcMatrix.from_tensors("layers.0.up", tensors, (2, 20, 30))
    np.testing.assert_array_equal(decode_matrix(again), decode_matrix(matrix))
    assert again.num_bits == matrix.num_bits == 8 * sum(tensor.nbytes for tensor in tensors.values())


def test_stored_tensors_that_do_not_fit_are_refused() -> None:
    tensors = encode_matrix(weights(20, 30), AstcConfig()).tensors("w")
    with pytest.raises(CompressionError, match="got nothing"):
        AstcMatrix.from_tensors("v", tensors, (20, 30))
    with pytest.raises(CompressionError, match=r"\[1, 5, 5, 16\]"):
        AstcMatrix.from_tensors("w", tensors, (25, 30))
    with pytest.raises(CompressionError, match=r"\.scale"):
        AstcMatrix.from_tensors("w", {"w": tensors["w"]}, (20, 30))
    for part in ("scale", "offset", "rotation_seed"):
        with pytest.raises(CompressionError, match=rf"'w\.{part}' has shape \[2\]"):
            AstcMatrix.from_tensors("w", tensors | {f"w.{part}": np.zeros(2, np.float32)}, (20, 30))


def test_all_bits_are_counted() -> None:
    matrix = encode_matrix(weights(2, 96, 96), AstcConfig())
    assert matrix.num_bits == 2 * 256 * 128 + 2 * 64 + 64
    assert matrix.padding_bits == 0
    padded = encode_matrix(weights(8, 8), AstcConfig(rotation=None))
    assert padded.num_bits == 4 * 128 + 64
    assert padded.padding_bits == round((144 - 64) * 128 / 36)
    literal = encode_matrix(weights(12, 12), LiteralAstcConfig())
    assert literal.num_bits == 4 * 144 + 32


@pytest.mark.parametrize("config", [AstcConfig(), AstcConfig(rotation=None)])
def test_a_constant_matrix_is_exact(config: AstcConfig) -> None:
    weight = np.full((64, 64), 0.3, np.float32)
    np.testing.assert_array_equal(decode_matrix(encode_matrix(weight, config)), weight)
    noise = np.random.default_rng(0).normal(0, 1e-3, weight.shape).astype(np.float32)
    decoded = decode_matrix(encode_matrix(weight + noise, config))
    assert np.linalg.norm(decoded - weight - noise) < 0.2 * np.linalg.norm(noise), "a large mean costs nothing"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_the_relative_error_is_the_same_at_any_magnitude(config: AstcConfig | LiteralAstcConfig) -> None:
    weight = weights(2, 24, 30)
    expected = decode_matrix(encode_matrix(weight, config))
    for exponent in (-120, -60, 30, 98):
        decoded = decode_matrix(encode_matrix(np.ldexp(weight, exponent), config))
        np.testing.assert_allclose(np.ldexp(decoded, -exponent), expected, rtol=1e-5, atol=1e-6)
    tiny = np.ldexp(weight, -140)  # subnormal numbers have few bits
    assert np.linalg.norm(decode_matrix(encode_matrix(tiny, config)).astype(np.float64) - tiny) < 0.3 * np.linalg.norm(
        tiny.astype(np.float64)
    )


def test_the_literal_recipe_of_earlier_files_has_scale_1() -> None:
    matrix = encode_matrix(weights(12, 12), LiteralAstcConfig())
    tensors = matrix.tensors("w")
    scale = tensors.pop("w.scale")
    earlier = decode_matrix(AstcMatrix.from_tensors("w", tensors, (12, 12)))
    np.testing.assert_array_equal(earlier * scale[0], decode_matrix(matrix))


@settings(max_examples=30)
@given(st.integers(1, 100), st.integers(1, 100), st.integers(0, 2**63 - 1))
def test_rotation_is_orthogonal(num_rows: int, num_columns: int, seed: int) -> None:
    weight = np.random.default_rng(0).normal(size=(num_rows, num_columns))
    rotated = rotate(weight, seed)
    np.testing.assert_allclose(unrotate(rotated, seed), weight, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(rotated), np.linalg.norm(weight), rtol=1e-5)
    inputs = np.random.default_rng(1).normal(size=(3, num_columns))
    products = rotate_inputs(weight, seed) @ rotate_inputs(inputs, seed).T
    np.testing.assert_allclose(products, weight @ inputs.T, atol=1e-4)


def test_rotation_spreads_outliers_and_its_signs_are_fixed() -> None:
    weight = np.zeros((64, 832), np.float32)
    weight[3, 100] = 1
    rotated = rotate(weight, 7)
    assert np.count_nonzero(rotated) == 64 * 64
    assert rotated[0, 64] == pytest.approx(-1 / 64)  # files stay readable by later versions
    assert np.abs(rotate(weight, 8) - rotated).max() > 0


def test_the_seed_of_the_rotation_is_kept() -> None:
    weight = weights(64, 64)
    matrices = [encode_matrix(weight, AstcConfig(rotation=HadamardConfig(seed=seed))) for seed in (1, 2)]
    assert [matrix.rotation_seed for matrix in matrices] == [1, 2]
    assert (matrices[0].blocks != matrices[1].blocks).any()


@pytest.mark.long
def test_processes_give_the_same_blocks() -> None:
    weight, config = weights(3, 200, 200), AstcConfig(num_candidates=1)
    done: list[int] = []
    matrix = encode_matrix(weight, config, num_workers=2, on_progress=done.append)
    np.testing.assert_array_equal(matrix.blocks, encode_matrix(weight, config).blocks)
    assert done == sorted(done)
    assert len(done) > 2
    assert done[-1] == weight.size


@dataclass(frozen=True)
class KilledJob:
    def run(self) -> Encoded:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


@pytest.mark.long
def test_a_killed_worker_is_reported() -> None:
    with pytest.raises(CompressionError, match="fewer workers"):
        list(run([KilledJob()] * 8, num_workers=2))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    weight = weights(12, 12)
    weight[3, 4] = bad
    with pytest.raises(CompressionError, match=r"'layers\.3\.up' \[12, 12\] holds NaN or infinity"):
        encode_matrix(weight, AstcConfig(), name="layers.3.up")


@pytest.mark.parametrize("shape", [(5, 100), (100, 5), (100,), (0, 12, 12)])
def test_too_small_matrices_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(CompressionError, match="too small to block"):
        encode_matrix(np.ones(shape, np.float32), AstcConfig())


def test_all_zero_weights_are_refused_but_one_of_a_stack_may_be() -> None:
    with pytest.raises(CompressionError, match=r"'w' .* all zero"):
        encode_matrix(np.zeros((12, 12), np.float32), AstcConfig(), name="w")
    weight = weights(2, 12, 12)
    weight[1] = 0
    assert not decode_matrix(encode_matrix(weight, AstcConfig()))[1].any()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_weights_near_the_largest_number_are_refused(config: AstcConfig | LiteralAstcConfig) -> None:
    weight = np.sign(weights(12, 12)) * np.float32(3.4e38)
    with pytest.raises(CompressionError, match=r"'w' \[12, 12\] holds weights of 2\^96 or more"):
        encode_matrix(weight, config, name="w")


def test_calibration_that_does_not_fit_is_refused() -> None:
    weight = weights(12, 18)
    for calibration in (np.eye(12), np.full((18, 18), np.nan)):
        with pytest.raises(UsageError, match="calibration"):
            encode_matrix(weight, AstcConfig(), calibration=calibration)
    with pytest.raises(UsageError, match="pass a sum of x x"):
        encode_matrix(weight, AstcConfig(rotation=None), calibration=np.diag([-1.0] + 17 * [1.0]))
    with pytest.raises(UsageError, match="literal"):
        encode_matrix(weight, LiteralAstcConfig(), calibration=np.eye(18))
