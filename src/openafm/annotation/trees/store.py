"""Storage of logs and states. A change is one transaction: its events and states are stored together, or not at all."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql

from openafm.annotation.clock import Clock, steady_clock
from openafm.annotation.database import Database
from openafm.annotation.environments.page_delta import DamagedStateError, apply_deltas
from openafm.annotation.environments.process import state_key
from openafm.annotation.environments.project import Project, Scenario
from openafm.annotation.errors import AnnotationError, not_found
from openafm.annotation.trees import tables
from openafm.annotation.trees.tree import Event, EventKind
from openafm.tokenizer.conversation import ToolDefinition

_CACHED_IMAGES = 4


class ConflictError(AnnotationError):
    """Another person changed the item meanwhile; nothing was stored."""

    def __init__(self) -> None:
        super().__init__(
            "another person changed this item meanwhile; the page now shows the newest version, repeat your change there",
            status=409,
            code="conflict",
        )


@dataclass(frozen=True, kw_only=True)
class NewEvent:
    """An event before it is stored."""

    kind: EventKind
    payload: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class NewState:
    """A state before it is stored."""

    key: str
    parent: str
    delta: bytes


class TreeStore:
    """Store the items of a project.

    Args:
        database: has the schema `tables.TREES`.
    """

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        self.database, self.clock = database, clock or steady_clock()
        self._images: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def create(
        self,
        project: Project,
        tools: Sequence[ToolDefinition],
        scenario: Scenario,
        person: str | None,
        item: str | None = None,
    ) -> str:
        """Create an item of a scenario and return its id. An `item` that exists is returned unchanged."""
        item = item or secrets.token_hex(6)
        opening = {
            "scenario": scenario.to_dict(),
            "policy": project.policy,
            "tools": [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in tools],
            "tools_digest": project.tools_digest,
            "state": state_key(project.seed),
        }
        with self.database.writing() as connection:
            if connection.scalar(sql.select(tables.items.c.id).where(tables.items.c.id == item)):
                return item
            row = {"id": item, "scenario": scenario.id, "title": scenario.query[:120], "language": scenario.language}
            connection.execute(tables.items.insert().values(is_done=False, created=self.clock(), **row))
            self._insert(connection, item, 0, "opened", [NewEvent(kind=EventKind.OPENED, payload=opening)], person)
            self._insert_seed(connection, project.seed)
        return item

    def add(self, item: str, events: Sequence[Event], states: Sequence[NewState], seed: bytes, *, is_done: bool) -> bool:
        """Store an item with its whole log, from an import. Return False if it exists already."""
        scenario = Scenario.from_dict(events[0].payload["scenario"])
        with self.database.writing() as connection:
            if connection.scalar(sql.select(tables.items.c.id).where(tables.items.c.id == item)):
                return False
            row = {"id": item, "scenario": scenario.id, "title": scenario.query[:120], "language": scenario.language}
            connection.execute(tables.items.insert().values(is_done=is_done, created=self.clock(), **row))
            self._insert_seed(connection, seed)
            self._insert_states(connection, states)
            connection.execute(tables.events.insert(), [_row(item, event) for event in events])
        return True

    def items(self) -> list[dict[str, Any]]:
        """Return the items, oldest first."""
        with self.database.reading() as connection:
            rows = connection.execute(sql.select(tables.items).order_by(tables.items.c.created)).mappings()
            return [dict(row) for row in rows]

    def events(self, item: str, after: int = -1) -> list[Event]:
        """Return the events of an item after a sequence number.

        Raises:
            AnnotationError: there is no such item.
        """
        column = tables.events.c
        with self.database.reading() as connection:
            if not connection.scalar(sql.select(tables.items.c.id).where(tables.items.c.id == item)):
                raise not_found(f"item {item:.40}")
            statement = sql.select(tables.events).where(column.item == item, column.sequence > after)
            rows = connection.execute(statement.order_by(column.sequence)).all()
        return [
            Event(
                sequence=row.sequence,
                group=row.change,
                kind=EventKind(row.kind),
                payload=row.payload,
                person=row.person,
                time=row.time,
            )
            for row in rows
        ]

    def append(
        self,
        item: str,
        first: int,
        group: str,
        events: Sequence[NewEvent],
        person: str | None,
        states: Sequence[NewState] = (),
    ) -> list[Event]:
        """Store events with the numbers from `first`, and return them.

        Raises:
            ConflictError: the item has other events of these numbers.
            OutOfSpaceError: the disk is full; nothing was stored.
        """
        with self.database.writing() as connection:
            self._check_last(connection, item, first - 1)
            self._insert_states(connection, states)
            return self._insert(connection, item, first, group, events, person)

    def image(self, key: str) -> bytes:
        """Return the database image of a state.

        Raises:
            DamagedStateError: the state or one before it is missing or damaged.
        """
        with self._lock:
            if key in self._images:
                self._images.move_to_end(key)
                return self._images[key]
        chain = self._chain(key)
        base, deltas = chain[0].data, [row.data for row in chain[1:]]
        image = apply_deltas(base, deltas) if deltas else bytes(base)
        with self._lock:
            self._images[key] = image
            while len(self._images) > _CACHED_IMAGES:
                self._images.popitem(last=False)
        return image

    def set_done(self, item: str, is_done: bool) -> None:
        """Note in the list of items whether an item is done."""
        with self.database.writing() as connection:
            connection.execute(tables.items.update().where(tables.items.c.id == item).values(is_done=is_done))

    def state_bytes(self) -> int:
        """Return the bytes of all stored states except the initial ones."""
        column = tables.states.c
        statement = sql.select(sql.func.coalesce(sql.func.sum(sql.func.length(column.data)), 0))
        with self.database.reading() as connection:
            return int(connection.scalar(statement.where(column.parent.is_not(None))) or 0)

    def _chain(self, key: str) -> list[Any]:
        """Return the rows from an initial state to a state."""
        states = tables.states
        walk = sql.select(states.c.key, states.c.parent, states.c.data, sql.literal(0).label("depth"))
        chain = walk.where(states.c.key == key).cte("chain", recursive=True)
        before = sql.select(states.c.key, states.c.parent, states.c.data, chain.c.depth + 1)
        chain = chain.union_all(before.where(states.c.key == chain.c.parent))
        with self.database.reading() as connection:
            rows = connection.execute(sql.select(chain).order_by(chain.c.depth.desc())).all()
        if not rows or rows[0].parent is not None:
            raise DamagedStateError(f"the state {key} is not stored; revert to an earlier step")
        return list(rows)

    def _insert_seed(self, connection: sql.Connection, seed: bytes) -> None:
        key = state_key(seed)
        if not connection.scalar(sql.select(tables.states.c.key).where(tables.states.c.key == key)):
            connection.execute(tables.states.insert().values(key=key, parent=None, data=seed))

    def _insert_states(self, connection: sql.Connection, states: Sequence[NewState]) -> None:
        keys = [state.key for state in states]
        known = set(connection.scalars(sql.select(tables.states.c.key).where(tables.states.c.key.in_(keys))))
        rows = {s.key: {"key": s.key, "parent": s.parent, "data": s.delta} for s in states if s.key not in known}
        if rows:
            connection.execute(tables.states.insert(), list(rows.values()))

    def _check_last(self, connection: sql.Connection, item: str, last: int) -> None:
        column = tables.events.c
        statement = sql.select(sql.func.max(column.sequence)).where(column.item == item)
        if connection.scalar(statement) != last:
            raise ConflictError

    def _insert(
        self,
        connection: sql.Connection,
        item: str,
        first: int,
        group: str,
        events: Sequence[NewEvent],
        person: str | None,
    ) -> list[Event]:
        now = self.clock()
        made = [
            Event(sequence=first + number, group=group, kind=each.kind, payload=each.payload, person=person, time=now)
            for number, each in enumerate(events)
        ]
        connection.execute(tables.events.insert(), [_row(item, event) for event in made])
        return made


def _row(item: str, event: Event) -> dict[str, Any]:
    return {
        "item": item,
        "sequence": event.sequence,
        "change": event.group,
        "kind": event.kind.value,
        "payload": dict(event.payload),
        "person": event.person,
        "time": event.time,
    }
