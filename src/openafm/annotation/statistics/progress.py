"""Progress of a grading project by person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from openafm.annotation.grading.judgments import Judgment, JudgmentStore, Kind
from openafm.annotation.progress import PersonProgress, Progress
from openafm.annotation.statistics.agreement import disagreement_rate
from openafm.annotation.statistics.graders import GraderReport, reports_by_person


def progress(store: JudgmentStore, names: Mapping[str, str]) -> Progress:
    """Return the progress of a project. A comparison is done when as many people as the project asks for have judged it.

    Args:
        names: the names of accounts by id.
    """
    judgments = store.all(Kind.GRADE)
    project, by_task = store.project, Counter(judgment.task for judgment in judgments)
    ordinary = [key for key, task in project.tasks.items() if not task.is_gold]
    needed = [key for key in ordinary if by_task[key] < project.config.overlap]
    by_person: dict[str, list[Judgment]] = {}
    units: dict[str, list[str]] = {}
    for judgment in judgments:
        by_person.setdefault(judgment.person, []).append(judgment)
        units.setdefault(judgment.task, []).append(judgment.verdict.winner)
    pairs = [winners for key, winners in units.items() if key in ordinary and len(winners) > 1]
    people = [
        _person(names.get(id, "unknown"), by_person[id], needed, report)
        for id, report in reports_by_person(project, judgments).items()
    ]
    return Progress(
        title=project.title,
        unit="comparisons",
        total=len(ordinary),
        done=len(ordinary) - len(needed),
        open=len(needed),
        flagged=len({judgment.task for judgment in judgments if any(judgment.flags)}),
        seconds=_mean([judgment.seconds for judgment in judgments]),
        errors=_errors(judgments),
        agreement=1 - disagreement_rate(pairs) if pairs else None,
        people=tuple(sorted(people, key=lambda person: person.name)),
    )


def _person(name: str, done: Sequence[Judgment], needed: Sequence[str], report: GraderReport) -> PersonProgress:
    right, total = report.gold
    gold = (f"gold {right} of {total}",) if total and right < total else ()
    return PersonProgress(
        name=name,
        done=len(done),
        open=len(set(needed) - {judgment.task for judgment in done}),
        flagged=sum(any(judgment.flags) for judgment in done),
        seconds=_mean([judgment.seconds for judgment in done]),
        errors=_errors(done),
        agreement=report.agreement,
        agreement_early=report.agreement_early,
        agreement_late=report.agreement_late,
        notes=(*report.flags, *gold),
    )


def _errors(judgments: Sequence[Judgment]) -> dict[str, int]:
    return dict(Counter(flag for judgment in judgments for flags in judgment.flags for flag in flags))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
