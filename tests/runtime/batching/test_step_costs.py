"""Estimates of step times: ascending with the rows, accurate, and robust against a noisy machine."""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_engines import ONE_OF_EACH, TINY, random_tokens

from openafm.runtime.batching.step_costs import MAX_DECODE_TOKENS, StepCosts
from openafm.runtime.engines.base import TokenError

RECORDS = st.lists(st.tuples(st.integers(1, 600), st.floats(1e-6, 10)), min_size=1, max_size=60)


def costs_of(seconds: dict[int, float]) -> StepCosts:
    costs = StepCosts()
    for num_rows, taken in seconds.items():
        costs.record(num_rows, taken)
    return costs


def test_there_is_no_estimate_before_a_step() -> None:
    assert StepCosts().seconds(1) is None


@given(records=RECORDS)
def test_estimates_never_decrease_with_the_rows(records: list[tuple[int, float]]) -> None:
    costs = StepCosts()
    for num_rows, seconds in records:
        costs.record(num_rows, seconds)
    estimates = [costs.seconds(n) for n in range(1, 700)]
    assert all(estimate is not None and 0 < estimate < 1e4 for estimate in estimates)
    assert all(a is not None and b is not None and a <= b * (1 + 1e-12) for a, b in itertools.pairwise(estimates))


@given(fixed=st.floats(1e-4, 1), each=st.floats(0, 1), seen=st.sets(st.integers(1, MAX_DECODE_TOKENS), min_size=2))
def test_counts_between_recorded_ones_are_interpolated(fixed: float, each: float, seen: set[int]) -> None:
    costs = costs_of({n: fixed + each * n for n in seen})
    for n in range(min(seen), max(seen) + 1):
        assert costs.seconds(n) == pytest.approx(fixed + each * n)


def test_large_steps_share_one_estimate_per_row() -> None:
    costs = costs_of({1: 1.0, 4: 2.0, 512: 256.0})
    assert costs.seconds(100) == pytest.approx(50)
    assert costs.seconds(512) == pytest.approx(256)
    between = costs.seconds(20)
    assert between is not None
    assert 2 < between < 33 / 2
    cheaper = costs_of({1: 1.0, 30: 20.0, 400: 40.0})  # rows of a prompt, which give no logits
    assert [cheaper.seconds(n) for n in (30, 33, 100, 300)] == pytest.approx([20, 20, 20, 30])
    assert costs_of({4: 2.0}).seconds(40) == pytest.approx(20)
    assert costs_of({1: 1.0, 2: 1.1}).seconds(4) == pytest.approx(1.3)


@given(truth=st.floats(1e-4, 1), disturbed=st.lists(st.integers(1, 12), min_size=20, max_size=60))
def test_disturbed_steps_do_not_change_the_estimate(truth: float, disturbed: list[int]) -> None:
    """One of every three takes up to twelve times as long."""
    costs = StepCosts()
    for number, factor in enumerate(disturbed):
        costs.record(2, truth * (factor if number % 3 == 0 else 1))
    assert costs.seconds(2) == pytest.approx(truth)


def test_a_larger_faster_step_lowers_smaller_estimates() -> None:
    costs = costs_of({1: 1.0, 2: 9.0, 3: 1.5})
    assert costs.seconds(2) == pytest.approx(1.5)
    assert costs.seconds(1) == pytest.approx(1.0)


def test_estimates_follow_a_change_of_speed() -> None:
    costs = StepCosts()
    for seconds in [1.0] * 30 + [3.0] * 6:
        costs.record(1, seconds)
    assert costs.seconds(1) == pytest.approx(3)
    for _ in range(6):
        costs.record(1, 0.5)
    assert costs.seconds(1) == pytest.approx(0.5)


def test_it_is_thread_safe() -> None:
    costs, failures = StepCosts(), []

    def run(seed: int) -> None:
        for number in range(500):
            num_rows = 1 + (seed * 7 + number) % 40
            costs.record(num_rows, num_rows * 1.0)
            if abs((costs.seconds(num_rows) or 0) - num_rows) > 1e-9:
                failures.append(num_rows)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_engines_record_steps_with_logits_for_every_row(name: str) -> None:
    engine = TINY[name].open()
    sequence, other = engine.new_sequence(), engine.new_sequence()
    with pytest.raises(TokenError):
        engine.step([(sequence, [])])
    engine.step([(sequence, random_tokens(5))])  # only the last row passes all layers
    assert engine.costs.seconds(5) is None
    engine.step([(sequence, [1]), (other, [2])])
    engine.step([(sequence, [1, 2, 3])], "all")
    two, three = engine.costs.seconds(2), engine.costs.seconds(3)
    assert two is not None
    assert three is not None
    assert 0 < two <= three
    engine.step([(sequence, random_tokens(40))])
    assert engine.costs.seconds(40) is not None


def test_old_estimates_expire() -> None:
    costs = costs_of({1: 1.0, 2: 9.0, 100: 50.0})
    for _ in range(600):
        costs.record(1, 1.0)
    between = costs.seconds(2)
    assert between is not None
    assert 1 < between < 2  # between one row and many; no step had this number of rows
    costs.record(2, 1.2)
    assert costs.seconds(2) == pytest.approx(1.2)
    assert costs.latest_rows == 2
