"""The initial scale of a 2-bit matrix, against brute force and a library's levels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from openafm.compression.clip import codes_of, find_scale, squared_error
from openafm.compression.config import (
    AbsmaxClip,
    BalancedLevels,
    ClipConfig,
    LevelSetConfig,
    LloydClip,
    NewtonClip,
    OctavClip,
    UnbalancedLevels,
)
from openafm.compression.errors import CompressionError
from openafm.core.config import ConfigError

BALANCED, UNBALANCED = BalancedLevels(), UnbalancedLevels()


def draws(name: str, rows: int, count: int, seed: int) -> Tensor:
    torch.manual_seed(seed)
    match name:
        case "gaussian":
            return torch.randn(rows, count)
        case "student":
            return torch.distributions.StudentT(3.0).sample((rows, count))
        case "lognormal":
            return torch.randn(rows, count).sign() * torch.exp(1.15 * torch.randn(rows, count))
        case "outliers":
            weight = torch.randn(rows, count)
            weight[:, 0], weight[:, 1] = 499, -499
            return weight
    raise AssertionError(name)


def brute_force(weight: Tensor, levels: LevelSetConfig) -> Tensor:
    """The smallest squared error of each row over a fine grid of scales, up to the largest that codes a weight."""
    magnitude = weight.abs()
    first, last = magnitude.mean(1) / 8, 2.2 * magnitude.amax(1)
    errors = (squared_error(weight, first * (last / first) ** share, levels) for share in torch.linspace(0, 1, 800))
    return torch.stack(list(errors)).amin(0)


@pytest.mark.parametrize("levels", [BALANCED, UNBALANCED])
@pytest.mark.parametrize("name", ["gaussian", "student", "lognormal", "outliers"])
def test_newton_finds_the_smallest_error_of_rows_of_any_length(name: str, levels: LevelSetConfig) -> None:
    """Also where the error has several minima: few weights, heavy tails, outliers."""
    for seed, (rows, count) in enumerate(((100, 64), (20, 1024), (2, 20_000))):
        weight = draws(name, rows, count, seed)
        found = find_scale(NewtonClip(), weight, levels)
        assert found.num_iterations <= 6
        ratio = squared_error(weight, found.scale_G, levels) / brute_force(weight, levels)
        assert ratio.max().item() <= 1.001, (count, ratio.max())


def test_newton_needs_fewer_iterations_than_lloyd_for_the_same_scale() -> None:
    weight = draws("gaussian", 1, 200_000, 0)
    newton, lloyd = (find_scale(clip, weight, BALANCED) for clip in (NewtonClip(max_iterations=50), LloydClip()))
    assert newton.scale_G == pytest.approx(lloyd.scale_G, rel=2e-3)
    assert newton.num_iterations < lloyd.num_iterations


@pytest.mark.parametrize(("clip", "worse_than"), [(OctavClip(), 1.005), (AbsmaxClip(), 4.0)])
def test_the_other_clips_are_worse_on_gaussians(clip: ClipConfig, worse_than: float) -> None:
    weight = draws("gaussian", 1, 200_000, 0)
    assert squared_error(weight, find_scale(clip, weight, BALANCED).scale_G, BALANCED) > worse_than * brute_force(
        weight, BALANCED
    )


def test_absmax_puts_the_outermost_level_on_the_largest_weight() -> None:
    weight = torch.tensor([[0.1, -0.6, 0.3], [2.0, 0.1, -1.0]])
    assert find_scale(AbsmaxClip(), weight, BALANCED).scale_G.tolist() == pytest.approx([0.4, 2.0 / 1.5])
    assert find_scale(AbsmaxClip(), weight, UNBALANCED).scale_G.tolist() == pytest.approx([0.3, 1.0])


@pytest.mark.slow  # importing torchao takes ten seconds
def test_the_levels_are_those_of_torchaos_stretched_uniform_quantizer() -> None:
    stretched = pytest.importorskip("torchao.prototype.parq.quant").StretchedUnifTorchaoQuantizer(2)
    weight = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    theirs, _ = stretched.quantize(weight, 2, dim=-1)
    scale_R1 = theirs.abs().amax(1, keepdim=True) / 1.5
    ours = codes_of(weight, scale_R1, BALANCED) + BALANCED.levels[0]
    assert torch.allclose(ours * scale_R1, theirs, rtol=1e-5)
    assert len(theirs.unique()) > 3 * 64  # four levels in every row


@given(
    rows=st.integers(1, 6),
    columns=st.integers(1, 40),
    spread=st.floats(0.01, 100),
    seed=st.integers(0, 1000),
    levels=st.sampled_from([BALANCED, UNBALANCED]),
)
@settings(max_examples=60)
def test_the_scale_of_a_row_is_independent_of_other_rows(
    rows: int, columns: int, spread: float, seed: int, levels: LevelSetConfig
) -> None:
    weight = spread * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    # With more than one iteration, a row alone would stop earlier.
    for clip in (*(kind(max_iterations=1) for kind in (NewtonClip, LloydClip, OctavClip)), AbsmaxClip()):
        together = find_scale(clip, weight, levels).scale_G
        assert bool((together > 0).all())
        alone = torch.cat([find_scale(clip, row[None], levels).scale_G for row in weight])
        assert torch.allclose(together, alone, rtol=1e-4)
        codes = codes_of(weight, together[:, None], levels)
        assert set(codes.unique().tolist()) <= {0.0, 1.0, 2.0, 3.0}


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.tensor([[1.0, float("nan")]]), "gate holds a value that is not finite"),
        (torch.zeros(2, 3), "gate or one of its rows is all zero"),
    ],
)
def test_errors_name_the_weight(weight: Tensor, message: str) -> None:
    with pytest.raises(CompressionError, match=message):
        find_scale(NewtonClip(), weight, BALANCED, "gate")


def test_impossible_configs_are_refused() -> None:
    for kind in (NewtonClip, LloydClip, OctavClip):
        with pytest.raises(ConfigError, match="max_iterations must be at least 1"):
            kind(max_iterations=0)
