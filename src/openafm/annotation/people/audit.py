"""The audit log: who did what, when. Entries are never changed; a deleted person's entries lose the person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sql

from openafm.annotation.people import tables

if TYPE_CHECKING:
    from openafm.annotation.database import Database
    from openafm.annotation.people.accounts import Person


def record(connection: sql.Connection, time: float, person: Person | None, action: str, **detail: Any) -> None:
    """Append an entry in the transaction of the action. `detail` has ids and settings, never names or secrets."""
    row = {"time": time, "person": person and person.id, "action": action, "detail": detail}
    connection.execute(tables.audit.insert().values(row))


def entries(database: Database, *, limit: int = 1000) -> list[dict[str, Any]]:
    """Return the newest entries, the newest first."""
    statement = sql.select(tables.audit).order_by(tables.audit.c.id.desc()).limit(limit)
    with database.reading() as connection:
        return [dict(row) for row in connection.execute(statement).mappings()]
