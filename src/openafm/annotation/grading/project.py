"""A grading project: a folder with project.toml, items.jsonl, images, and by default the database of judgments."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from openafm.annotation.errors import AnnotationError, not_found, writing_to
from openafm.annotation.grading.items import Item, read_items, write_items
from openafm.annotation.grading.locales import built_in_guidelines, check_locale, guidelines_of
from openafm.core.config import Config, ConfigError, from_dict
from openafm.core.files import atomic_file
from openafm.core.regular_files import read_document

SETTINGS, ITEMS, GUIDELINES, DATABASE = "project.toml", "items.jsonl", "guidelines.json", "annotation.sqlite3"


@dataclass(frozen=True, kw_only=True)
class ProjectConfig(Config):
    """Hold the settings of a project (project.toml).

    Attributes:
        id: identifies the project in databases and accounts.
        seed: of the order of items and of the sides. It is written beside every judgment.
        overlap: people who judge each comparison.
        qualification_items: gold items that a person judges first.
        gold_every: after this number of judgments a gold item follows; 0: never.
        least_gold_accuracy: people below it, over their last ten gold items, receive no further items.
        lease_minutes: time for which an opened comparison is not given to others.
    """

    id: str
    title: str = ""
    seed: int = 1
    overlap: int = 3
    qualification_items: int = 0
    gold_every: int = 10
    least_gold_accuracy: float = 0.7
    lease_minutes: float = 30.0

    def __post_init__(self) -> None:
        self.require(
            bool(re.fullmatch(r"[\w-]{1,64}", self.id)), f"id has 1 to 64 letters, digits, _ or -, got {self.id!r:.100}"
        )
        self.require(self.overlap > 0, f"overlap must be positive, got {self.overlap}")
        self.require(self.qualification_items >= 0 and self.gold_every >= 0, "numbers of gold items must not be negative")
        self.require(0 <= self.least_gold_accuracy <= 1, f"least_gold_accuracy lies in 0..1, got {self.least_gold_accuracy}")
        self.require(self.lease_minutes > 0, f"lease_minutes must be positive, got {self.lease_minutes}")


@dataclass(frozen=True, kw_only=True)
class Task:
    """One comparison: an item and two of its systems. `key` identifies it without their names."""

    key: str
    item: Item
    first: str
    second: str

    @property
    def is_gold(self) -> bool:
        return bool(self.item.gold)


@dataclass(frozen=True, eq=False)
class Project:
    """A project that has been read. Change its files only while no server runs."""

    folder: Path
    config: ProjectConfig
    items: tuple[Item, ...]
    guidelines: Mapping[str, Any]

    @property
    def title(self) -> str:
        return self.config.title or self.folder.resolve().name

    @cached_property
    def tasks(self) -> dict[str, Task]:
        """All comparisons by key."""
        found = (
            Task(key=_key(self.config, item.id, first, second), item=item, first=first, second=second)
            for item in self.items
            for first, second in item.pairs
        )
        return {task.key: task for task in found}

    @cached_property
    def systems(self) -> tuple[str, ...]:
        """The names of all systems, gold items left out."""
        return tuple(sorted({system for item in self.items if not item.gold for system in item.answers}))

    def task(self, key: str) -> Task:
        """Return a comparison.

        Raises:
            AnnotationError: the project has none with this key.
        """
        if key not in self.tasks:
            raise not_found("comparison of this project has this key")
        return self.tasks[key]

    def left(self, task: Task, person: str) -> str:
        """Return the system whose answer this person sees on the left side: a function of seed, task and person."""
        digest = hashlib.sha256(f"{self.config.seed}/{task.key}/{person}".encode()).digest()
        return task.first if digest[0] % 2 else task.second

    def guidelines_for(self, locale: str) -> dict[str, Any] | None:
        """Return what graders of a locale check, or None."""
        return guidelines_of(locale, self.guidelines)


def open_project(folder: Path) -> Project:
    """Read a project.

    Raises:
        AnnotationError: a file is missing or wrong.
    """
    path = folder / SETTINGS
    try:
        config = from_dict(ProjectConfig, tomllib.loads(read_document(path).decode()))
    except FileNotFoundError as error:
        raise AnnotationError(f"{folder} is not a grading project; create one with `openafm grade init {folder}`") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ConfigError) as error:
        raise AnnotationError(f"{path} cannot be used: {error}") from error
    return Project(folder, config, tuple(read_items(folder / ITEMS)), _guidelines(folder))


def create_project(folder: Path, items: Iterable[Item], **settings: Any) -> Project:
    """Create a project in a folder that has none.

    Raises:
        AnnotationError: the folder has a project, or a setting is wrong.
    """
    if (folder / SETTINGS).exists():
        raise AnnotationError(f"{folder} has a project; choose another folder", status=409)
    try:
        config = ProjectConfig(**{"id": secrets.token_hex(6)} | settings)
    except ConfigError as error:
        raise AnnotationError(str(error)) from error
    with writing_to(folder):
        _write_files(folder, config, items)
    return open_project(folder)


def _write_files(folder: Path, config: ProjectConfig, items: Iterable[Item]) -> None:
    write_items(folder / ITEMS, items)
    with atomic_file(folder / SETTINGS, "w") as file:
        file.write("# Settings of a grading project; docs/grading.md explains them.\n")
        file.writelines(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in asdict(config).items())


def _guidelines(folder: Path) -> Mapping[str, Any]:
    """Return the built-in guidelines, with those of the project's guidelines.json in their place."""
    path = folder / GUIDELINES
    if not path.exists():
        return built_in_guidelines()
    try:
        own = json.loads(read_document(path))
    except (OSError, ValueError, RecursionError) as error:
        raise AnnotationError(f"{path} cannot be used: {error}") from error
    is_valid = isinstance(own, dict) and all(
        isinstance(each, dict) and isinstance(each.get("checks"), list) for each in own.values()
    )
    if not is_valid:
        raise AnnotationError(f'{path} is an object: {{"en-GB": {{"name": "...", "checks": ["..."], "terms": []}}}}')
    for locale in own:
        check_locale(locale)
    return {**built_in_guidelines(), **own}


def _key(config: ProjectConfig, item: str, first: str, second: str) -> str:
    text = json.dumps([config.id, item, first, second], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]
