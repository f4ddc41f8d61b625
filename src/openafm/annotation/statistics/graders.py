"""Graders: accuracy on gold items, agreement with others, drift over time, and signs of careless work."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from openafm.annotation.grading.judgments import Judgment, Kind, Verdict
from openafm.annotation.grading.project import Project
from openafm.annotation.grading.queue import gold_results, is_screened_out

FLOOD_SHARE, FLOOD_JUDGMENTS = 0.8, 20
"""A grader with this share of ties, or of one side, over this number of judgments or more, is flagged."""
DRIFT_Z = 2.576
"""Agreement with others that changes by this number of standard errors is flagged: 1 % of steady graders."""


@dataclass(frozen=True, kw_only=True)
class GraderReport:
    """What is known about one grader. The name is left out: `grader` is a number.

    Attributes:
        agreement: share of verdicts that equal the other graders' most frequent one; None without others.
        agreement_early, agreement_late: the same for the first and the second half of the grader's judgments.
        left: share of verdicts for the left side among those with a winner.
        flags: "tie flood", "one side", "drift", "screened out".
    """

    grader: int
    judgments: int
    ties: float
    left: float | None
    median_seconds: float
    gold: tuple[int, int]
    agreement: float | None
    agreement_early: float | None
    agreement_late: float | None
    flags: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def grader_reports(project: Project, judgments: Iterable[Judgment]) -> list[GraderReport]:
    """Return a report of each grader, in order of their first judgment."""
    grades = [judgment for judgment in judgments if judgment.kind is Kind.GRADE]
    by_person: dict[str, list[Judgment]] = {}
    by_task: dict[str, list[Judgment]] = {}
    for judgment in grades:
        by_person.setdefault(judgment.person, []).append(judgment)
        by_task.setdefault(judgment.task, []).append(judgment)
    return [_report(project, number, done, by_task) for number, done in enumerate(by_person.values(), start=1)]


def _report(project: Project, number: int, done: Sequence[Judgment], by_task: dict[str, list[Judgment]]) -> GraderReport:
    ordinary = [judgment for judgment in done if judgment.task in project.tasks and not project.tasks[judgment.task].is_gold]
    half = len(ordinary) // 2
    early, late = (_equal_pairs(part, by_task) for part in (ordinary[:half], ordinary[half:]))
    ties = sum(judgment.verdict.winner == Verdict.TIE for judgment in done) / len(done)
    sides = Counter(_is_left(judgment) for judgment in done if judgment.verdict.winner != Verdict.TIE)
    left = sides[True] / sides.total() if sides else None
    gold = gold_results(project, done)
    flags = {
        "tie flood": len(done) >= FLOOD_JUDGMENTS and ties >= FLOOD_SHARE,
        "one side": sides.total() >= FLOOD_JUDGMENTS and left is not None and max(left, 1 - left) >= FLOOD_SHARE,
        "drift": abs(_z(early, late)) >= DRIFT_Z,
        "screened out": is_screened_out(project, done),
    }
    return GraderReport(
        grader=number,
        judgments=len(done),
        ties=ties,
        left=left,
        median_seconds=statistics.median(judgment.seconds for judgment in done),
        gold=(sum(gold), len(gold)),
        agreement=_share((early[0] + late[0], early[1] + late[1])),
        agreement_early=_share(early),
        agreement_late=_share(late),
        flags=tuple(name for name, is_set in flags.items() if is_set),
    )


def _equal_pairs(judgments: Iterable[Judgment], by_task: dict[str, list[Judgment]]) -> tuple[int, int]:
    """Return how many verdicts equal the others' most frequent one, and how many comparisons have one.

    Single other verdicts are not compared: a grader who drifts would make all others look as if they drift.
    """
    equal = total = 0
    for judgment in judgments:
        others = Counter(other.verdict.winner for other in by_task[judgment.task] if other.person != judgment.person)
        top = others.most_common(2)
        if top and (len(top) == 1 or top[0][1] > top[1][1]):
            equal += judgment.verdict.winner == top[0][0]
            total += 1
    return equal, total


def _z(early: tuple[int, int], late: tuple[int, int]) -> float:
    """Return the difference of two shares in standard errors; 0 if a share has no values."""
    if not early[1] or not late[1]:
        return 0.0
    pooled = (early[0] + late[0]) / (early[1] + late[1])
    error = (pooled * (1 - pooled) * (1 / early[1] + 1 / late[1])) ** 0.5
    return (late[0] / late[1] - early[0] / early[1]) / error if error else 0.0


def _share(pairs: tuple[int, int]) -> float | None:
    return pairs[0] / pairs[1] if pairs[1] else None


def _is_left(judgment: Judgment) -> bool:
    better = judgment.first if judgment.verdict is Verdict.FIRST else judgment.second
    return better == judgment.left
