"""A tree of attempts, computed from an append-only log of events.

Each change appends a group of events, and nothing is removed: `undo` and `redo` are events too. The head is the last node of
the main stem. When the head moves to another branch, the abandoned branch gets the reason of the move.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from openafm.annotation.errors import AnnotationError, not_found
from openafm.annotation.trees.nodes import Content, Node
from openafm.tokenizer.conversation import Instructions, ToolDefinition, Turn


class EventKind(StrEnum):
    """What an event does."""

    OPENED = "opened"
    NODE = "node"
    MOVED = "moved"
    STATUS = "status"
    COMMENT = "comment"
    FLAG = "flag"
    UNDO = "undo"
    REDO = "redo"


class ErrorKind(StrEnum):
    """Kinds of errors that annotators flag."""

    WRONG_TOOL = "wrong_tool"
    WRONG_ARGUMENTS = "wrong_arguments"
    MISSING_CALL = "missing_call"
    UNNEEDED_CALL = "unneeded_call"
    WRONG_ANSWER = "wrong_answer"
    INVENTED_FACT = "invented_fact"
    POLICY = "policy"
    LANGUAGE = "language"
    TOOL_BROKEN = "tool_broken"


@dataclass(frozen=True, kw_only=True)
class Event:
    """An entry of the log of an item.

    Attributes:
        sequence: 0 for the first event, then one more each.
        group: identifies the change that the event belongs to.
        person: who made it.
    """

    sequence: int
    group: str
    kind: EventKind
    payload: Mapping[str, Any]
    person: str | None = None
    time: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "sequence": self.sequence,
            "group": self.group,
            "kind": self.kind.value,
            "payload": dict(self.payload),
            "person": self.person,
            "time": self.time,
        }


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a branch was abandoned: `edited`, `deleted`, `inserted` or `reverted`, and the annotator's words."""

    kind: str
    text: str = ""


@dataclass
class Tree:
    """The tree that a log describes.

    Attributes:
        opening: scenario, policy and tools of the item.
        nodes: all nodes by id, abandoned ones included.
        head: the last node of the main stem; 0 before the first query.
        reasons: the reasons of abandoned branches, by their first node.
        comments, flags: by node; 0 is the whole item.
    """

    opening: Mapping[str, Any]
    nodes: dict[int, Node] = field(default_factory=dict)
    head: int = 0
    is_done: bool = False
    reasons: dict[int, Reason] = field(default_factory=dict)
    comments: list[dict[str, Any]] = field(default_factory=list)
    flags: dict[int, set[str]] = field(default_factory=dict)
    can_undo: bool = False
    can_redo: bool = False
    sequence: int = 0
    _visited: set[int] = field(default_factory=set)  # nodes that were on the main stem, without undone ones

    @cached_property
    def tools(self) -> tuple[ToolDefinition, ...]:
        """The tools when the item was opened."""
        return tuple(ToolDefinition(**tool) for tool in self.opening["tools"])

    def node(self, id: int) -> Node:
        """Return a node.

        Raises:
            AnnotationError: there is none of this id.
        """
        if id not in self.nodes:
            raise not_found(f"step {id} in this item")
        return self.nodes[id]

    def path(self, id: int | None = None) -> list[Node]:
        """Return the nodes from the beginning to a node; by default the main stem."""
        path = []
        place = self.head if id is None else id
        while place:
            path.append(self.node(place))
            place = path[-1].parent
        return path[::-1]

    def children(self, id: int) -> list[Node]:
        """Return the nodes that follow a node, oldest first."""
        return [node for node in self.nodes.values() if node.parent == id]

    def state(self, id: int) -> str:
        """Return the key of the state after a node, 0 for the beginning."""
        return self.node(id).state if id else str(self.opening["state"])

    def num_calls(self, id: int) -> int:
        """Return the number of tool calls up to a node."""
        return self.node(id).num_calls if id else 0

    def turns(self, id: int | None = None) -> tuple[Turn, ...]:
        """Return the conversation up to a node, with the policy and the tools."""
        opening = Instructions(text=self.opening["policy"], tools=self.tools)
        return (opening, *(turn for node in self.path(id) for turn in node.turns))

    def _copy(self) -> Tree:
        """Return a tree that changes without this one."""
        found = copy.copy(self)
        found.nodes, found.reasons, found.comments = dict(self.nodes), dict(self.reasons), list(self.comments)
        found.flags = {node: set(errors) for node, errors in self.flags.items()}
        found._visited = set(self._visited)
        return found

    def _move(self, target: int, reason: Reason) -> None:
        """Make `target` the head. The branch that leaves the main stem gets the reason."""
        before, after = [n.id for n in self.path()], {n.id for n in self.path(target)}
        abandoned = next((id for id in before if id not in after), None)
        if abandoned is not None:
            self.reasons[abandoned] = reason
        resumed = [self.reasons.pop(id) for id in after if id in self.reasons]
        self._visited |= after
        for node in self.nodes.values() if resumed else ():  # the later part of a branch that is resumed stays abandoned
            if node.parent in after and node.id not in after and node.id in self._visited:
                self.reasons.setdefault(node.id, resumed[-1])
        self.head = target

    def _apply(self, event: Event) -> None:
        payload = event.payload
        match event.kind:
            case EventKind.NODE if payload["parent"] == self.head:  # most events; the general case takes the whole path
                self._visited.add(event.sequence)
                self.head = event.sequence
            case EventKind.NODE:
                self._move(event.sequence, Reason(kind=payload.get("cause", "reverted"), text=payload.get("reason", "")))
            case EventKind.MOVED:
                self._move(payload["to"], Reason(kind="reverted", text=payload.get("reason", "")))
            case EventKind.STATUS:
                self.is_done = payload["done"]
            case EventKind.COMMENT:
                self.comments.append({"node": payload["node"], "text": payload["text"], "person": event.person})
            case EventKind.FLAG:
                flags = self.flags.setdefault(payload["node"], set())
                (flags.add if payload["on"] else flags.discard)(payload["error"])


@dataclass(frozen=True)
class Log:
    """Hold the events of an item and the tree that they describe. Nothing in it changes, so threads may read it.

    Attributes:
        done, undone: the groups of events that count, and those that `redo` brings back.
    """

    events: tuple[Event, ...]
    tree: Tree
    done: tuple[tuple[Event, ...], ...] = ()
    undone: tuple[tuple[Event, ...], ...] = ()

    def extended(self, events: Sequence[Event]) -> Log:
        """Return the log with more events. The cost depends on the new events; undo and redo compute the tree again.

        Raises:
            AnnotationError: the log gets a gap, or moves to nodes that do not exist.
        """
        tree = self.tree._copy()
        done, undone, is_undone = list(self.done), list(self.undone), False
        for number, event in enumerate(events, start=len(self.events)):
            if event.sequence != number:
                raise AnnotationError(f"event {number} of a log has the number {event.sequence}; a part is missing")
            tree.sequence = number
            if event.kind is EventKind.NODE:
                tree.nodes[number] = _node(event, tree)
            if event.kind in (EventKind.UNDO, EventKind.REDO):
                source, target = (done, undone) if event.kind is EventKind.UNDO else (undone, done)
                if source:
                    target.append(source.pop())
                    is_undone = True
                continue
            if done and done[-1][0].group == event.group:
                done[-1] = (*done[-1], event)
            else:
                done.append((event,))
            undone.clear()
            if not is_undone:
                tree._apply(event)
        if is_undone:
            tree = _again(tree, done)
        tree.can_undo, tree.can_redo = bool(done), bool(undone)
        return Log((*self.events, *events), tree, tuple(done), tuple(undone))


def read_log(events: Sequence[Event]) -> Log:
    """Return the log of an item's events.

    Raises:
        AnnotationError: the log is empty, has gaps, or moves to nodes that do not exist.
    """
    if not events or events[0].kind is not EventKind.OPENED or events[0].sequence != 0:
        raise AnnotationError("a log begins with the event 'opened', which has the number 0")
    return Log((events[0],), Tree(opening=events[0].payload)).extended(events[1:])


def fold(events: Sequence[Event]) -> Tree:
    """Return the tree of a log. Raises as `read_log`."""
    return read_log(events).tree


def _again(tree: Tree, done: Sequence[Sequence[Event]]) -> Tree:
    """Return a tree with the same nodes in which only the events of `done` count."""
    found = Tree(opening=tree.opening, nodes=tree.nodes, sequence=tree.sequence)
    for group in done:
        for event in group:
            found._apply(event)
    return found


def _node(event: Event, tree: Tree) -> Node:
    payload = event.payload
    try:
        parent = payload["parent"]
        if parent and parent not in tree.nodes:
            raise AnnotationError(f"event {event.sequence} follows the step {parent}, which does not exist")
        return Node(
            id=event.sequence,
            parent=parent,
            content=Content.from_dict(payload),
            results=tuple(payload["results"]),
            state=payload["state"],
            num_calls=payload["num_calls"],
            model=payload.get("model", ""),
            person=event.person,
            time=event.time,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise AnnotationError(f"event {event.sequence} is not a step: {error!r:.200}") from error
