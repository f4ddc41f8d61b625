"""Means with standard errors, and differences of two models on the same items."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

NUM_RESAMPLES = 2_000
_Z95 = 1.959964


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean with its number of values and its standard error (sample deviation over the root of the count)."""

    mean: float
    stderr: float
    count: int

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval: Wilson's for shares of 0 and 1, else the normal one.

        The normal interval of a share of 0 or 1 has no width, which is wrong for few items.
        """
        if self.is_share:
            return wilson(self.mean, self.count)
        return self.mean - _Z95 * self.stderr, self.mean + _Z95 * self.stderr

    @property
    def is_share(self) -> bool:
        """Return whether the standard error is that of values of 0 and 1."""
        spread = math.sqrt(self.mean * (1 - self.mean) / (self.count - 1)) if self.count > 1 and 0 <= self.mean <= 1 else 0.0
        return 0 <= self.mean <= 1 and math.isclose(self.stderr, spread, rel_tol=1e-6, abs_tol=1e-9)

    def to_dict(self) -> dict[str, float | int]:
        return asdict(self)


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of values, at least one."""
    array = np.asarray(values, np.float64)
    stderr = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else 0.0
    return Estimate(mean=float(array.mean()), stderr=stderr, count=len(array))


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    if count == 0:
        return 0.0, 1.0
    squared = _Z95**2 / count
    center = (share + squared / 2) / (1 + squared)
    half = _Z95 / (1 + squared) * math.sqrt(share * (1 - share) / count + squared / (4 * count))
    return max(0.0, center - half), min(1.0, center + half)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The mean of `b - a` over the same items, with its 95 % interval of a paired bootstrap."""

    mean: float
    low: float
    high: float
    count: int

    @property
    def is_significant(self) -> bool:
        """Return whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    @property
    def text(self) -> str:
        """The difference with its interval, in points; a star if the interval excludes 0."""
        return f"{100 * self.mean:+.1f} [{100 * self.low:+.1f}, {100 * self.high:+.1f}]{' *' if self.is_significant else ''}"

    def to_dict(self) -> dict[str, float | int | bool]:
        return asdict(self) | {"is_significant": self.is_significant}


def paired_difference(a: Sequence[float], b: Sequence[float], seed: int = 0) -> Difference:
    """Return the difference of two models whose values at one index belong to one item, at least one."""
    difference = np.asarray(b, np.float64) - np.asarray(a, np.float64)
    generator = np.random.default_rng(seed)
    means = [difference[generator.integers(len(difference), size=len(difference))].mean() for _ in range(NUM_RESAMPLES)]
    low, high = np.percentile(means, [2.5, 97.5])
    return Difference(mean=float(difference.mean()), low=float(low), high=float(high), count=len(difference))
