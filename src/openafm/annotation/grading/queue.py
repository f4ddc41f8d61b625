"""Which comparison a person sees next: overlap, leases, gold items, screening, adjudication."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sql

from openafm.annotation.grading.items import TIE
from openafm.annotation.grading.judgments import Judgment, JudgmentStore, Kind, Verdict
from openafm.annotation.grading.project import Project, Task
from openafm.annotation.grading.tables import assignments, judgments

GOLD_WINDOW = 10
_LEAST_GOLD = 5  # without a qualification, people are screened out after this number of gold items


class QueueState(StrEnum):
    """Whether a person has a next comparison, and why not."""

    OPEN = "open"
    DONE = "done"
    SCREENED_OUT = "screened_out"


@dataclass(frozen=True, kw_only=True)
class Next:
    """The next comparison of a person. `task` is None unless `state` is OPEN."""

    state: QueueState
    task: Task | None = None
    num_done: int = 0
    num_left: int = 0


class Queue:
    """Give comparisons to people."""

    def __init__(self, store: JudgmentStore) -> None:
        self._store, self._project, self._config = store, store.project, store.project.config
        self._of_project = assignments.c.project == self._config.id

    def next(self, person: str) -> Next:
        """Return the comparison that a person has open, else open another one for the person."""
        done = self._store.of_person(person)
        if is_screened_out(self._project, done):
            return Next(state=QueueState.SCREENED_OUT, num_done=len(done))
        with self._store.database.writing() as connection:
            rows = connection.execute(sql.select(assignments).where(self._of_project)).all()
            judged = {judgment.task for judgment in done}
            skipped = {row.task for row in rows if row.person == person and row.skipped is not None}
            own = [row.task for row in sorted(rows, key=lambda row: row.opened) if row.person == person]
            opened = [key for key in own if key not in judged | skipped and key in self._project.tasks]
            left = self._candidates(connection, person, judged | skipped, rows)
            key = opened[0] if opened else self._chosen(person, done, left)
            if key is None:
                return Next(state=QueueState.DONE, num_done=len(done))
            if not opened:
                values = {"project": self._config.id, "task": key, "person": person, "opened": self._store.clock()}
                connection.execute(assignments.insert().values(values))
        num_left = len([each for each in left if not self._project.tasks[each].is_gold])
        return Next(state=QueueState.OPEN, task=self._project.tasks[key], num_done=len(done), num_left=num_left)

    def skip(self, task: Task, person: str, reason: str) -> None:
        """Leave a comparison to others. The person does not see it again."""
        key = {"project": self._config.id, "task": task.key, "person": person}
        with self._store.database.writing() as connection:
            connection.execute(assignments.delete().where(*(assignments.c[name] == value for name, value in key.items())))
            values = key | {"opened": self._store.clock(), "skipped": reason[:200] or "no reason"}
            connection.execute(assignments.insert().values(values))

    def next_adjudication(self, person: str) -> Next:
        """Return a comparison on which enough people disagree, and which this person has not judged."""
        by_task: dict[str, list[Judgment]] = {}
        for judgment in self._store.all():
            by_task.setdefault(judgment.task, []).append(judgment)
        open_tasks = [
            key
            for key, found in by_task.items()
            if needs_adjudication(found, self._config.overlap)
            and person not in {judgment.person for judgment in found}
            and key in self._project.tasks
            and not self._project.tasks[key].is_gold
        ]
        num_done = sum(judgment.kind is Kind.ADJUDICATION for found in by_task.values() for judgment in found)
        if not open_tasks:
            return Next(state=QueueState.DONE, num_done=num_done)
        task = self._project.tasks[min(open_tasks, key=self._order(person))]
        return Next(state=QueueState.OPEN, task=task, num_done=num_done, num_left=len(open_tasks))

    def _candidates(
        self, connection: sql.Connection, person: str, seen: set[str], rows: Iterable[sql.Row[Any]]
    ) -> list[str]:
        """Return the comparisons that a person can open, the first one first: those that others have begun."""
        counted = sql.select(judgments.c.task, sql.func.count().label("num")).group_by(judgments.c.task)
        of_project = judgments.c.project == self._config.id, judgments.c.kind == Kind.GRADE
        judged = {row.task: int(row.num) for row in connection.execute(counted.where(*of_project))}
        now, lease = self._store.clock(), 60 * self._config.lease_minutes
        # The absolute value: after the machine's clock is set back, old leases would otherwise last too long.
        others = [row for row in rows if row.person != person and row.skipped is None]
        leased = Counter(row.task for row in others if abs(now - row.opened) < lease)
        order = self._order(person)
        left = [
            key
            for key, task in self._project.tasks.items()
            if key not in seen and (task.is_gold or judged.get(key, 0) + leased[key] < self._config.overlap)
        ]
        return sorted(left, key=lambda key: (-judged.get(key, 0), order(key)))

    def _chosen(self, person: str, done: Sequence[Judgment], left: Sequence[str]) -> str | None:
        ordinary = [key for key in left if not self._project.tasks[key].is_gold]
        gold = [key for key in left if self._project.tasks[key].is_gold]
        if not ordinary:
            return None
        return min(gold, key=self._order(person)) if gold and self._is_gold_due(done) else ordinary[0]

    def _is_gold_due(self, done: Sequence[Judgment]) -> bool:
        is_gold = [self._project.tasks[judgment.task].is_gold for judgment in done if judgment.task in self._project.tasks]
        if sum(is_gold) < self._config.qualification_items:
            return True
        since = is_gold[::-1].index(True) if any(is_gold) else len(is_gold)
        return 0 < self._config.gold_every <= since

    def _order(self, person: str) -> Callable[[str], bytes]:
        """Return a sort key that shuffles comparisons, differently for each person."""

        def key(task: str) -> bytes:
            return hashlib.sha256(f"{self._config.seed}/{person}/{task}".encode()).digest()

        return key


def gold_results(project: Project, done: Iterable[Judgment]) -> list[bool]:
    """Return whether each gold item was judged as expected, in order."""
    tasks = [(judgment, project.tasks.get(judgment.task)) for judgment in done]
    return [_winner(judgment) == task.item.gold for judgment, task in tasks if task is not None and task.is_gold]


def is_screened_out(project: Project, done: Iterable[Judgment]) -> bool:
    """Return True if a person judged too many of the last gold items wrong."""
    results = gold_results(project, done)
    if len(results) < (project.config.qualification_items or _LEAST_GOLD):
        return False
    last = results[-GOLD_WINDOW:]
    return sum(last) / len(last) < project.config.least_gold_accuracy


def needs_adjudication(found: Sequence[Judgment], overlap: int) -> bool:
    """Return True if `overlap` people judged a comparison, no verdict has a majority, and no reviewer has decided."""
    if any(judgment.kind is Kind.ADJUDICATION for judgment in found):
        return False
    winners = Counter(judgment.verdict.winner for judgment in found)
    return winners.total() >= max(overlap, 2) and 2 * max(winners.values()) <= winners.total()


def _winner(judgment: Judgment) -> str:
    """Return the name of the preferred system, or `TIE`."""
    return {Verdict.FIRST: judgment.first, Verdict.SECOND: judgment.second}.get(judgment.verdict, TIE)
