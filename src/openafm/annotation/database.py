"""Databases of annotation projects: an SQLite file by default, PostgreSQL by URL.

A part of the room (people, grading, trees) declares its tables and their migrations as a `Schema`; `Database` creates or
migrates the tables of its schemas and checks their versions. A table with a column `person` holds personal data, which is
exported and deleted with that person (`people/privacy.py`).
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openafm.core.errors import OpenAFMError
from openafm.core.files import OutOfSpaceError
from openafm.core.libraries import needed

with needed("annotation", "SQLAlchemy", "annotate"):
    import sqlalchemy as sql

BUSY_SECONDS = 10.0
"""How long a transaction waits for another one before it fails."""

_versions = sql.Table(
    "schemas",
    sql.MetaData(),
    sql.Column("name", sql.String, primary_key=True),
    sql.Column("version", sql.Integer, nullable=False),
)
_POSTGRES_DISK_FULL = "53100"


class DatabaseError(OpenAFMError):
    """The database cannot be opened, is damaged, or is busy for too long."""


class NewerDatabaseError(DatabaseError):
    """A newer openafm wrote the database; this one would damage it."""


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Hold the tables of one part of the room.

    Attributes:
        name: identifies the part in the database.
        tables: the tables in their newest form.
        migrations: SQL statements that lead from version i + 1 to i + 2. The newest version is their number plus 1.
    """

    name: str
    tables: sql.MetaData
    migrations: tuple[tuple[str, ...], ...] = ()

    @property
    def version(self) -> int:
        return len(self.migrations) + 1


class Database:
    """Open a database and bring its tables to the newest version.

    Args:
        place: the path of an SQLite file, which is created with mode 0600, or a URL such as postgresql://user@host/name.
        schemas: the parts that use it.

    Raises:
        DatabaseError: it cannot be opened, or is not a database.
        NewerDatabaseError: a newer openafm wrote it.
        OutOfSpaceError: the disk is full.
    """

    def __init__(self, place: Path | str, schemas: Sequence[Schema]) -> None:
        self.schemas = tuple(schemas)
        self.name = str(place) if isinstance(place, Path) else sql.engine.make_url(place).render_as_string()
        self._engine = _engine(place)
        is_sqlite = self._engine.dialect.name == "sqlite"
        # SQLite's own waiting polls up to every 100 ms and is not fair; writers of other processes still wait that way
        self._turn: contextlib.AbstractContextManager[Any] = threading.Lock() if is_sqlite else contextlib.nullcontext()
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def writing(self) -> Iterator[sql.Connection]:
        """Run a block in one transaction that excludes other writers; commit it at the end, or roll it back on an error.

        Raises:
            DatabaseError: another process writes for more than `BUSY_SECONDS`, or the database is damaged.
            OutOfSpaceError: the disk is full; nothing of the block is stored.
            sqlalchemy.exc.IntegrityError: a unique or foreign key is violated.
        """
        with self._translated(), self._turn, self._engine.execution_options(writes=True).begin() as connection:
            yield connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[sql.Connection]:
        """Run a block that reads one state of the database.

        Raises:
            DatabaseError: as `writing`.
        """
        with self._translated(), self._engine.connect() as connection:
            yield connection

    def close(self) -> None:
        self._engine.dispose()

    def _prepare(self) -> None:
        with self.writing() as connection:
            if connection.dialect.name == "postgresql":  # two servers may start at once
                connection.execute(sql.select(sql.func.pg_advisory_xact_lock(0x0AF3)))
            _versions.metadata.create_all(connection)
            versions = {row.name: row.version for row in connection.execute(sql.select(_versions))}
            for schema in self.schemas:
                self._bring_to_newest(connection, schema, versions.get(schema.name))

    def _bring_to_newest(self, connection: sql.Connection, schema: Schema, version: int | None) -> None:
        if version is None:
            schema.tables.create_all(connection)
            connection.execute(_versions.insert().values(name=schema.name, version=schema.version))
            return
        if version > schema.version:
            raise NewerDatabaseError(
                f"{self.name} has version {version} of its tables for {schema.name}, this openafm supports up to "
                f"{schema.version}; install a newer openafm"
            )
        for statements in schema.migrations[version - 1 :]:
            for statement in statements:
                connection.exec_driver_sql(statement)
        connection.execute(_versions.update().where(_versions.c.name == schema.name).values(version=schema.version))

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sql.exc.IntegrityError:
            raise
        except sql.exc.DBAPIError as error:
            if _is_disk_full(error.orig):
                raise OutOfSpaceError(f"no space left on the disk of {self.name}; free some and try again") from error
            raise DatabaseError(f"{self.name} cannot be used: {error.orig}; check the place and its permissions") from error


def _engine(place: Path | str) -> sql.Engine:
    if isinstance(place, Path):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch(mode=0o600)
        except OSError as error:
            raise DatabaseError(f"{place} cannot be opened: {error.strerror}; choose a folder that you can write") from error
        engine = sql.create_engine(
            sql.URL.create("sqlite", database=str(place)), connect_args={"timeout": BUSY_SECONDS}, pool_size=16
        )
        sql.event.listen(engine, "connect", _configure_sqlite)
        sql.event.listen(engine, "begin", _begin_sqlite)
        return engine
    url = sql.engine.make_url(place)
    if url.get_backend_name() != "postgresql":
        raise DatabaseError(
            f"{url.get_backend_name()} is not supported; pass a file for SQLite or postgresql://user@host/name"
        )
    with needed("PostgreSQL", "psycopg", "postgres"):
        import psycopg  # noqa: F401
    return sql.create_engine(url.set(drivername="postgresql+psycopg"), pool_pre_ping=True)


def _configure_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions are begun by `_begin_sqlite`, not by sqlite3
    for setting in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {setting}")


def _begin_sqlite(connection: sql.Connection) -> None:
    """Take the write lock at the start: a transaction that reads first cannot always be upgraded."""
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _is_disk_full(error: BaseException | None) -> bool:
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return getattr(error, "sqlstate", None) == _POSTGRES_DISK_FULL
