"""How the next token is chosen from logits.

A choice depends on the logits, the seed and the token's number in the answer, and on nothing else: the same seed gives the
same tokens however requests are batched, and whether tokens are drafted, forced or sampled one by one.

Random choice is a race: every token arrives after an exponential time of its own at the rate of its probability, and the
first to arrive is chosen, which has exactly that probability. Two models that agree about a token's probability see it
arrive at the same time, so a draft model often chooses as its target will, whatever its law (arXiv 2408.07978).

Shapes: V vocabulary, C candidates, B some of them.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from openafm.core.config import Config, ConfigError
from openafm.core.errors import OpenAFMError

# exp(-46) is 1e-20: all tokens of a vocabulary that far below the likeliest would not be drawn once in 1e14 draws.
_NEGLIGIBLE = 46.0
_LEAST_LOGIT = float(np.finfo(np.float32).min)
_MANY, _ROUGHLY, _LARGEST_SCALE = 2048, 1e-4, 1e3  # candidates for which fp32 goes first; its error, amply; temperatures
_GROUP = 64
_BLOCK = 8192  # numbers that are made together: they stay in the cache
_GOLDEN_RATIO, _64_BITS = 0x9E3779B97F4A7C15, 2**64 - 1
_Float = TypeVar("_Float", np.float32, np.float64)
_draw_seed: Callable[[], int] = partial(secrets.randbits, 128)


class BrokenLogitsError(OpenAFMError):
    """Logits that no token can be chosen from: not a number somewhere, or every token forbidden."""


class Sampler(ABC):
    """Chooses tokens of one answer."""

    @abstractmethod
    def sample(self, logits_V: NDArray[np.float32], position: int) -> int:
        """The token number `position` of the answer. A logit of -inf is never chosen.

        Raises:
            BrokenLogitsError: a logit is not a number, or none is finite.
        """


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(Config):
    """Base of the ways to sample."""

    def build(self) -> Sampler:
        """The sampler of one answer."""
        raise ConfigError(f"{type(self).__name__} is abstract; use GreedyConfig or RandomConfig")


@dataclass(frozen=True, kw_only=True)
class GreedyConfig(SamplingConfig):
    """Always the most likely token; of equals the one with the lowest id."""

    def build(self) -> Sampler:
        return _Greedy()


@dataclass(frozen=True, kw_only=True)
class RandomConfig(SamplingConfig):
    """A random token by its probability.

    In this order: logits are divided by `temperature`; the `top_k` most likely tokens stay (of equals the lowest ids); of
    their probabilities, renormalized, the largest that together make up `top_p` stay, one at least; what stays is
    renormalized and drawn from. Without a seed every answer draws anew.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        self.require(0 < self.temperature < float("inf"), f"temperature must be positive, got {self.temperature}")
        self.require(self.top_k is None or self.top_k > 0, f"top_k must be positive, got {self.top_k}")
        self.require(self.top_p is None or 0 <= self.top_p <= 1, f"top_p must lie in 0..1, got {self.top_p}")

    def build(self) -> Sampler:
        return _Random(self)


class _Greedy(Sampler):
    def sample(self, logits_V: NDArray[np.float32], position: int) -> int:
        token = int(logits_V.argmax())
        _check(float(logits_V[token]))
        return token


class _Random(Sampler):
    def __init__(self, config: RandomConfig) -> None:
        self._config = config
        seed = _draw_seed() if config.seed is None else config.seed
        self._key, self._stream = map(
            int, np.random.SeedSequence(abs(seed), spawn_key=(int(seed < 0),)).generate_state(2, np.uint64)
        )

    def sample(self, logits_V: NDArray[np.float32], position: int) -> int:
        greatest = float(logits_V.max())
        _check(greatest)
        config, temperature = self._config, self._config.temperature
        least = max(greatest - _NEGLIGIBLE * temperature, _LEAST_LOGIT)
        if config.top_k is not None:
            least = max(least, _floor_of_largest(logits_V, config.top_k))
        candidates_C = np.flatnonzero(logits_V >= least)
        if config.top_k is not None:
            candidates_C = _largest(logits_V, candidates_C, config.top_k)
        law = _Law(logits_V, candidates_C, greatest, temperature)
        if config.top_p is not None:
            law = law.nucleus(config.top_p)
        return law.first(partial(self._numbers, position))

    def _numbers(self, position: int, tokens_C: NDArray[np.intp]) -> NDArray[np.float64]:
        """Evenly distributed numbers in [0, 1) that belong to the seed, the position and each token, alone.

        SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) from a state that is as random for every position.
        """
        start = np.array([self._key + position * _GOLDEN_RATIO & _64_BITS], np.uint64)
        begin = _mixed(start)[0] ^ np.uint64(self._stream)
        numbers_C = np.empty(len(tokens_C))
        for first in range(0, len(tokens_C), _BLOCK):
            state_B = tokens_C[first : first + _BLOCK].astype(np.uint64)
            state_B *= np.uint64(_GOLDEN_RATIO)
            state_B += begin
            state_B = _mixed(state_B) >> np.uint64(11)
            numbers_C[first : first + _BLOCK] = state_B.view(np.int64)  # signed ones are converted many times as fast
        numbers_C *= 2.0**-53
        return numbers_C


def _mixed(state_C: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The numbers that SplitMix64 makes of states, in their place."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state_C ^= state_C >> np.uint64(shift)
        state_C *= np.uint64(factor)
    state_C ^= state_C >> np.uint64(31)
    return state_C


def draw_seeds_from(source: Callable[[], int]) -> None:
    """Where answers without a seed get one from now on, for processes that must choose alike."""
    global _draw_seed
    _draw_seed = source


class _Law:
    """The weights of some tokens, in order of id, of which the greatest logit's is 1.

    Of many tokens few can be chosen. Fp32, which is some times faster, finds those; what is decided between them is decided
    in fp64, so that a choice is the one that fp64 alone would make.
    """

    def __init__(
        self, logits_V: NDArray[np.float32], candidates_C: NDArray[np.intp], greatest: float, temperature: float
    ) -> None:
        self._logits_V, self._greatest, self._temperature = logits_V, greatest, temperature
        self.candidates_C = candidates_C

    def first(self, numbers_of: Callable[[NDArray[np.intp]], NDArray[np.float64]]) -> int:
        """Who arrives first, of equals the lowest id. A token's time is -log(1 - number), which is more than its number."""
        candidates_C = self.candidates_C
        numbers_C = numbers_of(candidates_C)
        if self._is_worth_it:
            soonest_C = numbers_C.astype(np.float32) / self._rough()
            early = int(soonest_C.argmin())
            arrival = float(-np.log1p(-numbers_C[early]) / self._exact(candidates_C[early : early + 1])[0])
            kept_C = soonest_C <= arrival * (1 + _ROUGHLY)
            candidates_C, numbers_C = candidates_C[kept_C], numbers_C[kept_C]
        arrivals_C = -np.log1p(-numbers_C) / self._exact(candidates_C)
        return int(candidates_C[arrivals_C.argmin()])

    def nucleus(self, share: float) -> _Law:
        """The tokens of the largest weights that together make up `share` of all; one at least."""
        candidates_C = self.candidates_C
        weights_C = self._rough() if self._is_worth_it else self._exact(candidates_C)
        total = float(weights_C.sum(dtype=np.float64))
        # Weights below this add up to less than 1 - share even if all were: sorting the others is enough, and they are few.
        floor = min((1 - share) * total / len(candidates_C), float(weights_C.max()))
        kept_C = candidates_C[weights_C >= floor * (1 - _ROUGHLY)]
        weights_K = self._exact(kept_C)
        order_K = np.argsort(-weights_K, kind="stable")
        before_K = weights_K[order_K].cumsum() - weights_K[order_K]
        if self._is_worth_it and _is_close(before_K, share * total):
            total = float(self._exact(candidates_C).sum())
        needed_K = before_K < share * total
        needed_K[0] = True
        return _Law(self._logits_V, np.sort(kept_C[order_K[needed_K]]), self._greatest, self._temperature)

    @property
    def _is_worth_it(self) -> bool:
        return len(self.candidates_C) >= _MANY and 1 / _LARGEST_SCALE < self._temperature < _LARGEST_SCALE

    def _exact(self, candidates_C: NDArray[np.intp]) -> NDArray[np.float64]:
        return np.exp((self._logits_V[candidates_C].astype(np.float64) - self._greatest) / self._temperature)

    def _rough(self) -> NDArray[np.float32]:
        """The same to `_ROUGHLY`, where the temperature is no extreme."""
        scaled_C = self._take(self._logits_V) - np.float32(self._greatest)
        scaled_C *= np.float32(1 / self._temperature)
        return np.exp(scaled_C, out=scaled_C)

    def _take(self, values_V: NDArray[_Float]) -> NDArray[_Float]:
        """The candidates' values; without looking each up where all are candidates."""
        return values_V if len(self.candidates_C) == len(values_V) else values_V[self.candidates_C]


def _is_close(values_K: NDArray[np.float64], limit: float) -> bool:
    """Whether a value lies so near the limit that `_ROUGHLY` decides on which side."""
    return bool((np.abs(values_K - limit) <= limit * _ROUGHLY).any())


def _floor_of_largest(values_V: NDArray[np.float32], count: int) -> float:
    """A number that at least `count` of the values reach, not far below them; -inf where that would take long to find."""
    num_groups = len(values_V) // _GROUP
    if count >= num_groups // 2:
        return -np.inf
    greatest_G = values_V[: num_groups * _GROUP].reshape(_GROUP, num_groups).max(axis=0)
    return float(np.partition(greatest_G, -count)[-count])


def _largest(values_V: NDArray[np.float32], candidates_C: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """The candidates with the `count` largest values, of equals the lowest ids, in order of id."""
    if count >= len(candidates_C):
        return candidates_C
    values_C = values_V[candidates_C]
    least = np.partition(values_C, -count)[-count]
    above_C = values_C > least
    equal_C = np.flatnonzero(values_C == least)[: count - int(above_C.sum())]
    above_C[equal_C] = True
    return candidates_C[above_C]


def _check(greatest: float) -> None:
    if not np.isfinite(greatest):
        problem = "every token is forbidden" if greatest == -np.inf else f"the greatest logit is {greatest}"
        raise BrokenLogitsError(f"no token can be chosen: {problem}")
