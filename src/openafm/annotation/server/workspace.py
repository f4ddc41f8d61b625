"""The items of a server: shared by its requests, with what the page shows of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from openafm.annotation.environments.pool import ToolPool
from openafm.annotation.environments.project import FREE, Project, ProjectError, Scenario
from openafm.annotation.errors import AnnotationError, not_found
from openafm.annotation.people.accounts import Accounts, Person
from openafm.annotation.progress import Progress
from openafm.annotation.trees.item import Item
from openafm.annotation.trees.progress import progress
from openafm.annotation.trees.store import TreeStore
from openafm.annotation.trees.tree import ErrorKind, Tree
from openafm.framework.backends.language_model import LanguageModel

PRESENCE_SECONDS = 15.0
MAX_RUNS = 8
"""Runs of the model that a person may have at a time."""


class Workspace:
    """Hold a project, its stored items, the model and the people who have items open.

    Args:
        pool: closed by `close`.
    """

    def __init__(self, project: Project, store: TreeStore, accounts: Accounts, model: LanguageModel, pool: ToolPool) -> None:
        self.project, self.store, self.accounts, self.model, self.pool = project, store, accounts, model, pool
        self._items: dict[str, Item] = {}
        self._running: dict[str, str] = {}  # the person by item
        self._present: dict[str, dict[str, tuple[str, float]]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """End the tool processes and close the database."""
        self.pool.close()
        self.store.database.close()

    def create(self, scenario_id: str, item: str, person: Person) -> Item:
        """Create an item with an id of the client's choice, or return the one of this id.

        Raises:
            AnnotationError: there is no such scenario, or its starting state cannot be used.
        """
        try:
            free = Scenario(id=FREE, query="Free conversation")
            scenario = free if scenario_id == FREE else self.project.scenario(scenario_id)
        except ProjectError as error:
            raise not_found(f"scenario {scenario_id:.100}") from error
        try:
            created = self.store.create(self.project, self.pool.definitions, scenario, person.id, item)
        except ProjectError as error:
            raise AnnotationError(f"the starting state of {scenario.id:.100} cannot be used: {error}") from error
        return self.item(created)

    def item(self, id: str) -> Item:
        """Return an item with its newest events.

        Raises:
            AnnotationError: there is no such item.
        """
        with self._lock:
            found = self._items.get(id)
        if found is not None:
            found.refresh()
            return found
        found = Item(self.store, id, self.pool)
        with self._lock:
            return self._items.setdefault(id, found)

    @contextmanager
    def running(self, id: str, person: str) -> Iterator[None]:
        """Mark an item as being continued by the model.

        Raises:
            AnnotationError: the model is already running, or the person has too many runs; status 409 or 429.
        """
        with self._lock:
            if id in self._running:
                raise AnnotationError("the model is already running on this item; wait for it", status=409, code="running")
            if sum(each == person for each in self._running.values()) >= MAX_RUNS:
                message = f"the model is running on {MAX_RUNS} of your items; wait for one of them"
                raise AnnotationError(message, status=429, code="rate_limit", retry_after=5.0)
            self._running[id] = person
        try:
            yield
        finally:
            with self._lock:
                self._running.pop(id, None)

    def is_running(self, id: str) -> bool:
        """Return True while the model continues an item."""
        return id in self._running

    def others(self, id: str, page: str, person: Person) -> list[str]:
        """Note that a page shows an item, and return the names of the people of the other pages that do."""
        now = self.store.clock()
        with self._lock:
            pages = self._present.setdefault(id, {})
            if page:
                pages[page] = (person.name, now)
            for gone in [key for key, (_, time) in pages.items() if now - time > PRESENCE_SECONDS]:
                del pages[gone]
            return sorted(name for key, (name, _) in pages.items() if key != page)

    def view(self, item: Item, page: str, person: Person) -> dict[str, Any]:
        """Return what the page shows of an item."""
        tree = item.tree
        names = self.accounts.names()
        is_current = tree.opening["tools_digest"] == self.project.tools_digest
        return {
            "id": item.id,
            "scenario": tree.opening["scenario"],
            "sequence": tree.sequence,
            "head": tree.head,
            "is_done": tree.is_done,
            "is_running": self.is_running(item.id),
            "stem": [node.id for node in tree.path()],
            "nodes": _nodes(tree, names),
            "comments": _comments(tree, 0, names),
            "flags": sorted(tree.flags.get(0, ())),
            "can_undo": tree.can_undo,
            "can_redo": tree.can_redo,
            "others": self.others(item.id, page, person),
            "warning": "" if is_current else "tools.py changed after this item was opened; earlier results may be old",
        }

    def progress(self) -> Progress:
        """Return the progress of the project by person."""
        return progress(self.store.logs(), self.accounts.names(), self.project.config.title)

    def overview(self) -> dict[str, Any]:
        """Return what the page shows of the project, without its items."""
        return {
            "title": self.project.config.title,
            "policy": self.project.policy,
            "model": self.model.name,
            "scenarios": [scenario.to_dict() for scenario in self.project.scenarios],
            "tools": [
                {"name": t.name, "description": t.description, "parameters": t.parameters} for t in self.pool.definitions
            ],
            "errors": [kind.value for kind in ErrorKind],
        }


def _nodes(tree: Tree, names: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        node.content.to_dict()
        | {
            "id": node.id,
            "parent": node.parent,
            "results": list(node.results),
            "model": node.model,
            "person": names.get(node.person or "", ""),
            "reason": {"kind": reason.kind, "text": reason.text} if (reason := tree.reasons.get(node.id)) else None,
            "comments": _comments(tree, node.id, names),
            "flags": sorted(tree.flags.get(node.id, ())),
        }
        for node in tree.nodes.values()
    ]


def _comments(tree: Tree, node: int, names: Mapping[str, str]) -> list[dict[str, Any]]:
    return [each | {"person": names.get(each["person"] or "", "")} for each in tree.comments if each["node"] == node]
