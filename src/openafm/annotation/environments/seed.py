"""The initial state of a project: `state/*.sql` creates tables, `state/TABLE.json` holds their rows, for people to write.

A scenario may start from another state: the rows of some tables are replaced (`replace_rows`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openafm.annotation.environments.page_delta import PAGE_BYTES
from openafm.core.errors import OpenAFMError
from openafm.tokenizer.schema_text import compact_json


class SeedError(OpenAFMError):
    """A file of the initial state cannot be used; the message has the file."""


def seed_image(folder: Path, start: Mapping[str, Any] | None = None, place: str = "") -> bytes:
    """Return the image of the initial database.

    Args:
        start: rows by table, which replace those of the files.
        place: where `start` is from, for errors.

    Raises:
        SeedError: a file is not SQL or a JSON list of objects, a row does not fit its table, or a table of `start` does not
            exist.
    """
    db = sqlite3.connect(":memory:")
    db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    try:
        for path in [*sorted(folder.glob("*.sql")), *sorted(folder.glob("*.json"))]:
            try:
                if path.suffix == ".sql":
                    db.executescript(path.read_text(encoding="utf-8"))
                else:
                    fill_table(db, path.stem, json.loads(path.read_text(encoding="utf-8")))
            except (sqlite3.Error, ValueError, OSError) as error:
                raise SeedError(f"{path}: {error}") from error
        try:
            for table, rows in (start or {}).items():
                replace_rows(db, table, rows)
        except (sqlite3.Error, ValueError) as error:
            raise SeedError(f"{place}: table {table!r:.100}: {error}") from error
        db.execute("CREATE TABLE IF NOT EXISTS openafm_empty (id INTEGER)")  # an image has at least one page
        db.commit()
        return db.serialize()
    finally:
        db.close()


def fill_table(db: sqlite3.Connection, table: str, rows: Any) -> None:
    """Insert rows. A table that does not exist gets the columns of the rows, and `id` as its key.

    Raises:
        ValueError: `rows` is not a list of objects.
        sqlite3.Error: a row does not fit the table.
    """
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("expected a list of objects, one for each row")
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
        columns = [_column(name, [row.get(name) for row in rows]) for name in names]
        db.execute(f"CREATE TABLE {quoted(table)} ({', '.join(columns)})")
    for row in rows:
        columns_text = ", ".join(map(quoted, row))
        places = ", ".join("?" * len(row))
        db.execute(f"INSERT INTO {quoted(table)} ({columns_text}) VALUES ({places})", [*map(_stored, row.values())])


def replace_rows(db: sqlite3.Connection, table: str, rows: Any) -> None:
    """Replace the rows of a table that exists.

    Raises:
        ValueError: there is no such table, or `rows` is not a list of objects.
        sqlite3.Error: a row does not fit the table.
    """
    found = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'").fetchall()
    if (table,) not in found:
        raise ValueError(f"the project's state has no such table; it has {', '.join(name for (name,) in found) or 'none'}")
    db.execute(f"DELETE FROM {quoted(table)}")
    fill_table(db, table, rows)


def quoted(name: str) -> str:
    """Return a name of a table or column for SQL."""
    return '"' + name.replace('"', '""') + '"'


def _column(name: str, values: Sequence[Any]) -> str:
    given = [value for value in values if value is not None]
    if given and all(isinstance(value, int) for value in given):
        kind = "INTEGER"
    elif given and all(isinstance(value, int | float) for value in given):
        kind = "REAL"
    else:
        kind = "TEXT"
    return f"{quoted(name)} {kind}{' PRIMARY KEY' if name == 'id' else ''}"


def _stored(value: Any) -> Any:
    return compact_json(value) if isinstance(value, dict | list) else value
