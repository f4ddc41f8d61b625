"""Judgments of comparisons: what a grader decides, and their store."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import sqlalchemy as sql

from openafm.annotation.clock import Clock
from openafm.annotation.database import Database
from openafm.annotation.errors import AnnotationError
from openafm.annotation.grading.project import Project, Task
from openafm.annotation.grading.tables import assignments, judgments

FLAGS: Mapping[str, str] = {
    "unlocalized_term": "Un-localized term",
    "unnatural_phrase": "Unnatural phrase",
    "wrong_language": "Wrong language",
    "harmful": "Harmful",
    "hallucination": "Hallucination",
    "format": "Wrong format",
}
"""Issues of one answer, with their labels on the page."""
MAX_STRENGTH, MAX_SATISFACTION, MAX_COMMENT = 3, 5, 5000
_MAX_SECONDS = 24 * 3600.0


class Verdict(StrEnum):
    """Which of the two answers is better. The first system is the first one in alphabetical order."""

    FIRST = "first"
    SECOND = "second"
    TIE = "tie"
    BOTH_BAD = "both_bad"

    @property
    def winner(self) -> str:
        """`first`, `second` or `tie`: two bad answers are a tie."""
        return Verdict.TIE if self is Verdict.BOTH_BAD else self


class Kind(StrEnum):
    """Who judges: a grader, or a reviewer whose decision replaces the graders' majority."""

    GRADE = "grade"
    ADJUDICATION = "adjudication"


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a person enters about the two answers of a comparison.

    Attributes:
        strength: 1 (slightly better) to 3 (much better); 0 for a tie and for two bad answers.
        satisfaction: of each system's answer, 1 to 5; None if it is not given.
        flags: keys of `FLAGS` for each system's answer.
        seconds: time that the page was visible.
    """

    verdict: Verdict
    strength: int = 0
    satisfaction: tuple[int | None, int | None] = (None, None)
    flags: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    comment: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        has_winner = self.verdict in (Verdict.FIRST, Verdict.SECOND)
        if not (1 <= self.strength <= MAX_STRENGTH if has_winner else self.strength == 0):
            raise AnnotationError(f"strength is 1 to {MAX_STRENGTH} for a winner, else 0; got {self.strength}")
        if any(grade is not None and not 1 <= grade <= MAX_SATISFACTION for grade in self.satisfaction):
            raise AnnotationError(f"satisfaction is 1 to {MAX_SATISFACTION}, got {self.satisfaction}")
        if unknown := {flag for flags in self.flags for flag in flags} - set(FLAGS):
            raise AnnotationError(f"unknown flag {min(unknown)!r:.60}; use one of {', '.join(FLAGS)}")
        if len(self.comment) > MAX_COMMENT:
            raise AnnotationError(f"the comment has {len(self.comment):,} characters; use up to {MAX_COMMENT:,}")
        if not math.isfinite(self.seconds) or self.seconds < 0:
            raise AnnotationError(f"seconds must not be negative, got {self.seconds}")


@dataclass(frozen=True, kw_only=True)
class Judgment(Answers):
    """A stored judgment. `left` is the system that was on the left side; `id` orders judgments, whatever the clock does."""

    id: int
    task: str
    item: str
    first: str
    second: str
    person: str
    kind: Kind
    left: str
    time: float
    revision: int

    def to_dict(self) -> dict[str, Any]:
        """Return the judgment as JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


@dataclass(frozen=True, eq=False)
class JudgmentStore:
    """The judgments of one project.

    Raises (all methods):
        OutOfSpaceError: the disk is full; nothing is stored.
    """

    project: Project
    database: Database
    clock: Clock
    _digests: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._digests.update((item.id, item.digest) for item in self.project.items)
        self._check_items()

    def submit(self, task: Task, person: str, answers: Answers, *, revision: int = 0, kind: Kind = Kind.GRADE) -> Judgment:
        """Store a judgment, or change one.

        Args:
            revision: the revision that the change is based on; 0 for a new judgment.

        Raises:
            AnnotationError: another window has stored or changed the judgment meanwhile; status 409.
        """
        key = self._key(task, person)
        is_own = sql.and_(*(judgments.c[name] == value for name, value in key.items()), judgments.c.kind == kind)
        with self.database.writing() as connection:
            before = connection.execute(sql.select(judgments).where(is_own)).one_or_none()
            if revision != (0 if before is None else before.revision):
                raise AnnotationError(
                    "another window has stored a judgment of this comparison; reload it to see and change that one",
                    status=409,
                    code="conflict",
                )
            values = self._values(task, person, answers) | {"revision": revision + 1, "kind": kind}
            if before is None:
                connection.execute(judgments.insert().values(**key, **values))
            else:
                values["seconds"] += before.seconds
                connection.execute(judgments.update().where(is_own).values(values))
            opened = sql.and_(*(assignments.c[name] == value for name, value in key.items()))
            connection.execute(assignments.delete().where(opened))
            return judgment_of(connection.execute(sql.select(judgments).where(is_own)).one())

    def all(self, kind: Kind | None = None) -> list[Judgment]:
        """Return all judgments of the project in the order of their storage."""
        return self._select() if kind is None else self._select(judgments.c.kind == kind)

    def of_person(self, person: str) -> list[Judgment]:
        """Return a person's grades in the order of their storage."""
        return self._select(judgments.c.person == person, judgments.c.kind == Kind.GRADE)

    def of_task(self, key: str) -> list[Judgment]:
        """Return all judgments of a comparison in the order of their storage."""
        return self._select(judgments.c.task == key)

    def _select(self, *conditions: sql.ColumnElement[bool]) -> list[Judgment]:
        of_project = judgments.c.project == self.project.config.id
        statement = sql.select(judgments).where(of_project, *conditions).order_by(judgments.c.id)
        with self.database.reading() as connection:
            return [judgment_of(row) for row in connection.execute(statement)]

    def _key(self, task: Task, person: str) -> dict[str, str]:
        return {"project": self.project.config.id, "task": task.key, "person": person}

    def _values(self, task: Task, person: str, answers: Answers) -> dict[str, Any]:
        return {
            "item": task.item.id,
            "item_digest": self._digests[task.item.id],
            "first": task.first,
            "second": task.second,
            "verdict": answers.verdict,
            "strength": answers.strength,
            "satisfaction_first": answers.satisfaction[0],
            "satisfaction_second": answers.satisfaction[1],
            "flags_first": sorted(set(answers.flags[0])),
            "flags_second": sorted(set(answers.flags[1])),
            "comment": answers.comment,
            "left": self.project.left(task, person),
            "seconds": min(answers.seconds, _MAX_SECONDS),
            "time": self.clock(),
        }

    def _check_items(self) -> None:
        """Check that the judged items are those of the project, unchanged.

        Raises:
            AnnotationError: an item is missing or was edited after people judged it.
        """
        columns = judgments.c.item, judgments.c.item_digest
        statement = sql.select(*columns).where(judgments.c.project == self.project.config.id).distinct()
        with self.database.reading() as connection:
            for item, digest in connection.execute(statement):
                if self._digests.get(item) != digest:
                    what = (
                        "was edited after people judged it" if item in self._digests else "is missing, and people judged it"
                    )
                    raise AnnotationError(f"the item '{item}' {what}; restore it in items.jsonl, and add a new item instead")


def judgment_of(row: sql.Row[Any]) -> Judgment:
    """Return the judgment of a row of the table."""
    return Judgment(
        id=row.id,
        task=row.task,
        item=row.item,
        first=row.first,
        second=row.second,
        person=row.person,
        kind=Kind(row.kind),
        verdict=Verdict(row.verdict),
        strength=row.strength,
        satisfaction=(row.satisfaction_first, row.satisfaction_second),
        flags=(tuple(row.flags_first), tuple(row.flags_second)),
        comment=row.comment,
        seconds=row.seconds,
        left=row.left,
        time=row.time,
        revision=row.revision,
    )
