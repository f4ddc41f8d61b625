"""An item: its tree, and the changes that annotators and models make to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openafm.annotation.environments.host import CallResult
from openafm.annotation.environments.pool import ToolPool
from openafm.annotation.errors import AnnotationError
from openafm.annotation.trees.nodes import Content, Node, NodeKind, check_order, result_dicts
from openafm.annotation.trees.states import NewState
from openafm.annotation.trees.store import ConflictError, NewEvent, TreeStore
from openafm.annotation.trees.tree import ErrorKind, Event, EventKind, Tree, read_log

MAX_TEXT = 20_000


@dataclass(frozen=True, kw_only=True)
class Change:
    """Who makes a change.

    Attributes:
        key: chosen by the client. A change whose key is already stored is not made again, so a client may retry.
        person: the id of the person.
        sequence: the last event that the client has seen; None skips the check for changes of others.
    """

    key: str
    person: str | None = None
    sequence: int | None = None


class Item:
    """Hold an item. Changes are stored before a method returns; all of a change or nothing.

    Args:
        store: where the log is.
        id: the item.
        pool: runs tool calls.

    Raises:
        AnnotationError: there is no such item.
    """

    def __init__(self, store: TreeStore, id: str, pool: ToolPool) -> None:
        self.id = id
        self._store, self._pool = store, pool
        self._lock = threading.RLock()
        self._log = read_log(store.events(id))

    @property
    def tree(self) -> Tree:
        """The tree, as far as this object has read it."""
        return self._log.tree

    def refresh(self) -> Tree:
        """Read the events of other processes and return the tree."""
        with self._lock:
            self._log = self._log.extended(self._store.events(self.id, after=self.tree.sequence))
            return self.tree

    def query(self, text: str, change: Change) -> Tree:
        """Append what the user says."""
        return self._append([Content(kind=NodeKind.QUERY, text=_checked(text))], self.tree.head, change, cause="query")

    def answer(self, text: str, change: Change, *, model: str = "") -> Tree:
        """Append an answer."""
        content = Content(kind=NodeKind.ANSWER, text=_checked(text))
        return self._append([content], self.tree.head, change, cause="agent", model=model)

    def step(
        self,
        content: Content,
        change: Change,
        *,
        model: str = "",
        on_result: Callable[[int, CallResult], None] | None = None,
    ) -> Tree:
        """Append a step of a model: run its calls, which may be wrong, and store them with their results."""
        return self._append([content], self.tree.head, change, cause="agent", model=model, on_result=on_result)

    def edit(self, node: int, content: Content, change: Change, *, keeps_rest: bool = False, reason: str = "") -> Tree:
        """Replace a node by a corrected one on a new branch; its calls run in the state before the node.

        Args:
            keeps_rest: copy the later steps of the main stem; their calls run again.

        Raises:
            AnnotationError: a call does not fit the schema of its tool, or the steps do not fit each other.
        """
        old = self.tree.node(node)
        if old.content == content:
            raise AnnotationError("the corrected step equals the old one; change it, or revert to it")
        self._check_calls(content)
        rest = self._rest(node) if keeps_rest else []
        return self._append([content, *rest], old.parent, change, cause="edited", reason=reason)

    def insert(self, after: int, content: Content, change: Change, *, keeps_rest: bool = True, reason: str = "") -> Tree:
        """Insert a node on a new branch. Arguments and errors as in `edit`."""
        self._check_calls(content)
        rest = self._rest(after) if keeps_rest else []
        return self._append([content, *rest], after, change, cause="inserted", reason=reason)

    def delete(self, node: int, change: Change, *, keeps_rest: bool = True, reason: str = "") -> Tree:
        """Leave out a node of the main stem on a new branch, and copy the later steps; their calls run again.

        Raises:
            AnnotationError: the steps around the node do not fit each other.
        """
        old = self.tree.node(node)
        rest = self._rest(node) if keeps_rest else []
        if not rest:
            return self.revert(old.parent, change, reason=reason)
        return self._append(rest, old.parent, change, cause="deleted", reason=reason)

    def revert(self, node: int, change: Change, *, reason: str = "") -> Tree:
        """Make a node the head, with the state of its database. 0 is the beginning."""
        if node:
            self.tree.node(node)
        return self._record(EventKind.MOVED, {"to": node, "reason": _checked(reason)}, change)

    def set_done(self, is_done: bool, change: Change) -> Tree:
        """Mark the item as done or open.

        Raises:
            AnnotationError: the main stem of an item that is done does not end with an answer.
        """
        path = self.tree.path()
        if is_done and (not path or path[-1].kind is not NodeKind.ANSWER):
            raise AnnotationError("the main stem has no answer at its end; run the model or write an answer, then mark it")
        return self._record(EventKind.STATUS, {"done": is_done}, change)

    def comment(self, node: int, text: str, change: Change) -> Tree:
        """Comment a node; 0 is the whole item."""
        self._check_node(node)
        if not text.strip():
            raise AnnotationError("the comment is empty; write a text")
        return self._record(EventKind.COMMENT, {"node": node, "text": _checked(text)}, change)

    def flag(self, node: int, error: ErrorKind, is_on: bool, change: Change) -> Tree:
        """Set or remove a flag of a node; 0 is the whole item."""
        self._check_node(node)
        return self._record(EventKind.FLAG, {"node": node, "error": error.value, "on": is_on}, change)

    def undo(self, change: Change) -> Tree:
        """Undo the last change; it stays in the log."""
        if not self.tree.can_undo:
            raise AnnotationError("there is nothing to undo", status=409, code="nothing")
        return self._record(EventKind.UNDO, {}, change)

    def redo(self, change: Change) -> Tree:
        """Redo the change that was undone last."""
        if not self.tree.can_redo:
            raise AnnotationError("there is nothing to redo", status=409, code="nothing")
        return self._record(EventKind.REDO, {}, change)

    def tables(self, node: int) -> dict[str, list[dict[str, Any]]]:
        """Return all rows of the database after a node."""
        return self._pool.tables(self.tree.state(node), self._store.states.lineage)

    def check_unchanged(self, change: Change) -> None:
        """Check that the client has seen the newest events.

        Raises:
            ConflictError: others changed the item.
        """
        if change.sequence is not None and change.sequence != self.refresh().sequence:
            raise ConflictError

    def once(self, key: str, make: Callable[[], object]) -> None:
        """Make a change unless one of this key is stored: the repeated request may not be valid after the first one."""
        with self._lock:
            if not self.is_made(key):
                make()

    def is_made(self, key: str) -> bool:
        """Return True if a change of this key is stored."""
        return any(event.group == key for event in self._log.events)

    def _append(
        self,
        contents: Sequence[Content],
        parent: int,
        change: Change,
        *,
        cause: str,
        reason: str = "",
        model: str = "",
        on_result: Callable[[int, CallResult], None] | None = None,
    ) -> Tree:
        with self._lock:
            if self._is_repeated(change, is_agent=cause == "agent"):
                return self.tree
            check_order([*(node.kind for node in self.tree.path(parent)), *(content.kind for content in contents)])
            first = self.tree.sequence + 1
            state, num_calls = self.tree.state(parent), self.tree.num_calls(parent)
            events = []
            states: dict[str, NewState] = {}
            for number, content in enumerate(contents):
                results = []
                for position, (result, after) in enumerate(self._run(content, state, num_calls, states)):
                    if result.delta:
                        states[after] = NewState(key=after, parent=state, delta=result.delta)
                    state = after
                    results.append(result)
                    if on_result is not None:
                        on_result(position, result)
                num_calls += len(results)
                node = Node(
                    id=first + number,
                    parent=parent if number == 0 else first + number - 1,
                    content=content,
                    results=result_dicts(results),
                    state=state,
                    num_calls=num_calls,
                    model=model,
                )
                payload = node.payload() | {"cause": cause, "reason": _checked(reason)}
                events.append(NewEvent(kind=EventKind.NODE, payload=payload))
            return self._store_events(first, events, change, list(states.values()))

    def _run(
        self, content: Content, state: str, index: int, states: Mapping[str, NewState]
    ) -> Iterator[tuple[CallResult, str]]:
        """Run the calls of a node. `states` holds the states of this change, which are not stored yet."""
        if content.calls:
            yield from self._pool.run(content.calls, state, lambda key: self._store.states.lineage(key, states), index)

    def _record(self, kind: EventKind, payload: dict[str, Any], change: Change) -> Tree:
        with self._lock:
            if self._is_repeated(change):
                return self.tree
            return self._store_events(self.tree.sequence + 1, [NewEvent(kind=kind, payload=payload)], change)

    def _store_events(self, first: int, events: Sequence[NewEvent], change: Change, states: Sequence[NewState] = ()) -> Tree:
        made = [
            Event(
                sequence=first + number,
                group=change.key,
                kind=each.kind,
                payload=each.payload,
                person=change.person,
                time=self._store.clock(),
            )
            for number, each in enumerate(events)
        ]
        log = self._log.extended(made)
        try:
            self._store.append(self.id, made, states, is_done=log.tree.is_done)
        except ConflictError:
            self.refresh()
            raise
        self._log = log
        return log.tree

    def _is_repeated(self, change: Change, *, is_agent: bool = False) -> bool:
        """Return True if the change is stored already.

        Raises:
            ConflictError: others changed the item since the client has seen it.
        """
        if self.is_made(change.key) and not is_agent:
            return True
        if change.sequence is not None and change.sequence != self.tree.sequence:
            raise ConflictError
        return False

    def _rest(self, node: int) -> list[Content]:
        """Return the contents of the main stem after a node."""
        path = self.tree.path()
        ids = [each.id for each in path]
        if node and node not in ids:
            raise AnnotationError("the step is not on the main stem; revert to its branch first")
        return [each.content for each in path[ids.index(node) + 1 if node else 0 :]]

    def _check_calls(self, content: Content) -> None:
        for call in content.calls:
            problem = self._pool.problem(call.name, call.arguments)
            if problem is not None:
                raise AnnotationError(problem, status=422, code="arguments")
        _checked(content.text)

    def _check_node(self, node: int) -> None:
        if node:
            self.tree.node(node)


def _checked(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise AnnotationError(f"the text has {len(text):,} characters; {MAX_TEXT:,} are allowed")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise AnnotationError(f"the text is not valid Unicode: {error}; remove the character") from error
    return text
