"""Databases of annotation projects."""

from __future__ import annotations

import sqlite3
import stat
import threading
from pathlib import Path

import pytest
import sqlalchemy as sql

from openafm.annotation import database as databases
from openafm.annotation.database import Database, DatabaseError, NewerDatabaseError, Schema
from openafm.core.files import OutOfSpaceError

_TABLES = sql.MetaData()
notes = sql.Table(
    "notes",
    _TABLES,
    sql.Column("id", sql.Integer, primary_key=True),
    sql.Column("text", sql.Text, nullable=False, unique=True),
)
NOTES = Schema(name="notes", tables=_TABLES)


def texts(database: Database) -> list[str]:
    with database.reading() as connection:
        return list(connection.scalars(sql.select(notes.c.text).order_by(notes.c.id)))


def add(database: Database, text: str) -> None:
    with database.writing() as connection:
        connection.execute(notes.insert().values(text=text))


def check_transactions(database: Database) -> None:
    add(database, "one")
    with pytest.raises(ZeroDivisionError), database.writing() as connection:
        connection.execute(notes.insert().values(text="lost"))
        raise ZeroDivisionError
    with pytest.raises(sql.exc.IntegrityError):
        add(database, "one")
    assert texts(database) == ["one"]


def test_sqlite_keeps_committed_rows_only(tmp_path: Path) -> None:
    place = tmp_path / "folder" / "notes.sqlite3"
    database = Database(place, [NOTES])
    check_transactions(database)
    database.close()
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert texts(Database(place, [NOTES])) == ["one"]


def test_postgresql_keeps_committed_rows_only(postgres_url: str) -> None:
    database = Database(postgres_url, [NOTES])
    check_transactions(database)
    database.close()
    again = Database(postgres_url, [NOTES])
    assert texts(again) == ["one"]
    with again.writing() as connection:
        connection.exec_driver_sql("UPDATE schemas SET version = 9")
    again.close()
    with pytest.raises(NewerDatabaseError, match="version 9"):
        Database(postgres_url, [NOTES])


def test_writers_wait_for_each_other(tmp_path: Path) -> None:
    database = Database(tmp_path / "notes.sqlite3", [NOTES])
    threads = [threading.Thread(target=lambda n=n: [add(database, f"{n}-{i}") for i in range(20)]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts(database)) == 80


def test_a_writer_that_waits_too_long_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "BUSY_SECONDS", 0.05)
    database, other = (Database(tmp_path / "notes.sqlite3", [NOTES]) for _ in range(2))
    with database.writing(), pytest.raises(DatabaseError, match="locked"):
        add(other, "blocked")


def test_older_tables_are_migrated(tmp_path: Path) -> None:
    place = tmp_path / "notes.sqlite3"
    old = sql.MetaData()
    sql.Table("notes", old, sql.Column("id", sql.Integer, primary_key=True))
    Database(place, [Schema(name="notes", tables=old)]).close()
    newer = Schema(name="notes", tables=_TABLES, migrations=(("ALTER TABLE notes ADD COLUMN text TEXT",),))
    add(Database(place, [newer]), "after")
    assert texts(Database(place, [newer])) == ["after"]
    with pytest.raises(NewerDatabaseError, match=r"version 2 .* supports up to 1"):
        Database(place, [NOTES])


def test_a_full_disk_is_a_typed_error_and_loses_nothing(tmp_path: Path) -> None:
    database = Database(tmp_path / "notes.sqlite3", [NOTES])
    add(database, "kept")
    with pytest.raises(OutOfSpaceError, match="no space left"), database.writing() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 8")
        connection.execute(notes.insert().values(text="x" * 100_000))
    assert texts(database) == ["kept"]


@pytest.mark.parametrize("content", [b"no database at all, but text", b"SQLite format 3\x00" + b"\xff" * 200])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    place = tmp_path / "notes.sqlite3"
    place.write_bytes(content)
    with pytest.raises(DatabaseError, match=r"not a database|malformed"):
        Database(place, [NOTES])
    assert place.read_bytes() == content


def test_other_servers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="mysql is not supported"):
        Database("mysql://localhost/notes", [NOTES])
    with pytest.raises(DatabaseError, match="cannot be opened"):
        (tmp_path / "file").touch()
        Database(tmp_path / "file" / "notes.sqlite3", [NOTES])
    assert sqlite3.sqlite_version_info >= (3, 31)
