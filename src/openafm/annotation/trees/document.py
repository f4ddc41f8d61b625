"""Whole trees as JSON (`tree.schema.json`): the log is the record; nodes, main stem and reasons are there for readers."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from openafm.annotation.environments.pool import ToolPool
from openafm.annotation.environments.project import Project, ProjectError, Scenario
from openafm.annotation.errors import AnnotationError
from openafm.annotation.trees.nodes import check_order
from openafm.annotation.trees.replay import Replay
from openafm.annotation.trees.store import TreeStore
from openafm.annotation.trees.tree import Event, EventKind, Tree, fold
from openafm.framework.schema.validation import Validator

FORMAT, VERSION = "openafm-annotation-tree", 1


class ForeignTreeError(AnnotationError):
    """A document is not a tree of this project; nothing was imported."""


def tree_document(item: str, tree: Tree, events: Sequence[Event]) -> dict[str, Any]:
    """Return an item as a document."""
    nodes = [
        node.content.to_dict()
        | {
            "id": node.id,
            "parent": node.parent,
            "results": list(node.results),
            "model": node.model,
            "on_stem": node in tree.path(),
            "reason": {"kind": reason.kind, "text": reason.text} if (reason := tree.reasons.get(node.id)) else None,
            "flags": sorted(tree.flags.get(node.id, ())),
        }
        for node in tree.nodes.values()
    ]
    return {
        "format": FORMAT,
        "version": VERSION,
        "item": item,
        "is_done": tree.is_done,
        "stem": [node.id for node in tree.path()],
        "nodes": nodes,
        "events": [event.to_dict() for event in events],
    }


def import_tree(document: Any, store: TreeStore, project: Project, pool: ToolPool) -> str:
    """Store a document as an item of a project and return its id. Every call of every branch is run again.

    Raises:
        ForeignTreeError: it is not a tree document, is of a newer version, its item exists, or the project has
            another policy, other tools or other results.
    """
    events = _events(document)
    tree = fold(events)
    if tree.opening["policy"] != project.policy or tree.tools != tuple(pool.definitions):
        raise ForeignTreeError("the tree has another policy or other tools; import it into a project with the same ones")
    try:
        start = project.start_image(Scenario.from_dict(tree.opening["scenario"]))
    except ProjectError as error:
        raise ForeignTreeError(f"the starting state of the tree does not fit this project: {error!s:.300}") from error
    replay, num_calls = Replay(pool, start), {0: 0}
    for node in tree.nodes.values():
        num_calls[node.id] = num_calls[node.parent] + len(node.content.calls)
        problem = replay.run(node, num_calls[node.parent])
        if problem is not None:
            raise ForeignTreeError(f"this project gives other results; {problem}")
    stored = [_replayed(event, replay, num_calls, project) for event in events]
    item: str = document["item"]
    if not store.add(item, stored, list(replay.states.values()), start, is_done=tree.is_done):
        raise ForeignTreeError(f"the item {item} is already in the project", status=409)
    return item


def _events(document: Any) -> list[Event]:
    if isinstance(document, Mapping) and document.get("format") == FORMAT and document.get("version") != VERSION:
        raise ForeignTreeError(f"the tree has the version {document.get('version')!r:.20}; this openafm reads {VERSION}")
    problem = _validator().validation().problem(document)
    if problem is not None:
        raise ForeignTreeError(f"the document is not a tree of openafm: {problem:.300}")
    try:
        json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
        events = [
            Event(
                sequence=each["sequence"],
                group=each["group"],
                kind=EventKind(each["kind"]),
                payload=each["payload"],
                time=each["time"],
            )
            for each in document["events"]
        ]
        tree = fold(events)
        Scenario.from_dict(tree.opening["scenario"])
        for node in tree.nodes.values():
            check_order([each.kind for each in tree.path(node.id)])
    except (ValueError, KeyError, TypeError, RecursionError, AnnotationError) as error:
        raise ForeignTreeError(f"the log of the tree is damaged: {error!s:.300}") from error
    return events


def _replayed(event: Event, replay: Replay, num_calls: Mapping[int, int], project: Project) -> Event:
    """Return an event with the states and results of this project: page layouts differ between versions of SQLite."""
    own: dict[str, Any]
    match event.kind:
        case EventKind.OPENED:
            own = {"state": replay.keys[0], "tools_digest": project.tools_digest}
        case EventKind.NODE:
            id = event.sequence
            own = {"state": replay.keys[id], "results": list(replay.results[id]), "num_calls": num_calls[id]}
        case _:
            return event
    return dataclasses.replace(event, payload=dict(event.payload) | own)


@functools.cache
def _validator() -> Validator:
    return Validator(tree_schema())


def tree_schema() -> dict[str, Any]:
    """Return the JSON Schema of tree documents."""
    text = files("openafm.annotation.trees").joinpath("tree.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
