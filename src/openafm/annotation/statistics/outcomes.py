"""Outcomes: the decision on each comparison, and their shares by locale group, locale and category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openafm.annotation.grading.judgments import Judgment, Kind, Verdict
from openafm.annotation.grading.locales import GROUPS, locale_group
from openafm.annotation.grading.project import Project, Task
from openafm.annotation.statistics.intervals import bootstrap_mean, wilson


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision on a comparison: `winner` is FIRST, SECOND or TIE; `grades` are the judgments behind it."""

    task: Task
    winner: Verdict
    grades: tuple[Judgment, ...]
    is_adjudicated: bool


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Wins, ties and losses of the first system of a pair."""

    first: str
    second: str
    wins: int
    ties: int
    losses: int
    margin: tuple[float, float]

    @property
    def total(self) -> int:
        return self.wins + self.ties + self.losses

    def to_dict(self) -> dict[str, Any]:
        """Return the counts, the shares, their Wilson intervals, and the bootstrap interval of wins minus losses."""
        counts = {"win": self.wins, "tie": self.ties, "loss": self.losses}
        total = max(self.total, 1)
        return {
            "first": self.first,
            "second": self.second,
            "comparisons": self.total,
            **{
                name: {"count": count, "share": count / total, "interval": wilson(count, self.total)}
                for name, count in counts.items()
            },
            "win_minus_loss": {"share": (self.wins - self.losses) / total, "interval": self.margin},
        }


def decide(project: Project, judgments: Iterable[Judgment]) -> list[Decision]:
    """Return the decisions on all judged comparisons that are no gold items, in order of the project.

    A reviewer's decision comes first, else the verdict of more than half of the graders, else it is a tie.
    """
    by_task: dict[str, list[Judgment]] = {}
    for judgment in judgments:
        by_task.setdefault(judgment.task, []).append(judgment)
    judged = [task for key, task in project.tasks.items() if key in by_task and not task.is_gold]
    return [_decision(task, by_task[task.key]) for task in judged]


def shares(decisions: Iterable[Decision]) -> list[Shares]:
    """Return the shares of each pair of systems."""
    by_pair: dict[tuple[str, str], list[Decision]] = {}
    for decision in decisions:
        by_pair.setdefault((decision.task.first, decision.task.second), []).append(decision)
    return [_shares(first, second, found) for (first, second), found in sorted(by_pair.items())]


def by_group(decisions: Sequence[Decision]) -> dict[str, list[Shares]]:
    """Return the shares by locale group, in the order of the report's figure."""
    found = _split(decisions, lambda decision: locale_group(decision.task.item.locale))
    return {group: found[group] for group in GROUPS if group in found}


def by_locale(decisions: Sequence[Decision]) -> dict[str, list[Shares]]:
    """Return the shares by locale."""
    return _split(decisions, lambda decision: decision.task.item.locale)


def by_category(decisions: Sequence[Decision]) -> dict[str, list[Shares]]:
    """Return the shares by category."""
    return _split(decisions, lambda decision: decision.task.item.category)


def flags_by_locale(decisions: Iterable[Decision]) -> dict[str, dict[str, dict[str, int]]]:
    """Return how often graders flagged each system's answers: counts by locale, system and flag.

    The flag "judgments" counts the judgments of the system's answers, flagged or not.
    """
    counts: dict[str, dict[str, Counter[str]]] = {}
    for decision in decisions:
        systems = counts.setdefault(decision.task.item.locale, {})
        for judgment in decision.grades:
            for system, flags in zip((judgment.first, judgment.second), judgment.flags, strict=True):
                systems.setdefault(system, Counter()).update(["judgments", *flags])
    return {locale: {name: dict(counter) for name, counter in systems.items()} for locale, systems in sorted(counts.items())}


def satisfaction(decisions: Iterable[Decision]) -> dict[str, dict[str, float]]:
    """Return number, mean and share of 4 and 5 of each system's absolute grades."""
    grades: dict[str, list[int]] = {}
    for decision in decisions:
        for judgment in decision.grades:
            for system, grade in zip((judgment.first, judgment.second), judgment.satisfaction, strict=True):
                if grade is not None:
                    grades.setdefault(system, []).append(grade)
    return {
        system: {
            "grades": len(found),
            "mean": sum(found) / len(found),
            "satisfied": sum(grade >= 4 for grade in found) / len(found),
        }
        for system, found in sorted(grades.items())
    }


def _decision(task: Task, judgments: Sequence[Judgment]) -> Decision:
    grades = tuple(judgment for judgment in judgments if judgment.kind is Kind.GRADE)
    adjudications = [judgment for judgment in judgments if judgment.kind is Kind.ADJUDICATION]
    if adjudications:
        winner = adjudications[-1].verdict.winner
    else:
        winner, count = Counter(judgment.verdict.winner for judgment in grades).most_common(1)[0]
        winner = winner if 2 * count > len(grades) else Verdict.TIE
    return Decision(task=task, winner=Verdict(winner), grades=grades, is_adjudicated=bool(adjudications))


def _shares(first: str, second: str, decisions: Sequence[Decision]) -> Shares:
    counts = Counter(decision.winner for decision in decisions)
    wins, ties, losses = counts[Verdict.FIRST], counts[Verdict.TIE], counts[Verdict.SECOND]
    margins = [{Verdict.FIRST: 1.0, Verdict.SECOND: -1.0}.get(decision.winner, 0.0) for decision in decisions]
    return Shares(first=first, second=second, wins=wins, ties=ties, losses=losses, margin=bootstrap_mean(margins))


def _split(decisions: Iterable[Decision], key: Callable[[Decision], str]) -> dict[str, list[Shares]]:
    parts: dict[str, list[Decision]] = {}
    for decision in decisions:
        parts.setdefault(key(decision), []).append(decision)
    found: Mapping[str, list[Shares]] = {name: shares(part) for name, part in sorted(parts.items())}
    return dict(found)
