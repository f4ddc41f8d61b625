"""Shares with Wilson intervals. A share of fewer than 50 texts is not reported."""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST_TEXTS = 50
_Z = 1.959964  # two-sided 95 %


@dataclass(frozen=True, kw_only=True)
class Rate:
    """`count` of `n` texts. `share` and `interval` are None below 50 texts."""

    count: int
    n: int

    @property
    def share(self) -> float | None:
        return self.count / self.n if self.n >= LEAST_TEXTS else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % Wilson interval."""
        return wilson(self.count, self.n) if self.n >= LEAST_TEXTS else None

    def __str__(self) -> str:
        if self.n < LEAST_TEXTS:
            return f"not reported: {self.n} text{'' if self.n == 1 else 's'}, at least {LEAST_TEXTS} are needed"
        low, high = wilson(self.count, self.n)
        return f"{self.count / self.n:.1%} [{low:.1%}, {high:.1%}] of {self.n}"

    def to_dict(self) -> dict[str, object]:
        interval = None if self.interval is None else [round(bound, 4) for bound in self.interval]
        return {"share": None if self.share is None else round(self.share, 4), "interval": interval, "n": self.n}


def wilson(count: int, n: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share."""
    share, z2 = count / n, _Z * _Z
    center = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(center - half, 0.0), min(center + half, 1.0)
