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
from openafm.annotation.statistics.agreement import is_drift, share

FLOOD_SHARE, FLOOD_JUDGMENTS = 0.8, 20
"""A grader with this share of ties, or of one side, over this number of judgments or more, is flagged."""


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
    return list(reports_by_person(project, judgments).values())


def reports_by_person(project: Project, judgments: Iterable[Judgment]) -> dict[str, GraderReport]:
    """Return a report of each grader by account, in order of their first judgment."""
    grades = [judgment for judgment in judgments if judgment.kind is Kind.GRADE]
    by_person: dict[str, list[Judgment]] = {}
    by_task: dict[str, list[Judgment]] = {}
    for judgment in grades:
        by_person.setdefault(judgment.person, []).append(judgment)
        by_task.setdefault(judgment.task, []).append(judgment)
    numbered = enumerate(by_person.items(), start=1)
    return {person: _report(project, number, done, by_task) for number, (person, done) in numbered}


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
        "drift": is_drift(early, late),
        "screened out": is_screened_out(project, done),
    }
    return GraderReport(
        grader=number,
        judgments=len(done),
        ties=ties,
        left=left,
        median_seconds=statistics.median(judgment.seconds for judgment in done),
        gold=(sum(gold), len(gold)),
        agreement=share([*early, *late]),
        agreement_early=share(early),
        agreement_late=share(late),
        flags=tuple(name for name, is_set in flags.items() if is_set),
    )


def _equal_pairs(judgments: Iterable[Judgment], by_task: dict[str, list[Judgment]]) -> list[bool]:
    """Return for each comparison whether the verdict equals the others' most frequent one, if there is one.

    Single other verdicts are not compared: a grader who drifts would make all others look as if they drift.
    """
    found = []
    for judgment in judgments:
        others = Counter(other.verdict.winner for other in by_task[judgment.task] if other.person != judgment.person)
        top = others.most_common(2)
        if top and (len(top) == 1 or top[0][1] > top[1][1]):
            found.append(judgment.verdict.winner == top[0][0])
    return found


def _is_left(judgment: Judgment) -> bool:
    better = judgment.first if judgment.verdict is Verdict.FIRST else judgment.second
    return better == judgment.left
