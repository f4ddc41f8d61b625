"""Items for tests: a project, its database and its tool processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openafm.annotation.database import Database
from openafm.annotation.environments.pool import ToolPool
from openafm.annotation.environments.project import Project
from openafm.annotation.trees.item import Change, Item
from openafm.annotation.trees.nodes import Content, NodeKind
from openafm.annotation.trees.store import TreeStore
from openafm.annotation.trees.tables import TREES
from openafm.tokenizer.conversation import ToolCall

_keys = itertools.count()


def change(item: Item | None = None, person: str | None = None) -> Change:
    """Return a new change; with `item`, one that has seen its newest events."""
    return Change(key=f"key{next(_keys)}", person=person, sequence=None if item is None else item.tree.sequence)


def step(name: str, **arguments: object) -> Content:
    """Return a step with one call."""
    return Content(kind=NodeKind.STEP, calls=(ToolCall(name=name, arguments=arguments),))


def answer(text: str) -> Content:
    """Return an answer."""
    return Content(kind=NodeKind.ANSWER, text=text)


@contextmanager
def open_store(project: Project, path: Path | str, pool: ToolPool | None = None) -> Iterator[tuple[TreeStore, ToolPool]]:
    """Open a store with tool processes."""
    database = Database(path, [TREES])
    used = pool or ToolPool(project, size=1)
    try:
        yield TreeStore(database), used
    finally:
        database.close()
        if pool is None:
            used.close()


def new_item(project: Project, store: TreeStore, pool: ToolPool, scenario: int = 0) -> Item:
    """Create an item of a scenario."""
    return Item(store, store.create(project, pool.definitions, project.scenarios[scenario], None), pool)
