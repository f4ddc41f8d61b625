"""Export of judgments to the reward model's training format (data/preferences.py)."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openafm.annotation.grading.judgments import Judgment, Verdict
from openafm.core.files import atomic_file

if TYPE_CHECKING:
    from openafm.annotation.statistics.outcomes import Decision


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """Counts of `export_preferences`. Comparisons with images or equal answers are left out: the format has no images."""

    num_pairs: int
    num_graded: int
    num_left_out: int


def export_preferences(decisions: Iterable[Decision], out: Path) -> ExportReport:
    """Write a pair for each comparison with a winner, and single graded answers for ties, as JSONL.

    The strength of a pair is the median of the graders who agree with the decision; grades are rounded means of the
    absolute satisfaction. Answers of a tie are written with their grades, which train the reward model alone.
    """
    counts = {"pairs": 0, "graded": 0, "left_out": 0}
    with atomic_file(out, "w") as file:
        for decision in decisions:
            answers = decision.task.item.answers
            if decision.task.item.images or answers[decision.task.first] == answers[decision.task.second]:
                counts["left_out"] += 1
                continue
            lines = list(_lines(decision))
            kind = "graded" if decision.winner is Verdict.TIE else "pairs"
            counts[kind if lines else "left_out"] += len(lines) or 1
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    return ExportReport(num_pairs=counts["pairs"], num_graded=counts["graded"], num_left_out=counts["left_out"])


def _lines(decision: Decision) -> Iterable[dict[str, Any]]:
    task = decision.task
    grades = [_mean_grade(decision.grades, side) for side in (0, 1)]
    common = {"prompt": _prompt(task.item.prompt), "language": task.item.locale.split("-")[0]}
    answers = [task.item.answers[system] for system in (task.first, task.second)]
    if decision.winner is Verdict.TIE:
        for answer, grade in zip(answers, grades, strict=True):
            if grade is not None:
                yield {**common, "response": answer, "grade": grade}
        return
    chosen = 0 if decision.winner is Verdict.FIRST else 1
    sides = {"chosen": chosen, "rejected": 1 - chosen}
    given = {name: grade for name, side in sides.items() if (grade := grades[side]) is not None}
    strengths = [judgment.strength for judgment in decision.grades if judgment.verdict is decision.winner]
    yield {
        **common,
        **{name: answers[side] for name, side in sides.items()},
        "strength": round(statistics.median(strengths)) if strengths else 1,
        **({"grades": given} if given else {}),
    }


def _prompt(turns: Sequence[tuple[str, str]]) -> str | list[dict[str, str]]:
    if len(turns) == 1:
        return turns[0][1]
    named = {"tool": {"name": "tool"}}  # the format needs a name, items have none
    return [{"role": role, **named.get(role, {}), "content": text} for role, text in turns]


def _mean_grade(grades: Iterable[Judgment], side: int) -> int | None:
    found = [grade for judgment in grades if (grade := judgment.satisfaction[side]) is not None]
    return round(statistics.mean(found)) if found else None
