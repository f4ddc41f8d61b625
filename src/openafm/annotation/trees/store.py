"""Storage of logs and states. A change is one transaction: its events and states are stored together, or not at all."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql

from openafm.annotation.clock import Clock, steady_clock
from openafm.annotation.database import Database, DatabaseError, Schema
from openafm.annotation.environments.process import state_key
from openafm.annotation.environments.project import DATABASE, Project, Scenario
from openafm.annotation.errors import AnnotationError, not_found
from openafm.annotation.trees import tables
from openafm.annotation.trees.states import NewState, StateStore
from openafm.annotation.trees.tree import Event, EventKind
from openafm.core.errors import OpenAFMError
from openafm.tokenizer.conversation import ToolDefinition

_events = tables.events.c
# statements of every request: to build one takes longer than to run it
_EVENTS_AFTER = (
    sql.select(tables.events)
    .where(_events.item == sql.bindparam("of"), _events.sequence > sql.bindparam("after"))
    .order_by(_events.sequence)
)
_ITEM = sql.select(tables.items.c.id).where(tables.items.c.id == sql.bindparam("of"))
_ITEMS = sql.select(tables.items).order_by(tables.items.c.created)
_OVERVIEW = sql.select(*(tables.items.c[name] for name in ("id", "scenario", "title", "language", "is_done"))).order_by(
    tables.items.c.created
)
_INSERT_ITEM = tables.items.insert()
_LAST = sql.select(sql.func.max(_events.sequence)).where(_events.item == sql.bindparam("of"))
_INSERT_EVENTS = tables.events.insert()
_SET_DONE = tables.items.update().where(tables.items.c.id == sql.bindparam("of")).values(is_done=sql.bindparam("done"))
_CHANGES_DONE = (EventKind.STATUS, EventKind.UNDO, EventKind.REDO)


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


@dataclass(kw_only=True)
class _Append:
    """Events that a thread waits for to be stored; `is_decided` after they are, or after an error."""

    item: str
    events: Sequence[Event]
    states: Sequence[NewState]
    is_done: bool
    is_decided: bool = False
    error: BaseException | None = None


class TreeStore:
    """Store the items of a project.

    Args:
        database: has the schema `tables.TREES`.
    """

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        self.database, self.clock = database, clock or steady_clock()
        self.states = StateStore(database)
        self._waiting: deque[_Append] = deque()
        self._turn = threading.Lock()

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
        item, start = item or secrets.token_hex(6), project.start_image(scenario)
        opening = {
            "scenario": scenario.to_dict(),
            "policy": project.policy,
            "tools": [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in tools],
            "tools_digest": project.tools_digest,
            "state": state_key(start),
        }
        with self.database.writing() as connection:
            if connection.scalar(_ITEM, {"of": item}):
                return item
            row = {"id": item, "scenario": scenario.id, "title": scenario.query[:120], "language": scenario.language}
            connection.execute(_INSERT_ITEM, row | {"is_done": False, "created": self.clock()})
            event = Event(
                sequence=0, group="opened", kind=EventKind.OPENED, payload=opening, person=person, time=self.clock()
            )
            connection.execute(_INSERT_EVENTS, [_row(item, event)])
            self.states.insert_initial(connection, start)
        return item

    def add(self, item: str, events: Sequence[Event], states: Sequence[NewState], start: bytes, *, is_done: bool) -> bool:
        """Store an item with its whole log and its starting state, from an import. Return False if it exists already."""
        scenario = Scenario.from_dict(events[0].payload["scenario"])
        with self.database.writing() as connection:
            if connection.scalar(_ITEM, {"of": item}):
                return False
            row = {"id": item, "scenario": scenario.id, "title": scenario.query[:120], "language": scenario.language}
            connection.execute(_INSERT_ITEM, row | {"is_done": is_done, "created": self.clock()})
            self.states.insert_initial(connection, start)
            self.states.insert(connection, states)
            connection.execute(_INSERT_EVENTS, [_row(item, event) for event in events])
        return True

    def items(self) -> list[dict[str, Any]]:
        """Return the items, oldest first."""
        with self.database.reading() as connection:
            rows = connection.execute(_ITEMS).mappings()
            return [dict(row) for row in rows]

    def overview(self) -> list[dict[str, Any]]:
        """Return what a list of the items shows: id, scenario, title, language and whether they are done."""
        with self.database.reading() as connection:
            rows = connection.execute(_OVERVIEW).all()
        names = tuple(_OVERVIEW.selected_columns.keys())
        return [dict(zip(names, row, strict=True)) for row in rows]

    def events(self, item: str, after: int = -1) -> list[Event]:
        """Return the events of an item after a sequence number.

        Raises:
            AnnotationError: there is no such item.
        """
        with self.database.reading() as connection:
            rows = connection.execute(_EVENTS_AFTER, {"of": item, "after": after}).all()
        if not rows and after < 0:
            raise not_found(f"item {item:.40}")
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

    def logs(self) -> dict[str, list[Event]]:
        """Return the events of all items by item."""
        return {item["id"]: self.events(item["id"]) for item in self.items()}

    def append(
        self,
        item: str,
        events: Sequence[Event],
        states: Sequence[NewState] = (),
        *,
        is_done: bool,
    ) -> None:
        """Store the next events of an item, and whether the item is done after them.

        Threads that wait for the disk are written together by the first one that it is free for, in one transaction: with
        an SQLite file, a commit waits several milliseconds for the disk, and only one transaction writes at a time.

        Raises:
            ConflictError: the item has other events of these numbers.
            OutOfSpaceError: the disk is full; nothing was stored.
        """
        own = _Append(item=item, events=events, states=states, is_done=is_done)
        self._waiting.append(own)
        with self._turn:
            if not own.is_decided:
                batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
                self._write(batch)
        if own.error is not None:
            raise own.error

    def _write(self, batch: Sequence[_Append]) -> None:
        """Store a batch, or note the error of each entry."""
        try:
            with self.database.writing() as connection:
                for each in batch:
                    self._write_one(connection, each)
        except BaseException as error:  # raised in the thread of each entry
            if isinstance(error, sql.exc.IntegrityError) and len(batch) == 1:  # another server was first
                batch[0].error = ConflictError()
            elif isinstance(error, OpenAFMError) or len(batch) == 1:  # of the disk or the whole database: of all entries
                for each in batch:
                    each.error = error
            else:
                for each in batch:
                    each.error = None
                    self._write([each])
        for each in batch:
            each.is_decided = True

    def _write_one(self, connection: sql.Connection, entry: _Append) -> None:
        if connection.scalar(_LAST, {"of": entry.item}) != entry.events[0].sequence - 1:
            entry.error = ConflictError()
            return
        self.states.insert(connection, entry.states)
        connection.execute(_INSERT_EVENTS, [_row(entry.item, event) for event in entry.events])
        if any(event.kind in _CHANGES_DONE for event in entry.events):
            connection.execute(_SET_DONE, {"of": entry.item, "done": entry.is_done})


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
