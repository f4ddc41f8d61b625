"""Storage of logs and states. A change is one transaction: its events and states are stored together, or not at all."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql

from openafm.annotation.clock import Clock, steady_clock
from openafm.annotation.database import Database, DatabaseError, Schema
from openafm.annotation.environments.page_delta import DamagedStateError
from openafm.annotation.environments.process import Lineage, state_key
from openafm.annotation.environments.project import DATABASE, Project, Scenario
from openafm.annotation.errors import AnnotationError, not_found
from openafm.annotation.trees import tables
from openafm.annotation.trees.tree import Event, EventKind
from openafm.tokenizer.conversation import ToolDefinition


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
        self._seeds: dict[str, bytes] = {}  # the initial image that was read last
        self._lock = threading.Lock()

    def claim(self, project: Project) -> None:
        """Note that the items of this database belong to a project.

        Raises:
            DatabaseError: they belong to another project.
        """
        with self.database.writing() as connection:
            owner = connection.scalar(sql.select(tables.project.c.id))
            if owner is None:
                connection.execute(tables.project.insert().values(number=1, id=project.id))
            elif owner != project.id:
                raise DatabaseError(
                    f"{self.database.name} has the items of the project '{owner}', not of '{project.id}'; use another "
                    f'database, or set id = "{owner}" in project.toml if the project was renamed'
                )

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
            event = Event(
                sequence=0, group="opened", kind=EventKind.OPENED, payload=opening, person=person, time=self.clock()
            )
            connection.execute(tables.events.insert(), [_row(item, event)])
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
        events: Sequence[Event],
        states: Sequence[NewState] = (),
        *,
        is_done: bool,
    ) -> None:
        """Store the next events of an item, and whether the item is done after them.

        Raises:
            ConflictError: the item has other events of these numbers.
            OutOfSpaceError: the disk is full; nothing was stored.
        """
        with self.database.writing() as connection:
            self._check_last(connection, item, events[0].sequence - 1)
            self._insert_states(connection, states)
            connection.execute(tables.events.insert(), [_row(item, event) for event in events])
            connection.execute(tables.items.update().where(tables.items.c.id == item).values(is_done=is_done))

    def lineage(self, key: str, pending: Mapping[str, NewState] | None = None) -> Lineage:
        """Return how the database image of a state is made.

        Args:
            pending: states that are not stored yet, by key.

        Raises:
            DamagedStateError: the state or one before it is missing.
        """
        newest = []
        while pending and key in pending:
            newest.append(pending[key].delta)
            key = pending[key].parent
        seed, *later = self._chain(key)
        states = tables.states.c
        with self.database.reading() as connection:
            statement = sql.select(states.key, states.data).where(states.key.in_(later))
            deltas = {row.key: row.data for row in connection.execute(statement)}
        return Lineage(base=seed, image=lambda: self._seed(seed), deltas=(*(deltas[each] for each in later), *newest[::-1]))

    def state_bytes(self) -> int:
        """Return the bytes of all stored states except the initial ones."""
        column = tables.states.c
        statement = sql.select(sql.func.coalesce(sql.func.sum(sql.func.length(column.data)), 0))
        with self.database.reading() as connection:
            return int(connection.scalar(statement.where(column.parent.is_not(None))) or 0)

    def _seed(self, key: str) -> bytes:
        with self._lock, self.database.reading() as connection:
            if key not in self._seeds:
                data = connection.scalar(sql.select(tables.states.c.data).where(tables.states.c.key == key))
                self._seeds = {key: bytes(data or b"")}
            return self._seeds[key]

    def _chain(self, key: str) -> list[str]:
        """Return the keys from an initial state to a state. The recursion does not touch the data, which may be large."""
        states = tables.states
        first = sql.select(states.c.key, states.c.parent, sql.literal(0).label("depth")).where(states.c.key == key)
        chain = first.cte("chain", recursive=True)
        before = sql.select(states.c.key, states.c.parent, chain.c.depth + 1).where(states.c.key == chain.c.parent)
        chain = chain.union_all(before)
        with self.database.reading() as connection:
            rows = connection.execute(sql.select(chain).order_by(chain.c.depth.desc())).all()
        if not rows or rows[0].parent is not None:
            raise DamagedStateError(f"the state {key} is not stored; revert to an earlier step")
        return [row.key for row in rows]

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


def open_trees(project: Project, database: str, schemas: Sequence[Schema], clock: Clock | None = None) -> TreeStore:
    """Return the store of a project: its own SQLite file, or the file or URL `database`.

    Raises:
        DatabaseError: the database cannot be opened, or has the items of another project.
    """
    store = TreeStore(Database(database or project.path / DATABASE, schemas), clock)
    if database:  # the own file belongs to its folder, whatever that is called
        try:
            store.claim(project)
        except DatabaseError:
            store.database.close()
            raise
    return store


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
