"""Sample answers on the fresh sets: of each set the best and the worst one, for a model card."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openafm.evaluation.fresh.cases import Case
from openafm.evaluation.fresh.scores import Answer, grade_answer

NUM_CASES = 20
"""Cases of each set among which samples are chosen: the first ones."""


@dataclass(frozen=True, kw_only=True)
class FreshSample:
    """A case and its answer. `grade` is the share of the answer that is right, from 0 to 1; texts are compact JSON."""

    figure: str
    prompt: str
    answer: str
    expected: str
    grade: float


def fresh_samples(cases: Sequence[Case], figures: Sequence[str], answer: Answer) -> list[FreshSample]:
    """Return the best and the worst answer of each figure among its first cases; the first one where grades are equal."""
    by_figure: defaultdict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_figure[case.figure].append(case)
    samples = []
    for figure in figures:
        if not by_figure[figure]:
            continue
        found = [_sample(case, answer(case)) for case in by_figure[figure][:NUM_CASES]]
        samples += [max(found, key=lambda sample: sample.grade), min(found, key=lambda sample: sample.grade)]
    return samples


def _sample(case: Case, answer: Any) -> FreshSample:
    grades = grade_answer(case, answer)
    return FreshSample(
        figure=case.figure,
        prompt=case.prompt,
        answer=_text(answer),
        expected=_text(_accepted(case.expected)),
        grade=min(grades[case.figure], grades.get("natural_slots", 1.0)),  # the right tool alone is not a right answer
    )


def _accepted(expected: Any) -> Any:
    """Replace the accepted values of an event's fields by their first ones, and leave out what is absent."""
    if isinstance(expected, dict) and any(isinstance(values, tuple) for values in expected.values()):
        first = {name: values[0] for name, values in expected.items() if isinstance(values, tuple)}
        return {name: value for name, value in first.items() if value is not None}
    return expected


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=list)
