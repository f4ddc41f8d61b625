"""Counts of the first n draws per source of a weighted mixture, by arithmetic without state or randomness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction


def tempered_shares(sizes: Mapping[str, int], temperature: float) -> dict[str, float]:
    """Return shares proportional to size^(1 / temperature) that add up to 1 (arXiv 1907.05019).

    Temperature 1 keeps the proportions; higher temperatures even them out. Shares are rounded to nine digits, so that every
    machine draws the same rows.
    """
    largest = max(sizes.values())
    powers = {name: (size / largest) ** (1 / temperature) for name, size in sizes.items()}
    total = sum(powers.values())
    return {name: float(f"{power / total:.9g}") for name, power in powers.items()}


class Mixture:
    """Counts of an endless sequence of draws.

    The first source gets its share of n, rounded; the second its share of the rest, and so on. So counts never decrease with
    n and add up to n. They are exact if every weight times n is a whole number; otherwise a count is off by less than one
    draw for each source before it.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        exact = [Fraction(str(weight)) for weight in weights]  # one tenth for 0.1, not its binary approximation
        self._shares_of_rest = [weight / sum(exact[position:]) for position, weight in enumerate(exact)]

    def drawn(self, n: int) -> tuple[int, ...]:
        """Return the number of draws from each source among the first `n`."""
        counts = []
        for share in self._shares_of_rest:
            count = (2 * n * share.numerator + share.denominator) // (2 * share.denominator)
            counts.append(count)
            n -= count
        return tuple(counts)
