"""Agreement of a judge with human grades of the same pairs, from a JSON Lines file.

A line has the prompt's `id`, `preference` (`a`, `b` or `tie`) and optionally `grader`. Several graders of one prompt vote.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from openafm.core.errors import OpenAFMError
from openafm.evaluation.harness.statistics import wilson
from openafm.evaluation.harness.task import TaskDataError
from openafm.evaluation.judged.judge import Judgment
from openafm.evaluation.tasks.files import json_lines

PREFERENCES = ("a", "b", "tie")
_TIE_WIDTH = 0.125
"""Shares of b this close to one half are ties."""


class CalibrationError(OpenAFMError):
    """The human grades do not belong to the judged pairs, or have other values."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Agreement of the judge with the majority of graders.

    Attributes:
        agreement: the share of equal preferences, with its 95 % interval.
        kappa: Cohen's kappa: agreement beyond chance. 0 is chance, 1 is always.
        human_agreement: how often two graders of one prompt agree; None if no prompt has two.
        confusion: counts by human preference, then by the judge's.
    """

    count: int
    agreement: float
    low: float
    high: float
    kappa: float
    human_agreement: float | None
    confusion: Mapping[str, Mapping[str, int]]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_grades(path: Path) -> dict[str, list[str]]:
    """Return the preferences of the graders by prompt.

    Raises:
        CalibrationError: a line has other columns or values.
    """
    grades: defaultdict[str, list[str]] = defaultdict(list)
    try:
        for row in json_lines(path, {"id": str, "preference": str}):
            if row["preference"] not in PREFERENCES:
                raise CalibrationError(f"{path}: 'preference' must be a, b or tie, got {row['preference']!r}")
            grades[row["id"]].append(row["preference"])
    except TaskDataError as error:
        raise CalibrationError(str(error)) from error
    return dict(grades)


def calibrate(judgments: Sequence[Judgment], grades: Mapping[str, Sequence[str]]) -> Calibration:
    """Return the agreement on the prompts that both graded.

    Raises:
        CalibrationError: there is none.
    """
    pairs = [
        (majority(grades[judgment.id]), preference(judgment.score))
        for judgment in judgments
        if judgment.id in grades and judgment.score is not None
    ]
    if not pairs:
        raise CalibrationError("no graded prompt was judged; the grades' ids must be those of the prompts")
    confusion = {human: dict.fromkeys(PREFERENCES, 0) for human in PREFERENCES}
    for human, judge in pairs:
        confusion[human][judge] += 1
    agreement = sum(human == judge for human, judge in pairs) / len(pairs)
    low, high = wilson(agreement, len(pairs))
    humans, judges = Counter(human for human, _ in pairs), Counter(judge for _, judge in pairs)
    chance = sum(humans[each] * judges[each] for each in PREFERENCES) / len(pairs) ** 2
    return Calibration(
        count=len(pairs),
        agreement=agreement,
        low=low,
        high=high,
        kappa=1.0 if chance == 1 else (agreement - chance) / (1 - chance),
        human_agreement=_human_agreement(grades),
        confusion=confusion,
    )


def preference(share: float) -> str:
    """Return the preference for a share of b."""
    if abs(share - 0.5) < _TIE_WIDTH:
        return "tie"
    return "b" if share > 0.5 else "a"


def majority(preferences: Sequence[str]) -> str:
    """Return the most frequent preference; a tie if two are equally frequent."""
    (first, count), *others = Counter(preferences).most_common()
    return "tie" if others and others[0][1] == count else first


def _human_agreement(grades: Mapping[str, Sequence[str]]) -> float | None:
    pairs = [(found[i], found[j]) for found in grades.values() for i in range(len(found)) for j in range(i + 1, len(found))]
    return sum(one == other for one, other in pairs) / len(pairs) if pairs else None
