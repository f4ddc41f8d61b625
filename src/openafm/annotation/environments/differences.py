"""Rows that a call adds, changes and removes, recorded by temporary triggers: the cost depends on the changed rows only."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Any

from openafm.annotation.environments.seed import SeedError, quoted

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RowChange:
    """A row before and after a call; None before for an added row, None after for a removed one."""

    table: str
    before: Row | None
    after: Row | None

    def to_dict(self) -> dict[str, Any]:
        return {"table": self.table, "before": self.before, "after": self.after}


def watch(db: sqlite3.Connection) -> None:
    """Record changes of all tables from now on. Triggers and records are temporary: they are not part of an image.

    Raises:
        SeedError: a table has no rowid.
    """
    db.execute("PRAGMA recursive_triggers = ON")  # so that REPLACE reports the rows that it removes
    db.execute("CREATE TEMP TABLE openafm_changes (place TEXT, row INTEGER, before TEXT, after TEXT)")
    for table in table_names(db):
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({quoted(table)})")]
        for event, before, after in (("INSERT", "", "NEW"), ("UPDATE", "OLD", "NEW"), ("DELETE", "OLD", "")):
            values = f"{_json(before, columns)}, {_json(after, columns)}"
            row = f"{before or after}.rowid"
            try:
                db.execute(
                    f"CREATE TEMP TRIGGER {quoted(f'openafm_{event}_{table}')} AFTER {event} ON main.{quoted(table)} "
                    f"BEGIN INSERT INTO openafm_changes VALUES ({_text(table)}, {row}, {values}); END"
                )
            except sqlite3.Error as error:
                raise SeedError(f"the table {table} cannot be watched ({error}); use tables with a rowid") from error


def table_names(db: sqlite3.Connection) -> list[str]:
    """Return the names of the project's tables."""
    found = db.execute("SELECT name FROM main.sqlite_master WHERE type = 'table' ORDER BY name")
    return [name for (name,) in found if not name.startswith(("sqlite_", "openafm_"))]


def changes(db: sqlite3.Connection) -> tuple[RowChange, ...]:
    """Return the changes since the last call, one for each row, and forget them."""
    merged: dict[tuple[str, int], list[Row | None]] = {}
    for table, row, before, after in db.execute("SELECT * FROM openafm_changes ORDER BY rowid"):
        values = [json.loads(text) if text else None for text in (before, after)]
        merged.setdefault((table, row), [values[0], None])[1] = values[1]
    db.execute("DELETE FROM openafm_changes")
    return tuple(
        RowChange(table=table, before=before, after=after)
        for (table, _), (before, after) in merged.items()
        if before != after
    )


def _json(name: str, columns: list[str]) -> str:
    if not name:
        return "NULL"
    pairs = []
    for column in columns:
        value = f"{name}.{quoted(column)}"
        pairs.append(f"{_text(column)}, CASE typeof({value}) WHEN 'blob' THEN hex({value}) ELSE {value} END")
    return f"json_object({', '.join(pairs)})"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
