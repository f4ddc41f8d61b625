"""Outputs by model signature and prompt, in one SQLite file. A run that was killed continues from it."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path

from openafm.core.errors import OpenAFMError
from openafm.evaluation.harness.task import Output, Prompt

_TABLE = (
    "CREATE TABLE IF NOT EXISTS outputs (model TEXT, prompt TEXT, output TEXT, PRIMARY KEY (model, prompt)) WITHOUT ROWID"
)


class CacheError(OpenAFMError):
    """The file of cached outputs cannot be read or written."""


class OutputCache:
    """Cached outputs. Safe to share between threads and processes: each output is one transaction."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=60, check_same_thread=False, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")  # a killed process loses nothing; a power failure may
            self._connection.execute(_TABLE)
        except (sqlite3.Error, OSError) as error:
            raise CacheError(f"the cache {path} cannot be opened: {error}; remove it or choose another --cache") from error

    def get(self, signature: str, prompt: Prompt) -> Output | None:
        """Return the output of a model for a prompt; None if it is not known, or its row is damaged."""
        rows = self._execute("SELECT output FROM outputs WHERE model = ? AND prompt = ?", signature, prompt.digest)
        try:
            return Output.from_dict(json.loads(rows[0][0])) if rows else None
        except (ValueError, TypeError, KeyError, RecursionError):  # the prompt is answered again, which replaces the row
            return None

    def put(self, signature: str, prompt: Prompt, output: Output) -> None:
        """Store an output."""
        text = json.dumps(output.to_dict(), ensure_ascii=False)
        self._execute("INSERT OR REPLACE INTO outputs VALUES (?, ?, ?)", signature, prompt.digest, text)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _execute(self, statement: str, *values: str) -> list[tuple[str, ...]]:
        try:
            with self._lock:
                return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise CacheError(f"the cache {self._path} failed: {error}; remove it or choose another --cache") from error
