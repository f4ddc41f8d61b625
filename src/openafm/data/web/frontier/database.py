"""The SQLite file of a frontier: its format, its facts, and transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from openafm.core.errors import OpenAFMError
from openafm.core.files import OutOfSpaceError
from openafm.data.web.frontier.schema import SCHEMA, TRIGGERS

FORMAT = 1


class FrontierError(OpenAFMError):
    """The frontier cannot be opened or written."""


class FrontierDatabase:
    """An open frontier. Every change is one transaction."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        if read_only and not path.is_file():
            raise FrontierError(f"{path.parent} holds no crawl; start one with: openafm data crawl URL --out {path.parent}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, isolation_level=None)
            self._database.row_factory = sqlite3.Row
            if not read_only:
                # The WARC file is flushed first and read again after a crash, so NORMAL loses nothing.
                self._database.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;" + SCHEMA + TRIGGERS)
            self._check_format()
        except sqlite3.Error as error:
            self._raise(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._database.close()

    def fact(self, name: str) -> str | None:
        """Return a stored fact, such as the config; None without one."""
        row = self._one("SELECT value FROM facts WHERE name = ?", name)
        return None if row is None else str(row["value"])

    def set_fact(self, name: str, value: str) -> None:
        """Store a fact."""
        with self._transaction():
            self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def _check_format(self) -> None:
        found = self.fact("format")
        if found is None:
            self.set_fact("format", str(FORMAT))
        elif found != str(FORMAT):
            raise FrontierError(f"{self.path} has format {found}; this version reads {FORMAT}; use another folder")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            self._raise(error)

    def _raise(self, error: sqlite3.Error) -> NoReturn:
        if "full" in str(error) or "disk I/O" in str(error):
            raise OutOfSpaceError(
                f"no space left on the disk while writing {self.path}; free some and run the command again"
            ) from error
        raise FrontierError(f"{self.path} cannot be used: {error}; use another folder, or restore the file") from error

    def _one(self, query: str, *values: object) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._database.execute(query, values).fetchone()
        return row

    def _all(self, query: str, *values: object) -> list[sqlite3.Row]:
        return self._database.execute(query, values).fetchall()
