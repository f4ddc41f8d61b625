"""Storage of database states: an initial image, then the compressed difference of each state from the one before it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sql

from openafm.annotation.database import Database
from openafm.annotation.environments.page_delta import DamagedStateError
from openafm.annotation.environments.process import Lineage, state_key
from openafm.annotation.trees import tables

_CACHE_BYTES = 64 << 20
_STATE = sql.select(tables.states.c.key).where(tables.states.c.key == sql.bindparam("of"))
_KNOWN = sql.select(tables.states.c.key).where(tables.states.c.key.in_(sql.bindparam("keys", expanding=True)))
_INSERT = tables.states.insert()


@dataclass(frozen=True, kw_only=True)
class NewState:
    """A state as the difference from its parent."""

    key: str
    parent: str
    delta: bytes


class StateStore:
    """Store states. A key is a digest of the state and its history, so what was read once stays valid in memory.

    Args:
        database: has the schema `tables.TREES`.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._cache: dict[str, NewState] = {}
        self._cached_bytes = 0
        self._image = ("", b"")  # the key and the initial image that were read last

    def lineage(self, key: str, pending: Mapping[str, NewState] | None = None) -> Lineage:
        """Return how the database image of a state is made.

        Args:
            pending: states that are not stored yet, by key.

        Raises:
            DamagedStateError: the state or one before it is missing.
        """
        deltas = []
        with self._lock:
            while state := (pending or {}).get(key) or self._cache.get(key):
                deltas.append(state.delta)
                key = state.parent
            if key != self._image[0]:
                for state in self._read_to_initial(key):
                    deltas.append(state.delta)
                    key = state.parent
        return Lineage(base=key, image=lambda: self._initial(key), deltas=tuple(deltas[::-1]))

    def total_bytes(self) -> int:
        """Return the bytes of all stored states except the initial ones."""
        column = tables.states.c
        statement = sql.select(sql.func.coalesce(sql.func.sum(sql.func.length(column.data)), 0))
        with self._database.reading() as connection:
            return int(connection.scalar(statement.where(column.parent.is_not(None))) or 0)

    def insert_initial(self, connection: sql.Connection, image: bytes) -> None:
        """Store an initial image, in the transaction of `connection`."""
        key = state_key(image)
        if not connection.scalar(_STATE, {"of": key}):
            connection.execute(_INSERT, {"key": key, "parent": None, "data": image})

    def insert(self, connection: sql.Connection, states: Sequence[NewState]) -> None:
        """Store states, in the transaction of `connection`."""
        if not states:
            return
        known = set(connection.scalars(_KNOWN, {"keys": [state.key for state in states]}))
        rows = {s.key: {"key": s.key, "parent": s.parent, "data": s.delta} for s in states if s.key not in known}
        if rows:
            connection.execute(_INSERT, list(rows.values()))

    def _initial(self, key: str) -> bytes:
        with self._lock:
            if self._image[0] != key:
                with self._database.reading() as connection:
                    data = connection.scalar(sql.select(tables.states.c.data).where(tables.states.c.key == key))
                self._image = (key, bytes(data or b""))
            return self._image[1]

    def _read_to_initial(self, key: str) -> list[NewState]:
        """Read the states from `key` back to the first one after the initial state.

        The recursion reads keys only: an initial image may be large.
        """
        states = tables.states
        first = sql.select(states.c.key, states.c.parent, sql.literal(0).label("depth")).where(states.c.key == key)
        chain = first.cte("chain", recursive=True)
        before = sql.select(states.c.key, states.c.parent, chain.c.depth + 1).where(states.c.key == chain.c.parent)
        chain = chain.union_all(before)
        with self._database.reading() as connection:
            rows = connection.execute(sql.select(chain).order_by(chain.c.depth)).all()
            if not rows or rows[-1].parent is not None:
                raise DamagedStateError(f"the state {key} is not stored; revert to an earlier step")
            keys = [row.key for row in rows[:-1]]
            statement = sql.select(states.c.key, states.c.data).where(states.c.key.in_(keys))
            deltas = {row.key: bytes(row.data) for row in connection.execute(statement)} if keys else {}
        found = [NewState(key=row.key, parent=row.parent, delta=deltas[row.key]) for row in rows[:-1]]
        self._remember(found)
        return found

    def _remember(self, states: Sequence[NewState]) -> None:
        for state in states:
            self._cached_bytes += len(state.delta)
            self._cache[state.key] = state
        if self._cached_bytes > _CACHE_BYTES:
            self._cache, self._cached_bytes = {}, 0
