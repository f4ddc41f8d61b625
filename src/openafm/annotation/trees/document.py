"""Whole trees as JSON (`tree.schema.json`): the log is the record; nodes, main stem and reasons are there for readers."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from openafm.annotation.environments.pool import ToolPool
from openafm.annotation.environments.project import Project
from openafm.annotation.errors import AnnotationError
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
        ForeignTreeError: it is not a tree document, is of a newer version, its item exists, or the project's tools give
            other results.
    """
    events = _events(document)
    tree = fold(events)
    replay = Replay(pool, project.seed)
    for node in tree.nodes.values():
        problem = replay.run(node, tree.num_calls(node.parent))
        if problem is not None:
            raise ForeignTreeError(f"this project gives other results; {problem}")
    stored = [_with_state(event, replay.keys) for event in events]
    item: str = document["item"]
    if not store.add(item, stored, list(replay.states.values()), project.seed, is_done=tree.is_done):
        raise ForeignTreeError(f"the item {item} is already in the project", status=409)
    return item


def _events(document: Any) -> list[Event]:
    if isinstance(document, Mapping) and document.get("format") == FORMAT and document.get("version") != VERSION:
        raise ForeignTreeError(f"the tree has the version {document.get('version')!r:.20}; this openafm reads {VERSION}")
    problem = _validator().validation().problem(document)
    if problem is not None:
        raise ForeignTreeError(f"the document is not a tree of openafm: {problem:.300}")
    try:
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
        fold(events)
    except (ValueError, KeyError, TypeError, AnnotationError) as error:
        raise ForeignTreeError(f"the log of the tree is damaged: {error!s:.300}") from error
    return events


def _with_state(event: Event, keys: Mapping[int, str]) -> Event:
    """Return an event with the key of the state in this project: page layouts differ between versions of SQLite."""
    match event.kind:
        case EventKind.OPENED:
            state = keys[0]
        case EventKind.NODE:
            state = keys[event.sequence]
        case _:
            return event
    payload = dict(event.payload) | {"state": state}
    return Event(sequence=event.sequence, group=event.group, kind=event.kind, payload=payload, time=event.time)


@functools.cache
def _validator() -> Validator:
    return Validator(tree_schema())


def tree_schema() -> dict[str, Any]:
    """Return the JSON Schema of tree documents."""
    text = files("openafm.annotation.trees").joinpath("tree.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
