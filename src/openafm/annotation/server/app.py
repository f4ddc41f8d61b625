"""The application of an annotation project."""

from __future__ import annotations

from starlette.types import ASGIApp

from openafm.annotation.clock import steady_clock
from openafm.annotation.environments.pool import ToolPool
from openafm.annotation.environments.project import Project
from openafm.annotation.people.accounts import Accounts
from openafm.annotation.people.tables import PEOPLE
from openafm.annotation.server.routes import annotation_router
from openafm.annotation.server.workspace import Workspace
from openafm.annotation.trees.store import open_trees
from openafm.annotation.trees.tables import TREES
from openafm.annotation.web import WebConfig, build_app
from openafm.framework.backends.language_model import LanguageModel

TOOL_PROCESSES = 2


def open_workspace(project: Project, model: LanguageModel, database: str = "") -> Workspace:
    """Return a workspace with the project's own SQLite file, or a PostgreSQL URL.

    Raises:
        ProjectError, ToolFileError: the project cannot be used.
        DatabaseError: the database cannot be opened, or has the items of another project.
    """
    clock = steady_clock()
    store = open_trees(project, database, [PEOPLE, TREES], clock)
    return Workspace(project, store, Accounts(store.database, clock), model, ToolPool(project, TOOL_PROCESSES))


def build_annotation_app(workspace: Workspace, config: WebConfig) -> ASGIApp:
    """Return the application of a workspace."""
    return build_app(
        workspace.accounts,
        pages="annotate",
        routers=[annotation_router(workspace)],
        project=workspace.project.id,
        title=workspace.project.config.title,
        config=config,
    )
