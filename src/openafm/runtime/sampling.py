"""How the next token is chosen from logits.

A choice depends on the logits, the seed and the token's number in the answer, and on nothing else: the same seed gives the
same tokens however requests are batched, and whether tokens are drafted, forced or sampled one by one.

Random choice is a race: every token arrives after an exponential time of its own at the rate of its probability, and the
first to arrive is chosen, which has exactly that probability. Two models that agree about a token's probability see it
arrive at the same time, so a draft model often chooses as its target will, whatever its law (arXiv 2408.07978).

Shapes: V vocabulary, C candidates.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from openafm.core.config import Config, ConfigError
from openafm.core.errors import OpenAFMError

# exp(-46) is 1e-20: all tokens of a vocabulary that far below the likeliest would not be drawn once in 1e14 draws.
_NEGLIGIBLE = 46.0
_LEAST_LOGIT = float(np.finfo(np.float32).min)
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
    their probabilities, renormalised, the largest that together make up `top_p` stay, one at least; what stays is
    renormalised and drawn from. Without a seed every answer draws anew.
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
        self._key = np.random.SeedSequence(abs(seed), spawn_key=(int(seed < 0),)).generate_state(2, np.uint64)

    def sample(self, logits_V: NDArray[np.float32], position: int) -> int:
        greatest = float(logits_V.max())
        _check(greatest)
        temperature = self._config.temperature
        least = max(greatest - _NEGLIGIBLE * temperature, _LEAST_LOGIT)
        candidates_C = np.flatnonzero(logits_V >= least)
        if self._config.top_k is not None:
            candidates_C = _largest(logits_V, candidates_C, self._config.top_k)
        weights_C = np.exp((logits_V[candidates_C].astype(np.float64) - greatest) / temperature)
        if self._config.top_p is not None:
            kept_C = _nucleus(weights_C, self._config.top_p)
            candidates_C, weights_C = candidates_C[kept_C], weights_C[kept_C]
        arrivals_C = self._exponentials(position, int(candidates_C[-1]) + 1)[candidates_C] / weights_C
        return int(candidates_C[arrivals_C.argmin()])

    def _exponentials(self, position: int, count: int) -> NDArray[np.float64]:
        """Exponentially distributed numbers that belong to the seed, the position and the first `count` tokens, alone."""
        bits = np.random.Philox(key=self._key, counter=[0, position, 0, 0])
        return np.random.Generator(bits).standard_exponential(count)


def draw_seeds_from(source: Callable[[], int]) -> None:
    """Where answers without a seed get one from now on, for processes that must choose alike."""
    global _draw_seed
    _draw_seed = source


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


def _nucleus(weights_C: NDArray[np.float64], share: float) -> NDArray[np.intp]:
    """Indices, ascending, of the largest weights that together make up `share` of all; one at least."""
    total = weights_C.sum()
    # Weights below this add up to less than 1 - share even if all were: sorting the others is enough, and they are few.
    kept_C = np.flatnonzero(weights_C >= min((1 - share) * total / len(weights_C), weights_C.max()))
    order_C = kept_C[np.argsort(-weights_C[kept_C], kind="stable")]
    before_C = weights_C[order_C].cumsum() - weights_C[order_C]
    needed_C = before_C < share * total
    needed_C[0] = True
    return np.sort(order_C[needed_C])


def _check(greatest: float) -> None:
    if not np.isfinite(greatest):
        problem = "every token is forbidden" if greatest == -np.inf else f"the greatest logit is {greatest}"
        raise BrokenLogitsError(f"no token can be chosen: {problem}")
