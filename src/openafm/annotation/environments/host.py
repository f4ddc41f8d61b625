"""Run the tool calls of a project on a database in memory, each with its own time and random numbers."""

from __future__ import annotations

import datetime
import hashlib
import random
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from openafm.annotation.environments.differences import RowChange, changes, table_names, watch
from openafm.annotation.environments.page_delta import delta
from openafm.annotation.environments.seed import quoted
from openafm.annotation.environments.tool_functions import ProjectTool, load_tools
from openafm.annotation.environments.world import ToolError, World
from openafm.framework.schema.validation import Validator
from openafm.tokenizer.conversation import ToolDefinition
from openafm.tokenizer.schema_text import compact_json

_SECONDS_PER_CALL = 60
_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_INSERT,
    sqlite3.SQLITE_UPDATE,
    sqlite3.SQLITE_DELETE,
    sqlite3.SQLITE_FUNCTION,
    33,  # SQLITE_RECURSIVE, a query with WITH RECURSIVE, which Python has no name for before 3.12
}


class Problem(StrEnum):
    """What was wrong with a tool call."""

    NONE = ""
    REFUSED = "refused"
    """The tool refused the call, with `ToolError`."""
    UNKNOWN_TOOL = "unknown_tool"
    INVALID_ARGUMENTS = "invalid_arguments"
    RAISED = "raised"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"
    TOO_LONG = "too_long"
    NOT_JSON = "not_json"
    MUTATED_ARGUMENTS = "mutated_arguments"
    """The tool changed its own arguments; the record has those of the model, and the output counts."""


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """The result of a call.

    Attributes:
        text: what the model reads.
        problem: what went wrong. Calls with a problem, except for `MUTATED_ARGUMENTS`, change nothing.
        detail: more about the problem, for annotators.
        changes: the changed rows.
        delta: the changed pages of the database; empty if the call changed nothing.
    """

    text: str
    problem: Problem = Problem.NONE
    detail: str = ""
    changes: tuple[RowChange, ...] = ()
    delta: bytes = b""

    def to_dict(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "problem": self.problem.value,
            "detail": self.detail,
            "changes": [change.to_dict() for change in self.changes],
        }


class ToolHost:
    """Hold the tools of a project and a database.

    Args:
        path: the project's `tools.py`.
        start: the time of the first call; each later one is a minute later.
        seed: the seed of random numbers.
        max_characters: the longest output.

    Raises:
        ToolFileError: the file cannot be used.
    """

    def __init__(self, path: Path, *, start: datetime.datetime, seed: int, max_characters: int) -> None:
        self._tools: Mapping[str, ProjectTool] = load_tools(path)
        self._start, self._seed, self._max_characters = start, seed, max_characters
        self.definitions: dict[str, ToolDefinition] = {name: tool.definition() for name, tool in self._tools.items()}
        self._validators = {name: Validator(each.parameters) for name, each in self.definitions.items()}
        self._image: bytes | bytearray = b""
        self._db = sqlite3.connect(":memory:")

    def load(self, image: bytes | bytearray) -> None:
        """Replace the database."""
        self._db.close()
        self._image, self._db = image, sqlite3.connect(":memory:", isolation_level=None)
        self._db.deserialize(image)
        watch(self._db)

    def call(self, name: str, arguments: Mapping[str, Any], index: int) -> CallResult:
        """Return the result of call number `index` of a trajectory. Never raises for what a tool does."""
        if name not in self._tools:
            return _failed(Problem.UNKNOWN_TOOL, f"there is no tool {name!r:.100}; the tools are {', '.join(self._tools)}")
        problem = self._validators[name].validation().problem(arguments)
        if problem is not None:
            return _failed(Problem.INVALID_ARGUMENTS, f"the arguments of {name} do not fit at {problem:.300}")
        self._db.execute("SAVEPOINT openafm_call")
        result = self._run(name, arguments, index)
        is_kept = result.problem in (Problem.NONE, Problem.MUTATED_ARGUMENTS)
        if not is_kept:
            self._db.execute("ROLLBACK TO openafm_call")
        found = changes(self._db)
        self._db.execute("RELEASE openafm_call")
        if not is_kept or not found:
            return result
        before, self._image = self._image, self._db.serialize()
        pages = delta(before, self._image)
        return CallResult(text=result.text, problem=result.problem, detail=result.detail, changes=found, delta=pages)

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return all rows by table: the state as JSON values."""
        found = {}
        for table in table_names(self._db):
            cursor = self._db.execute(f"SELECT * FROM {quoted(table)} ORDER BY rowid")
            names = [column[0] for column in cursor.description]
            found[table] = [dict(zip(names, map(_shown, row), strict=True)) for row in cursor]
        return found

    def digest(self) -> str:
        """Return a digest of all rows; equal for equal contents, however the database pages are arranged."""
        return hashlib.blake2b(repr(self.tables()).encode(), digest_size=16).hexdigest()

    def _run(self, name: str, arguments: Mapping[str, Any], index: int) -> CallResult:
        now = self._start + datetime.timedelta(seconds=_SECONDS_PER_CALL * index)
        world = World(db=self._db, now=now, random=random.Random(f"{self._seed} {index}"))
        has_value = False
        self._db.set_authorizer(_authorize)
        try:
            value, has_changed = self._tools[name].call(world, arguments)
            has_value = True
            text = value if isinstance(value, str) else compact_json(value)
            text.encode()
        except ToolError as error:
            return _failed(Problem.REFUSED, str(error))
        except MemoryError:
            return _failed(Problem.OUT_OF_MEMORY, f"{name} used more memory than the project allows")
        except (TypeError, ValueError, RecursionError) as error:
            return _failed(Problem.NOT_JSON if has_value else Problem.RAISED, f"{type(error).__name__}: {error!s:.500}")
        except (Exception, SystemExit) as error:
            return _failed(Problem.RAISED, f"{type(error).__name__}: {error!s:.500}")
        finally:
            self._db.set_authorizer(None)
        if len(text) > self._max_characters:
            return _failed(
                Problem.TOO_LONG, f"{name} returned {len(text):,} characters; the limit is {self._max_characters:,}"
            )
        if has_changed:
            return CallResult(text=text, problem=Problem.MUTATED_ARGUMENTS, detail=f"{name} changes its own arguments")
        return CallResult(text=text)


def _failed(problem: Problem, detail: str) -> CallResult:
    return CallResult(text=f"Error: {detail}", problem=problem, detail=detail)


def _authorize(action: int, *_: str | None) -> int:
    """Allow tools to read and change rows; schemas, transactions, pragmas and other databases are the host's."""
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def _shown(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value
