"""Keyed permutations are bijections; mixtures count exactly."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openafm.data.loading.permutation import Permutation
from openafm.data.loading.weighted_draws import Mixture, tempered_shares

keys = st.lists(st.integers() | st.text(), max_size=3)


@settings(max_examples=40)
@given(size=st.integers(1, 5000), key=keys)
def test_permutation_is_a_bijection(size: int, key: list[int | str]) -> None:
    assert np.array_equal(np.sort(Permutation(size, *key)(np.arange(size))), np.arange(size))


@given(size=st.integers(1, 1 << 62), key=keys, data=st.data())
def test_permutation_of_any_size_is_injective_and_in_range(size: int, key: list[int | str], data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, size - 1), unique=True, max_size=50))
    images = Permutation(size, *key)(np.array(indices, dtype=np.int64))
    assert len(set(images.tolist())) == len(indices)
    assert all(0 <= image < size for image in images)


def test_permutation_is_frozen_and_depends_on_the_key() -> None:
    assert Permutation(10, 0, "epoch")(np.arange(10)).tolist() == [8, 0, 1, 4, 3, 6, 7, 9, 5, 2]
    orders = {tuple(Permutation(100, seed, "epoch")(np.arange(100)).tolist()) for seed in range(50)}
    assert len(orders) == 50


def test_permutation_spreads_every_index_evenly() -> None:
    size, trials = 7, 2100
    counts = np.zeros((size, size))
    for seed in range(trials):
        counts[np.arange(size), Permutation(size, seed)(np.arange(size))] += 1
    expected = trials / size
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 80  # 36 degrees of freedom: p = 4e-5


def test_permutation_refuses_indices_outside() -> None:
    with pytest.raises(IndexError):
        Permutation(5, 0)([5])


@st.composite
def exact_weights(draw: st.DrawFn) -> tuple[list[float], int]:
    parts = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    scale = draw(st.sampled_from([1, 10, 100, 1000]))
    total = sum(parts)
    return [part / scale for part in parts], total


@given(exact_weights(), st.integers(0, 10_000))
def test_mixture_counts_are_exact_over_every_block(weights: tuple[list[float], int], blocks: int) -> None:
    values, block = weights
    total = sum(Fraction(str(value)) for value in values)
    expected = tuple(int(Fraction(str(value)) / total * block) * blocks for value in values)
    assert Mixture(values).drawn(blocks * block) == expected


@given(exact_weights(), st.integers(0, 1 << 50))
def test_mixture_counts_add_up_and_grow_by_one_draw(weights: tuple[list[float], int], n: int) -> None:
    values, _ = weights
    mixture = Mixture(values)
    before, after = mixture.drawn(n), mixture.drawn(n + 1)
    assert sum(before) == n
    assert sorted(b - a for a, b in zip(before, after, strict=True)) == [0] * (len(values) - 1) + [1]
    total = sum(values)
    assert abs(before[0] - n * Fraction(str(values[0])) / sum(Fraction(str(value)) for value in values)) <= Fraction(1, 2)
    for position, (value, count) in enumerate(zip(values, before, strict=True)):
        assert abs(count - n * value / total) < 1 + position + n * 1e-12


SIZES = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 10**12), min_size=1, max_size=12)


@given(sizes=SIZES, temperature=st.floats(1, 50))
def test_tempered_shares_add_up_and_keep_the_order_of_the_sizes(sizes: dict[str, int], temperature: float) -> None:
    shares = tempered_shares(sizes, temperature)
    assert sum(shares.values()) == pytest.approx(1)
    by_size = sorted(sizes, key=lambda name: sizes[name])
    assert all(0 < shares[small] <= shares[large] for small, large in itertools.pairwise(by_size))


@given(sizes=SIZES, temperature=st.floats(1, 50))
def test_tempered_shares_are_in_the_ratio_of_powers(sizes: dict[str, int], temperature: float) -> None:
    shares = tempered_shares(sizes, temperature)
    first = next(iter(sizes))
    for name, size in sizes.items():
        assert shares[name] / shares[first] == pytest.approx((size / sizes[first]) ** (1 / temperature), rel=1e-6)


def test_temperature_one_keeps_the_proportions_and_a_high_one_evens_them() -> None:
    assert tempered_shares({"de": 60, "fr": 30, "da": 10}, 1) == {"de": 0.6, "fr": 0.3, "da": 0.1}
    assert tempered_shares({"de": 64, "da": 1}, 3) == {"de": 0.8, "da": 0.2}
    assert max(tempered_shares({"de": 10**6, "da": 1}, 1e6).values()) == pytest.approx(0.5, abs=1e-4)
