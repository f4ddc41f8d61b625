"""Block-GPTQ reduces the error of the layer's outputs for correlated inputs."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from openafm.compression.astc.config import AstcConfig
from openafm.compression.astc.matrix import decode_matrix, encode_matrix

CONFIGS = [AstcConfig(), AstcConfig(partitions=1, rotation=None)]


def moments(size: int, power: float, seed: int = 0) -> NDArray[np.float64]:
    """Input covariance with eigenvalues k^-power in random directions."""
    directions, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    return directions * np.arange(1.0, size + 1) ** -power @ directions.T * 500


def output_error(weight: NDArray[np.float32], decoded: NDArray[np.float32], inputs_CC: NDArray[np.float64]) -> float:
    root = np.linalg.cholesky(inputs_CC)
    return float(np.linalg.norm((weight - decoded) @ root) / np.linalg.norm(weight @ root))


def gain(weight: NDArray[np.float32], inputs_CC: NDArray[np.float64], config: AstcConfig) -> float:
    plain = output_error(weight, decode_matrix(encode_matrix(weight, config)), inputs_CC)
    calibrated = decode_matrix(encode_matrix(weight, config, calibration=inputs_CC))
    return output_error(weight, calibrated, inputs_CC) / plain


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("power", "most"), [(0.0, 1.02), (1.0, 0.8)])
def test_calibration_uses_correlated_inputs(power: float, most: float, config: AstcConfig) -> None:
    weight = np.random.default_rng(1).normal(size=(96, 96)).astype(np.float32)
    assert gain(weight, moments(96, power), config) < most


def test_refinements_help() -> None:
    weight = np.random.default_rng(1).normal(size=(96, 96)).astype(np.float32)
    once, refined = (gain(weight, moments(96, 1.0), AstcConfig(refinements=number)) for number in (0, 2))
    assert refined < 0.985 * once


@pytest.mark.parametrize("config", CONFIGS)
def test_padding_has_no_effect(config: AstcConfig) -> None:
    weight = np.random.default_rng(1).normal(size=(52, 100)).astype(np.float32)
    assert gain(weight, moments(100, 1.0), config) < 0.8


@pytest.mark.slow
def test_each_matrix_of_a_stack_may_have_its_own_inputs() -> None:
    weight = np.random.default_rng(1).normal(size=(2, 96, 96)).astype(np.float32)
    inputs = np.stack([moments(96, 1.0, seed) for seed in (1, 2)])
    own = decode_matrix(encode_matrix(weight, AstcConfig(), calibration=inputs))
    alone = decode_matrix(encode_matrix(weight[1], AstcConfig(), calibration=inputs[1]))
    np.testing.assert_array_equal(own[1], alone)
    shared = decode_matrix(encode_matrix(weight, AstcConfig(), calibration=inputs[0]))
    np.testing.assert_array_equal(shared[0], own[0])
    assert output_error(weight[1], own[1], inputs[1]) < output_error(weight[1], shared[1], inputs[1])


def test_zero_inputs_are_harmless() -> None:
    weight = np.random.default_rng(1).normal(size=(96, 96)).astype(np.float32)
    inputs = moments(96, 1.0)
    inputs[10:20], inputs[:, 10:20] = 0, 0
    decoded = decode_matrix(encode_matrix(weight, AstcConfig(rotation=None), calibration=inputs))
    assert np.linalg.norm(decoded - weight) < 0.3 * np.linalg.norm(weight)
    unused = decode_matrix(encode_matrix(weight, AstcConfig(), calibration=np.zeros((96, 96))))
    assert np.linalg.norm(unused - weight) < 0.21 * np.linalg.norm(weight)
