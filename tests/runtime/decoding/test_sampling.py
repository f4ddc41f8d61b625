"""Sampling: exact laws, exact seeds, and no token that is forbidden."""

from __future__ import annotations

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


def reference_law(logits_V: NDArray[np.float32], config: RandomConfig) -> NDArray[np.float64]:
    """Probabilities of all tokens, by the book: sort everything, go down the list."""
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
    law = np.zeros(len(weights))
    law[order] = weights[order]
    return law / law.sum()


def drawn(logits_V: NDArray[np.float32], config: RandomConfig, count: int) -> NDArray[np.intp]:
    sampler = config.build()
    return np.bincount([sampler.sample(logits_V, position) for position in range(count)], minlength=len(logits_V))


@given(LOGITS)
def test_greedy_takes_the_first_of_the_greatest(logits_V: NDArray[np.float32]) -> None:
    token = GreedyConfig().build().sample(logits_V, 0)
    assert logits_V[token] == logits_V.max()
    assert (logits_V[:token] < logits_V[token]).all()


@given(LOGITS, st.floats(0.05, 5), st.none() | st.integers(1, 10), st.none() | st.floats(0, 1), st.integers())
def test_only_tokens_of_the_law_are_drawn(
    logits_V: NDArray[np.float32], temperature: float, top_k: int | None, top_p: float | None, seed: int
) -> None:
    config = RandomConfig(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    counts = drawn(logits_V, config, 10)
    law = reference_law(logits_V, config)
    # What the two ways of summing leave in or out at the very edge of the nucleus weighs next to nothing.
    assert all(law[token] > 0 or logits_V[token] > -np.inf for token in counts.nonzero()[0])
    if top_p is None:
        assert (law[counts > 0] > 0).all()


@pytest.mark.parametrize(
    "config",
    [
        RandomConfig(seed=1),
        RandomConfig(temperature=0.5, seed=2),
        RandomConfig(temperature=2.0, top_k=5, seed=3),
        RandomConfig(top_p=0.7, seed=4),
        RandomConfig(temperature=1.5, top_k=8, top_p=0.8, seed=5),
        RandomConfig(top_p=0.0, seed=6),
        RandomConfig(top_k=1, seed=7),
    ],
)
def test_frequencies_follow_the_law(config: RandomConfig) -> None:
    logits_V = np.random.default_rng(0).normal(scale=2, size=12).astype(np.float32)
    logits_V[3] = -np.inf
    count = 4000
    counts, law = drawn(logits_V, config, count), reference_law(logits_V, config)
    assert (counts[law == 0] == 0).all()
    possible = law > 0
    chi_square = ((counts - count * law)[possible] ** 2 / (count * law[possible])).sum()
    assert chi_square < 40  # 11 degrees of freedom: exceeded once in 30,000 draws


def test_no_temperature_lets_a_forbidden_token_through() -> None:
    logits_V = np.array([0, -np.inf, -50, -np.inf, 30], np.float32)
    for temperature in (1e-30, 1e3, 1e37, 1e300):
        counts = drawn(logits_V, RandomConfig(temperature=temperature, seed=2), 100)
        assert counts[[1, 3]].sum() == 0
        assert (counts[[0, 2, 4]] > 0).all() == (temperature >= 1e3)


def test_ties_at_the_edge_of_top_k_go_to_the_lowest_ids() -> None:
    logits_V = np.array([1, 2, 1, 1, 1], np.float32)
    counts = drawn(logits_V, RandomConfig(top_k=3, seed=0), 500)
    assert counts.nonzero()[0].tolist() == [0, 1, 2]


def test_a_choice_depends_on_seed_and_position_alone() -> None:
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


def test_small_differences_of_logits_between_batches_do_not_show() -> None:
    generator = np.random.default_rng(1)
    sampler = RandomConfig(seed=3, top_k=50, top_p=0.9).build()
    for position in range(300):
        logits_V = generator.normal(scale=3, size=500).astype(np.float32)
        nudged_V = logits_V + generator.normal(scale=1e-6, size=500).astype(np.float32)
        assert sampler.sample(logits_V, position) == sampler.sample(nudged_V, position)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("config", [GreedyConfig(), RandomConfig(top_k=2, top_p=0.5)])
def test_broken_logits_are_refused(config: GreedyConfig | RandomConfig, value: float) -> None:
    for logits in ([0.0, value, 1.0], [-np.inf, -np.inf]):
        with pytest.raises(BrokenLogitsError):
            config.build().sample(np.array(logits, np.float32), 0)


@pytest.mark.parametrize("values", [{"temperature": 0.0}, {"temperature": np.inf}, {"top_k": 0}, {"top_p": 1.5}])
def test_impossible_configs_are_refused(values: dict[str, float]) -> None:
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
def test_choices_among_many_are_those_of_fp64(config: RandomConfig, spread: float) -> None:
    """Large vocabularies take shorter ways, which must lead to the same tokens."""
    generator = np.random.default_rng(11)
    for position in range(20):
        logits_V = np.round(spread * generator.standard_normal(20_000), 2).astype(np.float32)
        logits_V[generator.random(20_000) < 0.2] = -np.inf
        assert config.build().sample(logits_V, position) == chosen_in_fp64(logits_V, position, config)


def test_the_numbers_of_tokens_and_positions_are_even_and_of_their_own() -> None:
    """Splits of [0, 1) by 1,000, along tokens and along positions, and neighbors in both, against chi-square's 5 sigma."""
    numbers = np.array([RandomConfig(seed=1).build()._numbers(position, np.arange(2000)) for position in range(500)])
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


def chosen_in_fp64(logits_V: NDArray[np.float32], position: int, config: RandomConfig) -> int:
    """The definition, all in fp64 over the whole vocabulary."""
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
    """As published, in integers of any size."""

    def mix(state: int) -> int:
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        return state ^ state >> 31

    step = 0x9E3779B97F4A7C15
    key, stream = map(int, np.random.SeedSequence(seed, spawn_key=(0,)).generate_state(2, np.uint64))
    start = mix((key + position * step) % 2**64) ^ stream
    return np.array([(mix((start + token * step) % 2**64) >> 11) / 2**53 for token in range(count)])
