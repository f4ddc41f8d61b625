"""A project: a folder that people write and read.

project.toml            title, clock, seed, limits
tools.py                the tools (`world.py`)
state/*.sql, *.json     the initial database (`seed.py`)
starts/NAME.json        other starting states: rows by table, which replace those of the initial database
policy.md               the instructions of the model
scenarios/*.jsonl       what users ask, with reference calls where the author knows them
annotations.sqlite      written by `openafm annotate serve`
"""

from __future__ import annotations

import datetime
import errno
import hashlib
import json
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from openafm.annotation.environments.seed import SeedError, seed_image
from openafm.annotation.errors import writing_to
from openafm.core.config import Config, ConfigError, from_dict
from openafm.core.errors import OpenAFMError
from openafm.core.files import lines_of
from openafm.core.regular_files import read_document
from openafm.tokenizer.conversation import ToolCall

FREE = "free"
"""The id of the scenario of free conversations: the annotator writes the query."""
SAMPLES = {
    "calendar": "calendar and contacts",
    "shop": "a shop and its orders",
    "travel": "travel booking",
    "device": "device settings",
}
DATABASE = "annotations.sqlite"


class ProjectError(OpenAFMError):
    """A project folder cannot be used; the message has the file."""


@dataclass(frozen=True, kw_only=True)
class ProjectConfig(Config):
    """The content of `project.toml`.

    Attributes:
        id: identifies the project in a database and in the access of people; empty for the name of the folder.
        clock: the time of the first tool call.
        seed: the seed of the random numbers of tools.
        call_seconds: wall time of a tool call.
        memory_mb: memory of a tool process.
        output_characters: the longest output of a tool.
        max_steps: steps with tool calls in one answer of the agent.
    """

    title: str
    id: str = ""
    clock: str = "2025-09-15T09:00:00"
    seed: int = 0
    call_seconds: float = 5.0
    memory_mb: int = 512
    output_characters: int = 20_000
    max_steps: int = 8

    def __post_init__(self) -> None:
        for name in ("call_seconds", "memory_mb", "output_characters", "max_steps"):
            self.require(getattr(self, name) > 0, f"{name} must be above 0, got {getattr(self, name)}")
        try:
            datetime.datetime.fromisoformat(self.clock)
        except ValueError:
            self.require(False, f"clock must be a date and time such as 2025-09-15T09:00:00, got {self.clock!r}")

    @property
    def start(self) -> datetime.datetime:
        return datetime.datetime.fromisoformat(self.clock)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A task of a user.

    Attributes:
        query: the user's first message.
        goal: what the user wants to have at the end, for the annotator.
        calls: tool calls that reach the goal; empty where the author gives none.
        answer: a text that the last answer contains; empty for any.
        start: the state that it starts from: the name of a file in `starts`, or rows by table; empty: the initial database.
    """

    id: str
    query: str
    language: str = "en"
    goal: str = ""
    calls: tuple[ToolCall, ...] = ()
    answer: str = ""
    start: str | Mapping[str, Any] = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def from_dict(values: Any) -> Scenario:
        """Read a line of a scenario file.

        Raises:
            ValueError: the line is not a scenario.
        """
        if not isinstance(values, dict):
            raise ValueError(f"expected an object, got {values!r:.100}")
        texts = {name: values.get(name, default) for name, default in _TEXTS.items()}
        for name, text in texts.items():
            if not isinstance(text, str):
                raise ValueError(f"'{name}' must be a text, got {text!r:.100}")
        if not texts["id"] or not texts["query"]:
            raise ValueError("a scenario needs 'id' and 'query'")
        calls = values.get("calls", [])
        if not isinstance(calls, list) or not all(
            isinstance(c, dict) and isinstance(c.get("name"), str) and isinstance(c.get("arguments"), dict) for c in calls
        ):
            raise ValueError("'calls' is a list of objects with 'name' and 'arguments'")
        expected = values.get("expect", [])
        if not isinstance(expected, list) or not all(map(_is_expectation, expected)):
            raise ValueError("'expect' is a list of objects with 'table', 'has' ('row' or 'no row') and 'values'")
        start = values.get("start", "")
        if not isinstance(start, dict) and not (isinstance(start, str) and (not start or _START.fullmatch(start))):
            raise ValueError(f"'start' is the name of a file in starts/, or an object of rows by table; got {start!r:.100}")
        return Scenario(
            **texts,
            calls=tuple(ToolCall(name=call["name"], arguments=call["arguments"]) for call in calls),
            start=start,
            extra={name: value for name, value in values.items() if name not in (*_TEXTS, "calls", "start")},
        )

    def to_dict(self) -> dict[str, Any]:
        calls = [{"name": call.name, "arguments": call.arguments} for call in self.calls]
        start = {"start": self.start} if self.start else {}
        return {name: getattr(self, name) for name in _TEXTS} | {"calls": calls} | start | dict(self.extra)


def _is_expectation(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("table"), str)
        and value.get("has") in ("row", "no row")
        and isinstance(value.get("values"), dict)
    )


_START = re.compile(r"[\w-]{1,100}")
_KEPT_IMAGES = 16
_TEXTS = {"id": "", "query": "", "language": "en", "goal": "", "answer": ""}


@dataclass(frozen=True, kw_only=True)
class Project:
    """Hold a project's folder and what was read from it. Tools and state are read when they are used."""

    path: Path
    config: ProjectConfig
    policy: str
    scenarios: tuple[Scenario, ...]

    @property
    def id(self) -> str:
        return self.config.id or self.path.resolve().name

    @property
    def tools_path(self) -> Path:
        return self.path / "tools.py"

    @cached_property
    def tools_digest(self) -> str:
        """Identify the tools, so that items of earlier ones are noticed."""
        return hashlib.blake2b(self.tools_path.read_bytes(), digest_size=8).hexdigest()

    @cached_property
    def seed(self) -> bytes:
        """The image of the initial database.

        Raises:
            ProjectError: a file of the state cannot be used.
        """
        try:
            return seed_image(self.path / "state")
        except SeedError as error:
            raise ProjectError(str(error)) from error

    def start_image(self, scenario: Scenario) -> bytes:
        """Return the image of the database that a scenario starts from.

        Raises:
            ProjectError: its starting state, or a file of the state, cannot be used.
        """
        return self._images(json.dumps(scenario.start)) if scenario.start else self.seed

    @cached_property
    def _images(self) -> Callable[[str], bytes]:
        return lru_cache(maxsize=_KEPT_IMAGES)(self._image)

    def _image(self, start_text: str) -> bytes:
        start, place = json.loads(start_text), "the 'start' of the scenario"
        try:
            if isinstance(start, str):
                path = self.path / "starts" / f"{start}.json"
                place = str(path)
                start = json.loads(read_document(path))
                if not isinstance(start, dict):
                    raise ProjectError(f"{place}: expected an object of rows by table, got {type(start).__name__}")
            return seed_image(self.path / "state", start, place)
        except (SeedError, OSError) as error:
            raise ProjectError(str(error)) from error
        except (ValueError, RecursionError) as error:
            raise ProjectError(f"{place}: {error}") from error

    def scenario(self, scenario_id: str) -> Scenario:
        """Return a scenario.

        Raises:
            ProjectError: there is none of this name.
        """
        for each in self.scenarios:
            if each.id == scenario_id:
                return each
        raise ProjectError(f"the project has no scenario {scenario_id!r:.100}; the files are in {self.path / 'scenarios'}")


def read_project(path: Path) -> Project:
    """Read a project's folder.

    Raises:
        ProjectError: a file is missing or cannot be used.
    """
    for name in ("project.toml", "tools.py"):
        if not (path / name).is_file():
            raise ProjectError(
                f"{path} has no {name}; `openafm annotate init {path} --sample travel` writes a sample project"
            ) from FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path / name))
    try:
        config = from_dict(ProjectConfig, tomllib.loads((path / "project.toml").read_text(encoding="utf-8")))
    except (ConfigError, ValueError) as error:
        raise ProjectError(f"{path / 'project.toml'}: {error}") from error
    policy = path / "policy.md"
    return Project(
        path=path,
        config=config,
        policy=policy.read_text(encoding="utf-8").strip() if policy.is_file() else "",
        scenarios=_scenarios(path / "scenarios"),
    )


def check_new_folder(path: Path) -> None:
    """Check that a project can be written to a folder.

    Raises:
        ProjectError: it has files, or is a file.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ProjectError(f"{path} is not an empty folder; choose a new one")


def write_sample(name: str, path: Path) -> None:
    """Write a sample project to a new folder.

    Raises:
        ProjectError: there is no such sample, or the folder has files.
    """
    if name not in SAMPLES:
        raise ProjectError(f"there is no sample {name!r:.50}; the samples are {', '.join(SAMPLES)}")
    check_new_folder(path)
    with writing_to(path), as_file(files("openafm.annotation.environments.samples").joinpath(name)) as source:
        shutil.copytree(source, path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "__init__.py"))


def _scenarios(folder: Path) -> tuple[Scenario, ...]:
    found: dict[str, Scenario] = {}
    starts = {each.stem for each in (folder.parent / "starts").glob("*.json")}
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(lines_of(path.read_text(encoding="utf-8")), start=1):
            if not line.strip():
                continue
            try:
                scenario = Scenario.from_dict(json.loads(line))
                if scenario.id in found:
                    raise ValueError(f"the id {scenario.id!r:.100} occurs twice")
                if isinstance(scenario.start, str) and scenario.start and scenario.start not in starts:
                    places = folder.parent / "starts"
                    raise ValueError(f"'start' names {scenario.start!r}, but {places} has no {scenario.start}.json")
            except ValueError as error:
                raise ProjectError(f"{path}:{number}: {error}") from error
            found[scenario.id] = scenario
    return tuple(found.values())
