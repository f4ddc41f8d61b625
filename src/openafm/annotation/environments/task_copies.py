"""What adapters to a user's copy of tasks share: its packages, its digest, rows as JSON, and the project's files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openafm.annotation.environments.project import Scenario, read_project
from openafm.annotation.environments.seed import quoted
from openafm.annotation.environments.tool_functions import ToolFileError
from openafm.annotation.environments.world import World
from openafm.annotation.errors import writing_to
from openafm.tokenizer.schema_text import compact_json

Rows = Mapping[str, str]
"""A table: values as JSON text by id."""


@dataclass(frozen=True, kw_only=True)
class TaskImport:
    """What was imported, and what could not be mapped. `rows` are those of the initial database."""

    tools: int
    scenarios: int
    rows: Mapping[str, int]
    notes: tuple[str, ...]
    starts: int = 1


@dataclass(frozen=True, kw_only=True)
class ProjectFiles:
    """The content of a project that an adapter writes.

    Attributes:
        config: further lines of `project.toml`.
        tools: the text of `tools.py`.
        tables: ids and values of tables, stored as rows with `id` and the JSON text `data`.
        listed: the names of other tables, with ids only.
        starts: by name, the tables of `tables` that differ in another starting state.
    """

    title: str
    tools: str
    policy: str
    tables: Mapping[str, Sequence[tuple[str, Any]]]
    scenarios: Sequence[Scenario]
    config: str = ""
    listed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    starts: Mapping[str, Mapping[str, Sequence[tuple[str, Any]]]] = field(default_factory=dict)

    def write(self, project: Path) -> None:
        """Write the project's folder and read it again.

        Raises:
            ProjectError: the project cannot be read.
            AnnotationError: the folder cannot be written.
        """
        with writing_to(project):
            for part in ("state", "scenarios"):
                (project / part).mkdir(parents=True, exist_ok=True)
            created = "".join(f"CREATE TABLE {quoted(name)} (id TEXT PRIMARY KEY);\n" for name in self.listed)
            created += "".join(f"CREATE TABLE {quoted(name)} (id TEXT PRIMARY KEY, data TEXT);\n" for name in self.tables)
            (project / "state" / "tables.sql").write_text(created, encoding="utf-8")
            for name, ids in self.listed.items():
                _write_json(project / "state" / f"{name}.json", [{"id": id} for id in ids])
            for name, items in self.tables.items():
                _write_json(project / "state" / f"{name}.json", [_row(id, value) for id, value in items])
            for name, start in self.starts.items():
                (project / "starts").mkdir(exist_ok=True)
                rows = {table: [_row(id, value) for id, value in items] for table, items in start.items()}
                text = json.dumps(rows, ensure_ascii=False, indent=1) + "\n"
                (project / "starts" / f"{name}.json").write_text(text, encoding="utf-8")
            settings = f"title = {json.dumps(self.title)}\nmemory_mb = 1024\noutput_characters = 200000\n{self.config}"
            (project / "project.toml").write_text(settings, encoding="utf-8")
            (project / "tools.py").write_text(self.tools, encoding="utf-8")
            (project / "policy.md").write_text(self.policy, encoding="utf-8")
            lines = "".join(json.dumps(scenario.to_dict(), ensure_ascii=False) + "\n" for scenario in self.scenarios)
            (project / "scenarios" / "tasks.jsonl").write_text(lines, encoding="utf-8")
        read_project(project)


class CopiedPackage:
    """Hold the modules of a copy's package, apart from modules of the same names in this process.

    Parent packages are importable but not executed: they import clients of model services that tools do not need.
    """

    def __init__(self, folder: Path) -> None:
        packages = [folder]
        while (packages[0].parent / "__init__.py").exists():
            packages.insert(0, packages[0].parent)
        self.name = ".".join(each.name for each in packages)
        """The folder's name as a package."""
        self._root = packages[0].name
        self._modules: dict[str, types.ModuleType] = {}
        for number, each in enumerate(packages, start=1):
            name = ".".join(part.name for part in packages[:number])
            self._modules[name] = module = types.ModuleType(name)
            module.__path__ = [str(each)]

    @contextlib.contextmanager
    def active(self) -> Iterator[str]:
        """Use the copy's modules for imports inside the block; yield the folder's name as a package."""
        before = self._taken()
        sys.modules.update(self._modules)
        try:
            yield self.name
        finally:
            self._modules = self._taken()
            sys.modules.update(before)

    def modules(self) -> list[types.ModuleType]:
        """Return the modules of the copy that are imported now."""
        return [module for name, module in sys.modules.items() if name.split(".")[0] == self._root]

    def _taken(self) -> dict[str, types.ModuleType]:
        return {key: sys.modules.pop(key) for key in list(sys.modules) if key.split(".")[0] == self._root}


def check_unchanged(folder: Path, parts: Sequence[str], digest: str) -> None:
    """Check that the code of a copy is where it was at the import, with the same content.

    Raises:
        ToolFileError: it is missing or changed.
    """
    if not (folder / "tools").is_dir():
        raise ToolFileError(f"{folder} is missing; import the tasks again from where the copy is now")
    if code_digest(folder, parts) != digest:
        raise ToolFileError(f"the tools in {folder} changed after the import; import the tasks into a new project")


def code_digest(folder: Path, parts: Sequence[str]) -> str:
    """Return a digest of the Python files in some parts of a copy."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        for path in sorted((folder / part).rglob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def read_tables(world: World) -> dict[str, Rows]:
    """Return the tables of a project that `ProjectFiles` wrote."""
    found = world.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    names = [row["name"] for row in found if not row["name"].startswith(("openafm_", "sqlite_"))]
    return {
        name: {row["id"]: row["data"] for row in world.rows(f"SELECT id, data FROM {quoted(name)} ORDER BY rowid")}
        for name in names
    }


def store_rows(world: World, name: str, before: Rows, after: Rows) -> None:
    """Store the rows of a table that a call changed."""
    for id in before.keys() - after.keys():
        world.run(f"DELETE FROM {quoted(name)} WHERE id = ?", id)
    for id, text in after.items():
        if id not in before:
            world.run(f"INSERT INTO {quoted(name)} (id, data) VALUES (?, ?)", id, text)
        elif before[id] != text:
            world.run(f"UPDATE {quoted(name)} SET data = ? WHERE id = ?", text, id)


def _write_json(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n", encoding="utf-8")


def _row(id: str, value: Any) -> dict[str, Any]:
    return {"id": id, "data": value if isinstance(value, dict | list) else compact_json(value)}
