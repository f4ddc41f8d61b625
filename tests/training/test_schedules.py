"""Schedules: start, middle and end of their factors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openafm.core.config import ConfigError
from openafm.training.schedules import Constant, ScheduleConfig, WarmupCosine, WarmupStableDecay

SCHEDULES = (WarmupCosine(), WarmupStableDecay(), Constant(), WarmupCosine(warmup_fraction=0.0, final=0.0))


def test_warmup_is_linear_and_starts_above_zero() -> None:
    factors = [Constant(warmup_fraction=0.1).factor(step, 100) for step in range(12)]
    assert factors == pytest.approx([0.1 * n for n in range(1, 11)] + [1.0, 1.0])


def test_cosine_is_halfway_in_the_middle_and_final_at_the_end() -> None:
    schedule = WarmupCosine(warmup_fraction=0.0, final=0.2)
    assert schedule.factor(49, 100) == pytest.approx(0.6)
    assert schedule.factor(99, 100) == pytest.approx(0.2)


def test_stable_then_linear_decay() -> None:
    schedule = WarmupStableDecay(warmup_fraction=0.0, decay_fraction=0.2, final=0.0)
    assert [schedule.factor(step, 10) for step in range(10)] == pytest.approx([1.0] * 8 + [0.5, 0.0])


@given(st.sampled_from(SCHEDULES), st.integers(1, 300))
def test_factors_lie_in_the_unit_interval_and_only_fall_after_the_warmup(schedule: ScheduleConfig, n: int) -> None:
    factors = [schedule.factor(step, n) for step in range(n)]
    assert all(0 <= factor <= 1 for factor in factors)
    after = factors[round(schedule.warmup_fraction * n) :]
    assert after == sorted(after, reverse=True)


def test_impossible_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="warmup_fraction"):
        WarmupStableDecay(warmup_fraction=1.0)
    with pytest.raises(ConfigError, match="decay_fraction"):
        WarmupStableDecay(decay_fraction=0.0)
