"""Sampling: exact distributions, reproducible seeds, and no forbidden token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from openafm.core.config import ConfigError
from openafm.runtime.decoding.sampling import BrokenLogitsError, GreedyConfig, RandomConfig

LOGITS = arrays(np.float32, st.integers(1, 40), elements=st.one_of(st.floats(-30, 30, width=32), st.just(-np.inf))).filter(
    lambda logits_V: np.isfinite(logits_V).any()
)


def reference_probabilities(logits_V: NDArray[np.float32], config: RandomConfig) -> NDArray[np.float64]:
    """Return the probability of every token by the definition: sort all tokens and go down the list."""
    scaled = logits_V.astype(np.float64) / config.temperature
    weights = np.exp(scaled - scaled.max())
    order = sorted(range(len(weights)), key=lambda token: (-scaled[token], token))
    order = [token for token in order if logits_V[token] > -np.inf][: config.top_k]
    if config.top_p is not None:
        total, sum_so_far, kept = sum(weights[order]), 0.0, []
        for token in order:
            if kept and sum_so_far >= config.top_p * total:
                break
            kept.append(token)
            sum_so_far += weights[token]
        order = kept
    probabilities = np.zeros(len(weights))
    probabilities[order] = weights[order]
    return probabilities / probabilities.sum()


def drawn(logits_V: NDArray[np.float32], config: RandomConfig, count: int) -> NDArray[np.intp]:
    sampler = config.build()
    return np.bincount([sampler.sample(logits_V, position) for position in range(count)], minlength=len(logits_V))


@given(LOGITS)
def test_greedy_takes_the_first_of_the_highest_logits(logits_V: NDArray[np.float32]) -> None:
    token = GreedyConfig().build().sample(logits_V, 0)
    assert logits_V[token] == logits_V.max()
    assert (logits_V[:token] < logits_V[token]).all()


@given(LOGITS, st.floats(0.05, 5), st.none() | st.integers(1, 10), st.none() | st.floats(0, 1), st.integers())
def test_only_possible_tokens_are_drawn(
    logits_V: NDArray[np.float32], temperature: float, top_k: int | None, top_p: float | None, seed: int
) -> None:
    config = RandomConfig(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    counts = drawn(logits_V, config, 10)
    # Rounding of the running sum may move a token across the edge of the nucleus, so the edge has a small tolerance. Logits
    # that differ may have equal weights; the nucleus may end at any of these.
    wider = replace(config, top_p=None if top_p is None else min(top_p * (1 + 1e-12) + 1e-300, 1.0))
    kept = reference_probabilities(logits_V, wider) > 0
    everything = reference_probabilities(logits_V, replace(config, top_p=None))
    assert (everything[counts > 0] >= everything[kept].min()).all()


@pytest.mark.parametrize(
    ("probabilities", "top_p", "expected"),
    [
        ([1 / 4] * 4, 0.5, [0, 1]),  # the first two reach exactly one half; a third one is not needed
        ([1 / 4] * 4, 0.51, [0, 1, 2]),
        ([1 / 4] * 4, 1.0, [0, 1, 2, 3]),
        ([1 / 8, 1 / 2, 1 / 8, 1 / 4], 0.75, [1, 3]),
        ([1 / 8, 1 / 2, 1 / 8, 1 / 4], 0.875, [0, 1, 3]),
        ([1 / 8, 1 / 2, 1 / 8, 1 / 4], 0.5, [1]),
    ],
)
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(
    probabilities: list[float], top_p: float, expected: list[int]
) -> None:
    """Worked by hand: powers of two are exact, so a sum that equals `top_p` is equal in floating point too."""
    logits_V = np.log2(np.array(probabilities, np.float32))
    config = RandomConfig(temperature=float(1 / np.log(2.0)), top_p=top_p, seed=0)
    assert drawn(logits_V, config, 400).nonzero()[0].tolist() == expected


@pytest.mark.parametrize(
    "config",
    [
        RandomConfig(seed=1),
        RandomConfig(temperature=2.0, top_k=5, seed=3),
        RandomConfig(top_p=0.7, seed=4),
        RandomConfig(temperature=1.5, top_k=8, top_p=0.8, seed=5),
        RandomConfig(top_p=0.0, seed=6),
        RandomConfig(top_k=1, seed=7),
    ],
)
def test_frequencies_match_the_probabilities(config: RandomConfig) -> None:
    logits_V = np.random.default_rng(0).normal(scale=2, size=12).astype(np.float32)
    logits_V[3] = -np.inf
    count = 4000
    counts, expected = drawn(logits_V, config, count), count * reference_probabilities(logits_V, config)
    assert (counts[expected == 0] == 0).all()
    possible = expected > 0
    chi_square = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    assert chi_square < 40  # 11 degrees of freedom: exceeded once in 30,000 draws


@given(LOGITS, st.floats(0.05, 5), st.none() | st.integers(1, 10), st.sampled_from([None, 0.3, 0.9]))
def test_log_probabilities_are_those_of_the_sampled_distribution(
    logits_V: NDArray[np.float32], temperature: float, top_k: int | None, top_p: float | None
) -> None:
    config = RandomConfig(temperature=temperature, top_k=top_k, top_p=top_p, seed=0)
    sampler, expected = config.build(), reference_probabilities(logits_V, config)
    found = np.exp([sampler.log_probability(logits_V, token) for token in range(len(logits_V))])
    assert found.sum() == pytest.approx(1)
    if top_p is None:
        assert found == pytest.approx(expected, abs=1e-15)
    greedy = GreedyConfig().build()
    assert [greedy.log_probability(logits_V, token) for token in (greedy.sample(logits_V, 0), len(logits_V))] == [0, -np.inf]


def test_forbidden_tokens_are_not_drawn_at_any_temperature() -> None:
    logits_V = np.array([0, -np.inf, -50, -np.inf, 30], np.float32)
    for temperature in (1e-30, 1e3, 1e37, 1e300):
        counts = drawn(logits_V, RandomConfig(temperature=temperature, seed=2), 100)
        assert counts[[1, 3]].sum() == 0
        assert (counts[[0, 2, 4]] > 0).all() == (temperature >= 1e3)


def test_ties_at_the_edge_of_top_k_go_to_the_lowest_ids() -> None:
    logits_V = np.array([1, 2, 1, 1, 1], np.float32)
    counts = drawn(logits_V, RandomConfig(top_k=3, seed=0), 500)
    assert counts.nonzero()[0].tolist() == [0, 1, 2]


def test_a_choice_depends_on_seed_and_position_only() -> None:
    logits_V = np.zeros(1000, np.float32)
    one, two, other = (RandomConfig(seed=seed).build() for seed in (7, 7, -7))
    forwards = [one.sample(logits_V, position) for position in range(50)]
    backwards = [two.sample(logits_V, position) for position in reversed(range(50))]
    assert forwards == backwards[::-1]
    assert len(set(forwards)) > 40
    assert forwards != [other.sample(logits_V, position) for position in range(50)]


def test_without_a_seed_every_answer_differs() -> None:
    logits_V = np.zeros(1000, np.float32)
    first, second = (
        [sampler.sample(logits_V, p) for p in range(20)] for sampler in (RandomConfig().build(), RandomConfig().build())
    )
    assert first != second


def test_rounding_differences_of_logits_do_not_change_the_choice() -> None:
    generator = np.random.default_rng(1)
    sampler = RandomConfig(seed=3, top_k=50, top_p=0.9).build()
    for position in range(300):
        logits_V = generator.normal(scale=3, size=500).astype(np.float32)
        nudged_V = logits_V + generator.normal(scale=1e-6, size=500).astype(np.float32)
        assert sampler.sample(logits_V, position) == sampler.sample(nudged_V, position)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("config", [GreedyConfig(), RandomConfig(top_k=2, top_p=0.5)])
def test_broken_logits_raise(config: GreedyConfig | RandomConfig, value: float) -> None:
    for logits in ([0.0, value, 1.0], [-np.inf, -np.inf]):
        with pytest.raises(BrokenLogitsError):
            config.build().sample(np.array(logits, np.float32), 0)


@pytest.mark.parametrize("values", [{"temperature": 0.0}, {"temperature": np.inf}, {"top_k": 0}, {"top_p": 1.5}])
def test_invalid_configs_raise(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        RandomConfig(**values)


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 20.0])
@pytest.mark.parametrize(
    "config",
    [
        RandomConfig(seed=5),
        RandomConfig(seed=5, temperature=0.4, top_p=0.9),
        RandomConfig(seed=5, top_k=3000),
        RandomConfig(seed=5, top_k=40, top_p=0.5),
        RandomConfig(seed=5, temperature=1e-30, top_p=0.7),
    ],
)
def test_choices_among_many_tokens_match_the_definition(config: RandomConfig, spread: float) -> None:
    """Pruning must not change a choice."""
    generator = np.random.default_rng(11)
    for position in range(5):
        logits_V = np.round(spread * generator.standard_normal(6_000), 2).astype(np.float32)
        logits_V[generator.random(6_000) < 0.2] = -np.inf
        assert config.build().sample(logits_V, position) == chosen_by_definition(logits_V, position, config)


def test_random_numbers_are_uniform_and_independent() -> None:
    """Chi-square over 1,000 cells, of the numbers and of differences between neighboring tokens and positions: 5 sigma."""
    numbers = np.array([RandomConfig(seed=1).build()._uniform(position, np.arange(2000)) for position in range(500)])
    assert 0 <= numbers.min() < numbers.max() < 1
    assert len(np.unique(numbers)) == numbers.size
    cells = [
        numbers,
        (numbers[1:] - numbers[:-1]) % 1,
        (numbers[:, 1:] - numbers[:, :-1]) % 1,
        (numbers[1:, 1:] - numbers[:-1, :-1]) % 1,
    ]
    for values in cells:
        counts = np.bincount((values * 1000).astype(int).ravel(), minlength=1000)
        chi_square = ((counts - values.size / 1000) ** 2).sum() / (values.size / 1000)
        assert abs(chi_square - 999) < 5 * np.sqrt(2 * 999)


def chosen_by_definition(logits_V: NDArray[np.float32], position: int, config: RandomConfig) -> int:
    """Return the choice by the definition, over the whole vocabulary."""
    likeliest = sorted(np.flatnonzero(logits_V > -np.inf), key=lambda token: (-logits_V[token], token))[: config.top_k]
    with np.errstate(over="ignore"):
        weights = np.exp((logits_V[likeliest].astype(np.float64) - logits_V.max()) / config.temperature)
    if config.top_p is not None:
        before = weights.cumsum() - weights
        likeliest = [token for token, less in zip(likeliest, before, strict=True) if less < config.top_p * weights.sum()]
        weights = weights[: len(likeliest)]
    times_V = -np.log1p(-splitmix(config.seed, position, len(logits_V)))
    with np.errstate(divide="ignore"):
        return min(zip(times_V[likeliest] / weights, likeliest, strict=True))[1]


def splitmix(seed: int | None, position: int, count: int) -> NDArray[np.float64]:
    """Return SplitMix64's numbers as published, in integers of any size."""

    def mix(state: int) -> int:
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        return state ^ state >> 31

    step = 0x9E3779B97F4A7C15
    key, stream = map(int, np.random.SeedSequence(seed, spawn_key=(0,)).generate_state(2, np.uint64))
    start = mix((key + position * step) % 2**64) ^ stream
    return np.array([(mix((start + token * step) % 2**64) >> 11) / 2**53 for token in range(count)])


@pytest.mark.parametrize(
    "settings",
    [
        {"min_p": 0.1},
        {"typical_p": 0.7},
        {"top_k": 20, "top_p": 0.8},
        {"top_k": 50, "top_p": 0.9, "min_p": 0.05, "typical_p": 0.9, "temperature": 0.7},
        {"min_p": 1.0},
        {"typical_p": 1e-3},
    ],
)
def test_distributions_equal_those_of_transformers(settings: dict[str, Any]) -> None:
    logits = pytest.importorskip("transformers.generation.logits_process")
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    for _ in range(20):
        logits_V = random.standard_normal(300).astype(np.float32) * 3
        theirs = torch.from_numpy(logits_V)[None].double() / settings.get("temperature", 1.0)
        for name, warper in (
            ("top_k", logits.TopKLogitsWarper),
            ("top_p", logits.TopPLogitsWarper),
            ("min_p", logits.MinPLogitsWarper),
            ("typical_p", logits.TypicalLogitsWarper),
        ):
            if name in settings:
                theirs = warper(settings[name])(None, theirs)
        expected = theirs.softmax(-1)[0].numpy()
        sampler = RandomConfig(seed=1, **settings).build()
        ours = np.exp([sampler.log_probability(logits_V, token) for token in range(300)])
        assert ours == pytest.approx(expected, abs=1e-9)
        assert expected[sampler.sample(logits_V, 0)] > 0


@pytest.mark.parametrize("settings", [{"min_p": 1.5}, {"min_p": -0.1}, {"typical_p": 0.0}, {"typical_p": 1.1}])
def test_shares_outside_their_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must"):
        RandomConfig(**settings)
