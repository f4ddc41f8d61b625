"""Choice of the next token from logits.

A choice depends only on the logits, the seed and the token's index in the answer. The same seed therefore gives the same
tokens for any batching, and whether tokens are drafted, forced or sampled one by one.

Random sampling is an exponential race: each token has an arrival time -log(1 - u) / p with its own uniform number u, and the
token with the smallest time is chosen: this has probability p. A draft model that uses the same numbers chooses the
same token as its target whenever both give it a similar probability (arXiv 2408.07978).

Shapes: V vocabulary, C candidates, K candidates that may be in the nucleus, B candidates of one block.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from openafm.core.config import Config
from openafm.core.errors import OpenAFMError
from openafm.runtime.native.race import loaded_race

# exp(-46) is 1e-20: tokens this far below the likeliest one are drawn less than once in 1e14 draws.
NEGLIGIBLE = 46.0
_LOWEST_LOGIT = float(np.finfo(np.float32).min)
_GROUP = 64  # logits that share a maximum when the top k are looked for
_BLOCK = 8192  # random numbers computed at once: 64 KiB stay in the cache
_MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # shifts and factors of SplitMix64's output function
_GOLDEN_RATIO, _64_BITS = 0x9E3779B97F4A7C15, 2**64 - 1
_draw_seed: Callable[[], int] = partial(secrets.randbits, 128)


class BrokenLogitsError(OpenAFMError):
    """No token can be chosen: a logit is not a number, or the mask forbids every token."""


class Sampler(ABC):
    """Chooses the tokens of one answer."""

    @abstractmethod
    def sample(self, logits_V: NDArray[np.float32], position: int) -> int:
        """Return the token with index `position` in the answer. A logit of -inf is never chosen.

        Raises:
            BrokenLogitsError: a logit is not a number, or none is finite.
        """

    def sample_allowed(self, logits_V: NDArray[np.float32], position: int, allows: Callable[[int], bool]) -> int | None:
        """Return what `sample` returns once the logits of all tokens that are not allowed are -inf.

        None if that cannot be determined by asking `allows` for a few tokens.
        """
        return None

    @abstractmethod
    def log_probability(self, logits_V: NDArray[np.float32], token: int) -> float:
        """Return the natural log of the probability that `sample` chooses `token`; -inf if it cannot.

        Raises:
            BrokenLogitsError: a logit is not a number, or none is finite.
        """


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(Config, ABC):
    """Base of the sampling configs."""

    @abstractmethod
    def build(self) -> Sampler:
        """Return the sampler of one answer."""


@dataclass(frozen=True, kw_only=True)
class GreedyConfig(SamplingConfig):
    """Choose the most likely token; among equals the lowest id."""

    def build(self) -> Sampler:
        return _Greedy()


@dataclass(frozen=True, kw_only=True)
class RandomConfig(SamplingConfig):
    """Choose a token at random.

    The steps, in order: divide the logits by `temperature`; keep the `top_k` most likely tokens (among equals the lowest
    ids); renormalize; keep the smallest set of the most likely tokens whose probabilities reach `top_p`, at least one; keep
    the tokens with at least `min_p` of the largest probability; renormalize; keep the smallest set of the most typical
    tokens, whose information is nearest to the entropy, whose probabilities reach `typical_p` (arXiv 2202.00666);
    renormalize and draw. Without a seed every answer draws a new one.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        self.require(0 < self.temperature < float("inf"), f"temperature must be positive, got {self.temperature}")
        self.require(self.top_k is None or self.top_k > 0, f"top_k must be positive, got {self.top_k}")
        self.require(self.top_p is None or 0 <= self.top_p <= 1, f"top_p must lie in 0..1, got {self.top_p}")
        self.require(self.min_p is None or 0 <= self.min_p <= 1, f"min_p must lie in 0..1, got {self.min_p}")
        in_range = self.typical_p is None or 0 < self.typical_p <= 1
        self.require(in_range, f"typical_p must be above 0 and at most 1, got {self.typical_p}")

    def build(self) -> Sampler:
        return RandomSampler(self)


class _Greedy(Sampler):
    def sample(self, logits_V: NDArray[np.float32], position: int) -> int:
        if (token := _highest(logits_V)) is None:
            token = int(logits_V.argmax())
            check_highest(float(logits_V[token]))
        return token

    def sample_allowed(self, logits_V: NDArray[np.float32], position: int, allows: Callable[[int], bool]) -> int | None:
        token = _highest(logits_V)
        return token if token is not None and allows(token) else None

    def log_probability(self, logits_V: NDArray[np.float32], token: int) -> float:
        return 0.0 if token == self.sample(logits_V, 0) else -np.inf


class RandomSampler(Sampler):
    """Draws tokens from the distribution of a `RandomConfig`."""

    def __init__(self, config: RandomConfig) -> None:
        self.config = config
        seed = _draw_seed() if config.seed is None else config.seed
        self._key, self._stream = map(
            int, np.random.SeedSequence(abs(seed), spawn_key=(int(seed < 0),)).generate_state(2, np.uint64)
        )

    def sample(self, logits_V: NDArray[np.float32], position: int) -> int:
        if self.is_plain and (highest := _highest(logits_V)) is not None:
            token = self._winner(logits_V, position, highest)
            if token is not None:
                return token
        candidates_C, weights_C = self._distribution(logits_V)
        numbers_C = self._uniform(position, candidates_C)
        # A token's time -log1p(-u) / w is at least u / w: logarithms are needed only of those below one known time.
        bounds_C = numbers_C / weights_C
        place = int(bounds_C.argmin())
        early_K = np.flatnonzero(bounds_C <= -np.log1p(-numbers_C[place]) / weights_C[place])
        times_K = -np.log1p(-numbers_C[early_K]) / weights_C[early_K]
        return int(candidates_C[early_K[times_K.argmin()]])

    def sample_allowed(self, logits_V: NDArray[np.float32], position: int, allows: Callable[[int], bool]) -> int | None:
        # Weights are relative to the highest logit. If that token is allowed, other tokens do not change a token's time.
        if not self.is_plain or (highest := _highest(logits_V)) is None or not allows(highest):
            return None
        token = self._winner(logits_V, position, highest)
        return token if token is not None and (token == highest or allows(token)) else None

    def _winner(self, logits_V: NDArray[np.float32], position: int, highest: int) -> int | None:
        """Return the choice of a plain distribution; None without the native library, or if two times are nearly equal."""
        if (race := loaded_race()) is None:
            return None
        token = race.winner(logits_V, highest, self.config.temperature, NEGLIGIBLE, self.state(position))
        return token if token >= 0 else None

    def log_probability(self, logits_V: NDArray[np.float32], token: int) -> float:
        candidates_C, weights_C = self._distribution(logits_V)
        place = int(np.searchsorted(candidates_C, token))
        if place == len(candidates_C) or candidates_C[place] != token:
            return -np.inf
        return float(np.log(weights_C[place]) - np.log(weights_C.sum()))

    def _distribution(self, logits_V: NDArray[np.float32]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Return the tokens that may be chosen, by id, and their unnormalized probabilities; the largest is 1."""
        config, highest = self.config, float(logits_V.max())
        check_highest(highest)
        lowest = max(highest - NEGLIGIBLE * config.temperature, _LOWEST_LOGIT)
        if config.top_k is not None:
            lowest = max(lowest, _lower_bound_of_top(logits_V, config.top_k))
        candidates_C = np.flatnonzero(logits_V >= lowest)
        if config.top_k is not None:
            candidates_C = _top(logits_V, candidates_C, config.top_k)
        weights_C = logits_V[candidates_C].astype(np.float64)
        weights_C -= highest
        weights_C /= config.temperature
        np.exp(weights_C, out=weights_C)
        if config.top_p is not None:
            kept_K = _nucleus(weights_C, config.top_p)
            candidates_C, weights_C = candidates_C[kept_K], weights_C[kept_K]
        if config.min_p is not None:
            is_kept_C = weights_C >= config.min_p  # the largest weight is 1
            candidates_C, weights_C = candidates_C[is_kept_C], weights_C[is_kept_C]
        if config.typical_p is not None:
            kept_K = _typical(weights_C, config.typical_p)
            candidates_C, weights_C = candidates_C[kept_K], weights_C[kept_K]
        return candidates_C, weights_C

    @property
    def is_plain(self) -> bool:
        """True if every token is a candidate: only the temperature changes the distribution."""
        config = self.config
        return config.top_k is config.top_p is config.min_p is config.typical_p is None

    def state(self, position: int) -> int:
        """Return the state from which the random numbers of a position are computed."""
        return _mixed_int(self._key + position * _GOLDEN_RATIO & _64_BITS) ^ self._stream

    def _uniform(self, position: int, tokens_C: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return uniform numbers in [0, 1), each a function of the seed, the position and the token.

        SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), from a state that is itself hashed from seed and position.
        """
        begin = np.uint64(self.state(position))
        numbers_C = np.empty(len(tokens_C))
        for first in range(0, len(tokens_C), _BLOCK):
            state_B = tokens_C[first : first + _BLOCK].astype(np.uint64)
            state_B *= np.uint64(_GOLDEN_RATIO)
            state_B += begin
            state_B = mixed(state_B) >> np.uint64(11)
            numbers_C[first : first + _BLOCK] = state_B.view(np.int64)  # numpy converts signed integers much faster
        numbers_C *= 2.0**-53
        return numbers_C


@cache
def token_states(vocab_size: int) -> NDArray[np.uint64]:
    """Return what each token adds to a sampler's state; shared, not writable."""
    states_V = np.arange(vocab_size, dtype=np.uint64) * np.uint64(_GOLDEN_RATIO)
    states_V.flags.writeable = False
    return states_V


def mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply SplitMix64's output function in place."""
    for shift, factor in _MIXING:
        state ^= state >> np.uint64(shift)
        state *= np.uint64(factor)
    state ^= state >> np.uint64(31)
    return state


def _mixed_int(state: int) -> int:
    """Return the same as `mixed` for one number, ten times as fast."""
    for shift, factor in _MIXING:
        state = (state ^ state >> shift) * factor & _64_BITS
    return state ^ state >> 31


def draw_seeds_from(source: Callable[[], int]) -> None:
    """Take the seeds of answers without one from `source`. Processes that must choose alike share a source."""
    global _draw_seed
    _draw_seed = source


def _highest(logits_V: NDArray[np.float32]) -> int | None:
    """Return the first of the highest logits; None without the native library, or if it is not finite."""
    race = loaded_race()
    token = -1 if race is None else race.highest(logits_V)
    return token if token >= 0 else None


def _nucleus(weights_C: NDArray[np.float64], share: float) -> NDArray[np.intp]:
    """Return the places of the largest weights, at least one, that together reach `share` of the total; ascending."""
    total = float(weights_C.sum())
    # All weights below this bound together are less than 1 - share of the total: only the others need sorting.
    bound = min((1 - share) * total / len(weights_C), float(weights_C.max()))
    places_K = np.flatnonzero(weights_C >= bound)
    weights_K = weights_C[places_K]
    order_K = np.argsort(-weights_K, kind="stable")
    sorted_K = weights_K[order_K]
    is_needed_K = sorted_K.cumsum() - sorted_K < share * total
    is_needed_K[0] = True
    return np.sort(places_K[order_K[is_needed_K]])


def _typical(weights_C: NDArray[np.float64], share: float) -> NDArray[np.intp]:
    """Return the places of the weights nearest to the entropy that together reach `share` of the total; ascending."""
    shares_C = weights_C / weights_C.sum()
    surprise_C = -np.log(np.maximum(shares_C, np.finfo(np.float64).tiny))
    order_C = np.argsort(np.abs(surprise_C - (shares_C * surprise_C).sum()), kind="stable")
    num_kept = int((shares_C[order_C].cumsum() < share).sum()) + 1
    return np.sort(order_C[:num_kept])


def _lower_bound_of_top(values_V: NDArray[np.float32], count: int) -> float:
    """Return a number that at least `count` values reach, close below them; -inf where finding one does not pay."""
    num_groups = len(values_V) // _GROUP
    if count >= num_groups // 2:
        return -np.inf
    highest_G = values_V[: num_groups * _GROUP].reshape(_GROUP, num_groups).max(axis=0)
    return float(np.partition(highest_G, -count)[-count])


def _top(values_V: NDArray[np.float32], candidates_C: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """Return the candidates with the `count` largest values, among equals the lowest ids, in ascending order."""
    if count >= len(candidates_C):
        return candidates_C
    values_C = values_V[candidates_C]
    lowest = np.partition(values_C, -count)[-count]
    is_kept_C = values_C > lowest
    is_kept_C[np.flatnonzero(values_C == lowest)[: count - int(is_kept_C.sum())]] = True
    return candidates_C[is_kept_C]


def check_highest(highest: float) -> None:
    if not np.isfinite(highest):
        problem = "every token is forbidden" if highest == -np.inf else f"the highest logit is {highest}"
        raise BrokenLogitsError(f"no token can be chosen: {problem}; check the weights and the grammar")
