"""Confidence intervals of shares."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

LEVEL = 0.95


def wilson(count: int, total: int, level: float = LEVEL) -> tuple[float, float]:
    """Return Wilson's score interval of the share count / total; (0, 1) if total is 0."""
    if total == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, scale = count / total, 1 + z * z / total
    center = (share + z * z / (2 * total)) / scale
    half = z * ((share * (1 - share) + z * z / (4 * total)) / total) ** 0.5 / scale
    return max(center - half, 0.0), min(center + half, 1.0)


def bootstrap_mean(
    values: Sequence[float], level: float = LEVEL, *, num_samples: int = 2000, seed: int = 1
) -> tuple[float, float]:
    """Return the percentile interval of the mean over resampled values; (nan, nan) without values."""
    if not values:
        return float("nan"), float("nan")
    unique_V, counts_V = np.unique(np.asarray(values, np.float64), return_counts=True)
    generator = np.random.default_rng(seed)
    # Resampling values is drawing how often each distinct one occurs.
    drawn_SV = generator.multinomial(len(values), counts_V / len(values), size=num_samples)
    means_S = drawn_SV @ unique_V / len(values)
    low, high = np.quantile(means_S, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
