"""The results of a project as one JSON object."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from openafm.annotation.errors import AnnotationError
from openafm.annotation.grading.judge import JudgeReply, decisions_of, replies
from openafm.annotation.grading.judgments import Judgment, JudgmentStore, Kind, Verdict
from openafm.annotation.grading.locales import GROUPS, locale_group
from openafm.annotation.grading.project import Project
from openafm.annotation.grading.queue import is_screened_out
from openafm.annotation.statistics.agreement import (
    Level,
    cohens_kappa,
    consensus_rate,
    disagreement_rate,
    krippendorff_alpha,
)
from openafm.annotation.statistics.graders import grader_reports
from openafm.annotation.statistics.intervals import wilson
from openafm.annotation.statistics.outcomes import (
    Decision,
    Shares,
    by_category,
    by_group,
    by_locale,
    decide,
    flags_by_locale,
    satisfaction,
    shares,
)
from openafm.annotation.statistics.ratings import Comparisons, fit_ratings


def counted_judgments(store: JudgmentStore) -> list[Judgment]:
    """Return the judgments without those of people who were screened out."""
    screened = _screened_out(store)
    return [judgment for judgment in store.all() if judgment.person not in screened]


def project_report(store: JudgmentStore) -> dict[str, Any]:
    """Return counts, shares, ratings, agreement, graders, flags and judges. Values that do not exist are None."""
    judgments, screened = store.all(), _screened_out(store)
    counted = [judgment for judgment in judgments if judgment.person not in screened]
    decisions = decide(store.project, counted)
    graders = grader_reports(store.project, judgments)
    report = {
        "project": store.project.config.id,
        "title": store.project.title,
        "systems": list(store.project.systems),
        "counts": {
            "comparisons": sum(not task.is_gold for task in store.project.tasks.values()),
            "judged": len(decisions),
            "adjudicated": sum(decision.is_adjudicated for decision in decisions),
            "judgments": len(counted),
            "graders": len({judgment.person for judgment in counted}),
            "screened_out": len(screened),
        },
        "all": _dicts(shares(decisions)),
        "groups": {group: _dicts(found) for group, found in by_group(decisions).items()},
        "locales": {locale: _dicts(found) for locale, found in by_locale(decisions).items()},
        "categories": {category: _dicts(found) for category, found in by_category(decisions).items()},
        "ratings": _ratings_by_group(store.project.systems, decisions),
        "agreement": _agreement(decisions),
        "satisfaction": satisfaction(decisions),
        "flags": flags_by_locale(decisions),
        "graders": [grader.to_dict() for grader in graders],
        "judges": _judges(store, decisions),
        "warnings": [f"grader {grader.grader}: {flag}" for grader in graders for flag in grader.flags],
    }
    found: dict[str, Any] = _without_nan(report)
    return found


def ratings_of(systems: Sequence[str], decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """Return the Bradley-Terry scores (Davidson's ties) with 95 % intervals, the best system first.

    Raises:
        AnnotationError: the scores have no finite maximum.
    """
    index = {system: position for position, system in enumerate(systems)}
    pairs = [
        Comparisons(first=index[each.first], second=index[each.second], wins=each.wins, losses=each.losses, ties=each.ties)
        for each in shares(decisions)
    ]
    ratings = fit_ratings(len(systems), pairs)
    rows = zip(systems, ratings.scores, ratings.intervals(), strict=True)
    found = [{"system": system, "score": score, "interval": interval} for system, score, interval in rows]
    return sorted(found, key=lambda row: -float(str(row["score"])))


def judge_report(project: Project, decisions: Sequence[Decision], found: Sequence[JudgeReply]) -> dict[str, Any]:
    """Return the agreement of a judge with people, its consistency over both orders, and its nonsense."""
    of_judge = decisions_of(found)
    people = {decision.task.key: decision for decision in decisions}
    common = [key for key in people if key in of_judge]
    pairs = [(of_judge[key], people[key].winner) for key in common]
    by_order: dict[str, list[JudgeReply]] = {}
    for reply in found:
        by_order.setdefault(reply.task, []).append(reply)
    both = [pair for pair in by_order.values() if len(pair) == 2 and all(reply.verdict for reply in pair)]
    consistent = sum(len({reply.verdict.winner for reply in pair if reply.verdict}) == 1 for pair in both)
    gold = [key for key in of_judge if project.tasks[key].is_gold]
    return {
        "replies": len(found),
        "nonsense": sum(reply.verdict is None for reply in found),
        "consistent": consistent / len(both) if both else None,
        "gold": [sum(_name(project, key, of_judge[key]) == project.tasks[key].item.gold for key in gold), len(gold)],
        **_agreed(pairs),
        "groups": {
            group: _agreed([(of_judge[key], people[key].winner) for key in common if _group(people[key]) == group])
            for group in GROUPS
            if any(_group(people[key]) == group for key in common)
        },
    }


def _judges(store: JudgmentStore, decisions: Sequence[Decision]) -> dict[str, Any]:
    by_judge: dict[str, list[JudgeReply]] = {}
    for reply in replies(store):
        by_judge.setdefault(reply.judge, []).append(reply)
    return {judge: judge_report(store.project, decisions, found) for judge, found in sorted(by_judge.items())}


def _agreed(pairs: Sequence[tuple[Verdict, Verdict]]) -> dict[str, Any]:
    equal = sum(one == other for one, other in pairs)
    return {
        "comparisons": len(pairs),
        "agreement": equal / len(pairs) if pairs else None,
        "interval": wilson(equal, len(pairs)),
        "kappa": None if math.isnan(kappa := cohens_kappa(pairs)) else kappa,
    }


def _agreement(decisions: Sequence[Decision]) -> dict[str, float]:
    winners = [[judgment.verdict.winner for judgment in decision.grades] for decision in decisions]
    codes: Mapping[str, float] = {Verdict.FIRST: 1, Verdict.SECOND: -1, Verdict.TIE: 0}
    signed = [[codes[judgment.verdict.winner] * judgment.strength for judgment in decision.grades] for decision in decisions]
    return {
        "alpha_winner": krippendorff_alpha([[codes[winner] for winner in unit] for unit in winners]),
        "alpha_strength": krippendorff_alpha(signed, Level.ORDINAL),
        "consensus_rate": consensus_rate(winners),
        "disagreement_rate": disagreement_rate(winners),
    }


def _ratings_by_group(systems: Sequence[str], decisions: Sequence[Decision]) -> dict[str, Any]:
    groups = {"all": decisions} | {
        group: [decision for decision in decisions if _group(decision) == group] for group in GROUPS
    }
    found: dict[str, Any] = {}
    for group, part in groups.items():
        if part:
            try:
                found[group] = ratings_of(systems, part)
            except AnnotationError as error:
                found[group] = {"error": str(error)}
    return found


def _screened_out(store: JudgmentStore) -> set[str]:
    by_person: dict[str, list[Judgment]] = {}
    for judgment in store.all(Kind.GRADE):
        by_person.setdefault(judgment.person, []).append(judgment)
    return {person for person, done in by_person.items() if is_screened_out(store.project, done)}


def _group(decision: Decision) -> str:
    return locale_group(decision.task.item.locale)


def _name(project: Project, key: str, winner: Verdict) -> str:
    task = project.tasks[key]
    return {Verdict.FIRST: task.first, Verdict.SECOND: task.second}.get(winner, str(winner))


def _dicts(found: Sequence[Shares]) -> list[dict[str, Any]]:
    return [each.to_dict() for each in found]


def _without_nan(value: Any) -> Any:
    """Replace nan by None, which JSON has."""
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value
