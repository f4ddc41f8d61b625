"""The application of an annotation project."""

from __future__ import annotations

from pathlib import Path

from starlette.types import ASGIApp

from openafm.annotation.clock import steady_clock
from openafm.annotation.database import Database
from openafm.annotation.environments.pool import ToolPool
from openafm.annotation.environments.project import DATABASE, Project
from openafm.annotation.people.accounts import Accounts
from openafm.annotation.people.tables import PEOPLE
from openafm.annotation.server.routes import annotation_router
from openafm.annotation.server.workspace import Workspace
from openafm.annotation.trees.store import TreeStore
from openafm.annotation.trees.tables import TREES
from openafm.annotation.web import WebConfig, build_app
from openafm.framework.backends.language_model import LanguageModel

TOOL_PROCESSES = 2


def open_workspace(project: Project, model: LanguageModel, database: str = "") -> Workspace:
    """Return a workspace with the project's own SQLite file, or a PostgreSQL URL.

    Raises:
        ProjectError, ToolFileError: the project cannot be used.
        DatabaseError: the database cannot be opened.
    """
    place: Path | str = database or project.path / DATABASE
    pool = ToolPool(project, TOOL_PROCESSES)
    clock = steady_clock()
    store = TreeStore(Database(place, [PEOPLE, TREES]), clock)
    return Workspace(project, store, Accounts(store.database, clock), model, pool)


def build_annotation_app(workspace: Workspace, config: WebConfig) -> ASGIApp:
    """Return the application of a workspace."""
    return build_app(
        workspace.accounts,
        pages="annotate",
        routers=[annotation_router(workspace)],
        project=workspace.project.path.resolve().name,
        title=workspace.project.config.title,
        config=config,
    )
