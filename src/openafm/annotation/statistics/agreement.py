"""Agreement: Krippendorff's alpha, Cohen's kappa, consensus and disagreement of graders."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt

DRIFT_Z = 2.576
"""Agreement with others that changes by this number of standard errors is a drift: 1 % of steady people."""


class Level(StrEnum):
    """Levels of measurement: how far two values differ."""

    NOMINAL = "nominal"
    ORDINAL = "ordinal"
    INTERVAL = "interval"


def krippendorff_alpha(units: Sequence[Sequence[float]], level: Level = Level.NOMINAL) -> float:
    """Return Krippendorff's alpha: 1 for perfect agreement, 0 for that of chance; nan if all values are equal.

    Args:
        units: the values of each unit, one for each grader who judged it. Units with one value do not count.
    """
    units = [unit for unit in units if len(unit) > 1]
    values = sorted({value for unit in units for value in unit})
    if len(values) < 2:
        return float("nan")
    index = {value: position for position, value in enumerate(values)}
    counts_UV = np.zeros((len(units), len(values)))
    for row, unit in enumerate(units):
        for value in unit:
            counts_UV[row, index[value]] += 1
    sizes_U1 = counts_UV.sum(axis=1, keepdims=True)
    coincidence_VV = (counts_UV / (sizes_U1 - 1)).T @ counts_UV - np.diag((counts_UV / (sizes_U1 - 1)).sum(axis=0))
    totals_V = coincidence_VV.sum(axis=1)
    expected_VV = (np.outer(totals_V, totals_V) - np.diag(totals_V)) / (totals_V.sum() - 1)
    distance_VV = _distance(np.asarray(values, np.float64), totals_V, level)
    return float(1 - (coincidence_VV * distance_VV).sum() / (expected_VV * distance_VV).sum())


def cohens_kappa(pairs: Sequence[tuple[Hashable, Hashable]]) -> float:
    """Return Cohen's kappa of two raters; nan if chance alone gives full agreement, or without pairs."""
    if not pairs:
        return float("nan")
    observed = sum(one == other for one, other in pairs) / len(pairs)
    first, second = (Counter(pair[side] for pair in pairs) for side in (0, 1))
    chance = sum(first[value] * second[value] for value in first) / len(pairs) ** 2
    return float("nan") if chance == 1 else (observed - chance) / (1 - chance)


def consensus_rate(units: Sequence[Sequence[Hashable]]) -> float:
    """Return the share of units with two or more values in which more than half of the values are equal."""
    judged = [unit for unit in units if len(unit) > 1]
    agreed = sum(2 * max(Counter(unit).values()) > len(unit) for unit in judged)
    return agreed / len(judged) if judged else float("nan")


def disagreement_rate(units: Sequence[Sequence[Hashable]]) -> float:
    """Return the share of pairs of values of a unit that differ."""
    num_pairs = sum(len(unit) * (len(unit) - 1) for unit in units)
    num_equal = sum(count * (count - 1) for unit in units for count in Counter(unit).values())
    return 1 - num_equal / num_pairs if num_pairs else float("nan")


def share(answers: Sequence[bool]) -> float | None:
    """Return the share of True; None without answers."""
    return sum(answers) / len(answers) if answers else None


def is_drift(early: Sequence[bool], late: Sequence[bool]) -> bool:
    """Return True if two shares differ by `DRIFT_Z` standard errors or more; False if one of them has no values."""
    if not early or not late:
        return False
    pooled = (sum(early) + sum(late)) / (len(early) + len(late))
    error = math.sqrt(pooled * (1 - pooled) * (1 / len(early) + 1 / len(late)))
    return error > 0 and abs(sum(late) / len(late) - sum(early) / len(early)) / error >= DRIFT_Z


def _distance(values_V: npt.NDArray[np.float64], totals_V: npt.NDArray[np.float64], level: Level) -> npt.NDArray[np.float64]:
    """Return the squared difference of each two values."""
    if level is Level.NOMINAL:
        return 1 - np.eye(len(values_V))
    # The ordinal difference is the number of values between the two, with half of both ends.
    scale_V = values_V if level is Level.INTERVAL else np.cumsum(totals_V) - totals_V / 2
    return np.asarray((scale_V[:, None] - scale_V[None, :]) ** 2)
