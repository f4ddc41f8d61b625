"""How many of the first n draws fall on each source of a weighted mixture: arithmetic, no state, no randomness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction


def tempered_shares(sizes: Mapping[str, int], temperature: float) -> dict[str, float]:
    """Shares proportional to size^(1 / temperature), which add up to 1 (arXiv 1907.05019).

    At temperature 1 they are those of the sizes; the higher it is, the more even they get. They are rounded to nine digits,
    so that every machine draws the same rows.
    """
    largest = max(sizes.values())
    powers = {name: (size / largest) ** (1 / temperature) for name, size in sizes.items()}
    total = sum(powers.values())
    return {name: float(f"{power / total:.9g}") for name, power in powers.items()}


class Mixture:
    """Shares of an endless sequence of draws.

    The first source gets its share of n rounded to the nearest whole number, the second its share of the rest, and so on.
    Each count therefore only grows with n, the counts add up to n, and where every weight times n is whole they are exactly
    that; elsewhere a count is off by less than one draw for each source before it.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        exact = [Fraction(str(weight)) for weight in weights]  # 0.1 means one tenth, not its binary neighbor
        self._shares_of_rest = [weight / sum(exact[position:]) for position, weight in enumerate(exact)]

    def drawn(self, n: int) -> tuple[int, ...]:
        """The number of draws from each source among the first `n`."""
        counts = []
        for share in self._shares_of_rest:
            count = (2 * n * share.numerator + share.denominator) // (2 * share.denominator)
            counts.append(count)
            n -= count
        return tuple(counts)
