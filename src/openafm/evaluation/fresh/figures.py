"""Figures of the fresh sets: a model beside baselines without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from openafm.evaluation.fresh.cases import Case, event_cases, form_cases, iso_cases, label_cases, tool_cases
from openafm.evaluation.fresh.natural import natural_cases
from openafm.evaluation.fresh.scores import constant_answer, model_answer, regex_answer, score_cases

if TYPE_CHECKING:
    from openafm.framework.backends.system_model import SystemLanguageModel

NUM_NATURAL_CASES = 200
"""Cases of each natural set and task."""


@dataclass(frozen=True, kw_only=True)
class FreshFigure:
    """Shares of right answers, from 0 to 1: of the model, overall and by language, of a constant answer, of patterns."""

    model: float
    constant: float
    regex: float
    cases: int
    languages: dict[str, float]


def fresh_cases(natural: Path | None, num_natural: int = NUM_NATURAL_CASES) -> list[Case]:
    """Return the cases of all sets; `natural` is the folder of requests that people wrote, with their test parts."""
    cases = event_cases() + iso_cases() + label_cases() + form_cases() + tool_cases()
    return cases if natural is None else cases + natural_cases(natural, num_natural)


def fresh_figures(
    model: SystemLanguageModel, cases: Sequence[Case], on_each: Callable[[int], None] = lambda _: None
) -> dict[str, FreshFigure]:
    """Return the scores by figure. `on_each` is called with the number of cases that the model has answered."""
    found = score_cases(cases, model_answer(model), on_each)
    constant, regex = score_cases(cases, constant_answer), score_cases(cases, regex_answer)
    return {
        name: FreshFigure(
            model=score.score,
            constant=constant[name].score,
            regex=regex[name].score,
            cases=score.num_cases,
            languages=score.languages,
        )
        for name, score in found.items()
    }
