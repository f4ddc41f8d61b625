"""Projects and people that the tests of grading share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from openafm.annotation.database import Database
from openafm.annotation.grading.items import Item, item_of
from openafm.annotation.grading.judgments import Answers, Judgment, JudgmentStore, Verdict
from openafm.annotation.grading.project import DATABASE, Project, create_project
from openafm.annotation.grading.tables import GRADING
from openafm.annotation.people.accounts import Accounts, Role
from openafm.annotation.people.tables import PEOPLE


class SetClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


def item(id: str, **changes: Any) -> Item:
    values = {"id": id, "prompt": f"Question {id}?", "answers": {"a": f"A {id}", "b": f"B {id}"}}
    return item_of(values | {"category": "Open QA", "locale": "en-GB"} | changes, id)


def project_of(folder: Path, items: Iterable[Item] = (), **settings: Any) -> Project:
    return create_project(folder, list(items) or [item(f"i{n}") for n in range(4)], **settings)


def store_of(project: Project, clock: SetClock | None = None) -> JudgmentStore:
    database = Database(project.folder / DATABASE, [PEOPLE, GRADING])
    return JudgmentStore(project, database, clock or SetClock())


def add_people(store: JudgmentStore, *names: str) -> list[str]:
    """Create accounts and return their ids."""
    accounts = Accounts(store.database, store.clock)
    invites = [accounts.invite(Role.ANNOTATOR, [store.project.config.id]) for _ in names]
    return [accounts.join(token, name, "a long password").id for token, name in zip(invites, names, strict=True)]


def judge(store: JudgmentStore, key: str, person: str, verdict: str = "first", **answers: Any) -> Judgment:
    """Store a judgment of strength 1."""
    strength = 1 if verdict in ("first", "second") else 0
    made = Answers(**{"verdict": Verdict(verdict), "strength": strength} | answers)
    return store.submit(store.project.task(key), person, made)
