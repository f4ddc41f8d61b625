"""The grading server: a project, its database, accounts and routes as one application."""

from __future__ import annotations

from pathlib import Path

from starlette.types import ASGIApp

from openafm.annotation.clock import steady_clock
from openafm.annotation.database import Database
from openafm.annotation.grading.judgments import JudgmentStore
from openafm.annotation.grading.project import DATABASE, Project
from openafm.annotation.grading.queue import Queue
from openafm.annotation.grading.routes import Grading, router
from openafm.annotation.grading.tables import GRADING
from openafm.annotation.people.accounts import Accounts
from openafm.annotation.people.tables import PEOPLE
from openafm.annotation.web import WebConfig, build_app


def open_store(project: Project, database: str = "") -> JudgmentStore:
    """Return the judgments of a project, from its own SQLite file or from a PostgreSQL URL.

    Raises:
        DatabaseError: the database cannot be opened.
        AnnotationError: an item was edited after people judged it.
    """
    place: Path | str = database or project.folder / DATABASE
    return JudgmentStore(project, Database(place, [PEOPLE, GRADING]), steady_clock())


def build_grading_app(store: JudgmentStore, config: WebConfig) -> ASGIApp:
    """Return the application of a grading project."""
    accounts = Accounts(store.database, store.clock)
    return build_app(
        accounts,
        pages="grade",
        routers=[router],
        project=store.project.config.id,
        title=store.project.title,
        config=config,
        state={"grading": Grading(store, Queue(store))},
    )
