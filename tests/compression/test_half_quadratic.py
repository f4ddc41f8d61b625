"""Half-quadratic quantization: its objective is not above that of rounding to nearest, for every group of every matrix."""

from __future__ import annotations

import numpy as np
import pytest

from openafm.compression.grouped import NEAREST
from openafm.compression.post_training.config import HalfQuadraticConfig
from openafm.compression.post_training.groups import MinMaxRange, RangeConfig, quantize_groups
from openafm.compression.post_training.half_quadratic import HalfQuadraticRange, _Step
from openafm.core.config import ConfigError

RNG = np.random.default_rng(0)
MATRICES = {
    "gaussian": RNG.standard_normal((24, 256)),
    "heavy tails": RNG.standard_t(3, (24, 256)),
    "small": RNG.standard_normal((24, 256)) * 1e-4,
    "large": RNG.standard_normal((24, 256)) * 1e4,
    "outliers": RNG.standard_normal((24, 256)) + 20 * (RNG.random((24, 256)) < 0.01),
    "constant": np.full((24, 256), 0.75),
    "shifted": RNG.standard_normal((24, 256)) + 5,
}


def errors(weight_RC: np.ndarray, bits: int, range: RangeConfig) -> np.ndarray:
    """Sum of |w - w~|^0.7 of each group of each row."""
    rest_RC = weight_RC - quantize_groups(weight_RC, bits=bits, group=64, range=range).dequantize()
    return (np.abs(rest_RC).astype(np.float64) ** 0.7).reshape(len(weight_RC), -1, 64).sum(-1)


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("name", MATRICES)
def test_the_objective_is_not_above_that_of_rounding_to_nearest(name: str, bits: int) -> None:
    weight_RC = MATRICES[name].astype(np.float32)
    ours = errors(weight_RC, bits, HalfQuadraticRange())
    for nearest in (MinMaxRange(), NEAREST):
        assert (ours <= errors(weight_RC, bits, nearest) * (1 + 1e-5)).all()
    if name not in ("constant", "large"):
        assert ours.sum() < 0.99 * errors(weight_RC, bits, NEAREST).sum()


def test_the_minimum_is_the_mean_of_what_codes_and_outliers_leave() -> None:
    weight_Rg = MATRICES["heavy tails"][:, :64].astype(np.float32)
    grid, beta, power = MinMaxRange().grid(weight_Rg, 4), 3.0, 0.7
    codes, scale = grid.codes(weight_Rg).astype(np.float64), grid.scale_R.astype(np.float64)[:, None]
    rest = (weight_Rg - grid.minimum_R.astype(np.float64)[:, None]) / scale - codes
    outliers = np.sign(rest) * np.maximum(np.abs(rest) - np.abs(rest) ** (power - 1) / beta, 0)
    expected = (weight_Rg - (codes + outliers) * scale).mean(1)
    moved = _Step.of(grid, weight_Rg, power).moved(beta, power)
    np.testing.assert_allclose(moved.minimum_R, expected, rtol=1e-3)  # fp16
    assert not np.allclose(moved.minimum_R, grid.minimum_R, rtol=2e-3)


def test_settings() -> None:
    assert HalfQuadraticConfig(bits=3, group=32).quantize(MATRICES["gaussian"].astype(np.float32)).scale_RG.shape == (24, 8)
    for changes in ({"power": 0.0}, {"power": 1.5}, {"beta": 0.0}, {"growth": 0.9}, {"num_steps": 0}):
        with pytest.raises(ConfigError):
            HalfQuadraticRange(**changes)
