"""GPTQ: the algorithm of the paper, better than rounding for correlated inputs, typed errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from openafm.compression.errors import CompressionError
from openafm.compression.post_training.config import ClippedConfig, GPTQConfig
from openafm.compression.post_training.groups import GroupQuantized, MinMaxRange, quantize_groups
from openafm.core.config import ConfigError
from openafm.core.errors import UsageError

NUM_OUTPUTS, NUM_INPUTS = 48, 128


def weight(seed: int = 0) -> Tensor:
    return torch.randn(NUM_OUTPUTS, NUM_INPUTS, generator=torch.Generator().manual_seed(seed))


def correlated_moment(power: float = 1.0, seed: int = 1) -> Tensor:
    """Eigenvalues k^-power in random directions."""
    torch.set_num_threads(1)
    basis, _ = torch.linalg.qr(torch.randn(NUM_INPUTS, NUM_INPUTS, generator=torch.Generator().manual_seed(seed)))
    return basis @ torch.diag(torch.arange(1, NUM_INPUTS + 1) ** -power) @ basis.T


def output_error(quantized: GroupQuantized, weight_RC: Tensor, moment_CC: Tensor) -> float:
    """||(W - W~) X|| / ||W X||."""
    error_RC = torch.from_numpy(quantized.dequantize()) - weight_RC
    return float(((error_RC @ moment_CC * error_RC).sum() / (weight_RC @ moment_CC * weight_RC).sum()).sqrt())


def optimal_brain_quantization(weight_RC: Tensor, moment_CC: Tensor, config: GPTQConfig) -> np.ndarray:
    """The same greedy rounding by explicit removal of each column from the inverse, as in Optimal Brain Surgeon."""
    rest_RC = weight_RC.double().clone()
    inverse_CC = torch.linalg.inv(
        moment_CC.double() + config.damping * moment_CC.double().diagonal().mean() * torch.eye(NUM_INPUTS)
    )
    values_RC = torch.empty_like(weight_RC)
    for c in range(NUM_INPUTS):
        if c % config.group == 0:
            grid = config.range.grid(rest_RC[:, c : c + config.group].float().numpy(), config.bits)
        column_R1 = rest_RC[:, c : c + 1].float().numpy()
        values_RC[:, c : c + 1] = torch.from_numpy(grid.values(grid.codes(column_R1)))
        error_R1 = (rest_RC[:, c : c + 1] - values_RC[:, c : c + 1]) / inverse_CC[c, c]
        rest_RC[:, c:] -= error_R1 * inverse_CC[c, c:]
        inverse_CC -= torch.outer(inverse_CC[:, c], inverse_CC[c]) / inverse_CC[c, c]
    return values_RC.numpy()


@pytest.mark.parametrize(("bits", "group"), [(2, 64), (3, 32), (4, 48)])
def test_equals_the_unblocked_algorithm(bits: int, group: int) -> None:
    config = GPTQConfig(bits=bits, group=group)
    quantized = config.quantize(weight(), correlated_moment())
    expected_RC = optimal_brain_quantization(weight(), correlated_moment(), config)
    equal = np.isclose(quantized.dequantize(), expected_RC, atol=1e-3)
    assert equal.mean() > 0.999  # rounding errors may change the level of a number between two levels


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("order", ["given", "activation"])
def test_correlated_inputs_lose_less_than_by_rounding(bits: int, order: str) -> None:
    moment_CC = correlated_moment()
    rounded = ClippedConfig(bits=bits, group=32).quantize(weight().numpy())
    quantized = GPTQConfig(bits=bits, group=32, order=order).quantize(weight(), moment_CC)
    assert output_error(quantized, weight(), moment_CC) < 0.8 * output_error(rounded, weight(), moment_CC)
    assert quantized.bits_per_weight == rounded.bits_per_weight == bits + 1


@pytest.mark.parametrize("order", ["given", "activation"])
def test_uncorrelated_inputs_are_rounded_one_by_one(order: str) -> None:
    moment_CC = torch.diag(torch.linspace(1, 2, NUM_INPUTS))
    quantized = GPTQConfig(bits=3, group=32, order=order).quantize(weight(), moment_CC)
    rounded = ClippedConfig(bits=3, group=32).quantize(weight().numpy())
    np.testing.assert_array_equal(quantized.dequantize(), rounded.dequantize())


def test_activation_order_rounds_the_strongest_input_before_it_can_change() -> None:
    moment_CC = correlated_moment()
    strength_C = torch.ones(NUM_INPUTS)
    strength_C[100] = 30.0
    moment_CC = strength_C[:, None] * moment_CC * strength_C
    config = GPTQConfig(bits=3, group=32, order="activation", range=MinMaxRange())
    rounded = quantize_groups(weight().numpy(), bits=3, group=32, range=MinMaxRange())
    quantized = config.quantize(weight(), moment_CC)
    np.testing.assert_array_equal(quantized.codes_RC[:, 100], rounded.codes_RC[:, 100])
    np.testing.assert_array_equal(quantized.scale_RG, rounded.scale_RG)


def test_scaling_the_moment_changes_nothing() -> None:
    one = GPTQConfig(bits=3, group=32).quantize(weight(), correlated_moment())
    other = GPTQConfig(bits=3, group=32).quantize(weight(), 1024 * correlated_moment())
    np.testing.assert_array_equal(one.codes_RC, other.codes_RC)


def test_constant_zero_inputs_are_supported() -> None:
    moment_CC = correlated_moment()
    moment_CC[5], moment_CC[:, 5] = 0, 0
    quantized = GPTQConfig(bits=4, group=32).quantize(weight(), moment_CC)
    assert np.isfinite(quantized.dequantize()).all()


@pytest.mark.parametrize(
    "moment_CC",
    [torch.zeros(NUM_INPUTS, NUM_INPUTS), -torch.eye(NUM_INPUTS), torch.full((NUM_INPUTS, NUM_INPUTS), torch.nan)],
    ids=["zero", "negative", "nan"],
)
def test_a_moment_that_is_not_positive_definite_is_refused(moment_CC: Tensor) -> None:
    with pytest.raises(CompressionError, match="second moment of up's inputs is not positive"):
        GPTQConfig().quantize(weight(), moment_CC, "up")


def test_a_moment_of_another_size_is_refused() -> None:
    with pytest.raises(UsageError, match="128 inputs"):
        GPTQConfig().quantize(weight(), torch.eye(4))


def test_a_weight_that_is_not_finite_is_refused() -> None:
    broken = weight()
    broken[3, 3] = torch.inf
    with pytest.raises(CompressionError, match="up"):
        GPTQConfig().quantize(broken, correlated_moment(), "up")


@pytest.mark.parametrize("values", [{"bits": 1}, {"group": 1}, {"damping": -0.1}])
def test_impossible_configs_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        GPTQConfig(**values)
