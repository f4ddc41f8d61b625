"""Simulated graders of a project: for demonstrations, tests and `openafm reproduce`. They are no measure of quality."""

from __future__ import annotations

import random
from dataclasses import dataclass

from openafm.annotation.grading.judgments import Answers, JudgmentStore, Verdict
from openafm.annotation.grading.project import Task
from openafm.annotation.people.accounts import Accounts, Role

_ENOUGH_WORDS = 20
_TIE = 0.05
_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class SimulatedGrading:
    """Counts of `grade_by_simulation`."""

    graders: int
    judgments: int


def grade_by_simulation(
    store: JudgmentStore, *, num_graders: int = 3, error_rate: float = 0.2, seed: int = 0
) -> SimulatedGrading:
    """Judge each comparison by simulated graders with accounts of their own.

    A grader prefers the answer with more different words, up to 20, and fewer repetitions, and errs in a share of the cases.

    Raises:
        AnnotationError: the graders have judged before.
    """
    accounts = Accounts(store.database, store.clock)
    chance = random.Random(seed)
    names = [f"simulated grader {number + 1}" for number in range(num_graders)]
    invites = [accounts.invite(Role.ANNOTATOR, [store.project.config.id]) for _ in names]
    passwords = [f"{chance.getrandbits(128):032x}" for _ in names]
    people = [
        accounts.join(token, name, password).id for token, name, password in zip(invites, names, passwords, strict=True)
    ]
    for task in store.project.tasks.values():
        for person in people:
            store.submit(task, person, _judged(task, chance, error_rate))
    return SimulatedGrading(graders=len(people), judgments=len(people) * len(store.project.tasks))


def _judged(task: Task, chance: random.Random, error_rate: float) -> Answers:
    first, second = (_score(task.item.answers[system]) for system in (task.first, task.second))
    verdict = Verdict.TIE if abs(first - second) < _TIE else Verdict.FIRST if first > second else Verdict.SECOND
    if chance.random() < error_rate:
        verdict = chance.choice((Verdict.FIRST, Verdict.SECOND, Verdict.TIE))
    grades = tuple(1 + round(4 * score) for score in (first, second))
    flags: tuple[tuple[str, ...], ...] = tuple(("unnatural_phrase",) if score < 0.2 else () for score in (first, second))
    return Answers(
        verdict=verdict,
        strength=0 if verdict is Verdict.TIE else 1,
        satisfaction=(grades[0], grades[1]),
        flags=(flags[0], flags[1]),
        seconds=_SECONDS,
    )


def _score(answer: str) -> float:
    """Return 0 to 1: the share of words that differ, times the length up to 20 words. Characters count without spaces."""
    words = answer.split() if " " in answer else list(answer)
    different = len(set(words))
    return different / max(len(words), 1) * min(different / _ENOUGH_WORDS, 1.0)
