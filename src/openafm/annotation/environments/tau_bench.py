"""Projects from a user's copy of τ-bench-like tasks (arXiv 2406.12045). The copy's tools run on the project's database.

A domain of a copy, such as `tau_bench/envs/retail`, is a folder with

    tools/        ALL_TOOLS, classes with `invoke(data, **arguments)` and `get_info()`
    data/*.json   tables: objects by id, or lists
    tasks*.py     lists of tasks with `instruction`, `actions` and `outputs`
    wiki.md       the policy

The parent packages are not executed: they import clients of model services that tools do not need.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib
import json
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openafm.annotation.environments.project import ProjectError, Scenario, read_project
from openafm.annotation.environments.seed import quoted
from openafm.annotation.environments.tool_functions import ProjectTool, ToolFileError, check_deterministic
from openafm.annotation.environments.world import World
from openafm.annotation.errors import writing_to
from openafm.tokenizer.conversation import ToolCall, ToolDefinition
from openafm.tokenizer.schema_text import compact_json

_RESPOND = "respond"  # a pseudo action that speaks to the user
_LISTED = "openafm_list"
"""The table with the names of tables that are lists in the copy."""


@dataclass(frozen=True, kw_only=True)
class TauImport:
    """What was imported, and what could not be mapped."""

    tools: int
    scenarios: int
    rows: Mapping[str, int]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class TauTool(ProjectTool):
    """Run a tool class of a copy on the tables of the project, and store the rows that it changes."""

    tool: Any

    @property
    def name(self) -> str:
        return str(self.tool.get_info()["function"]["name"])

    def definition(self) -> ToolDefinition:
        info = self.tool.get_info()["function"]
        parameters = {"additionalProperties": False, **info["parameters"]}
        return ToolDefinition(name=info["name"], description=info["description"], parameters=parameters)

    def call(self, world: World, arguments: Mapping[str, Any]) -> tuple[Any, bool]:
        listed = {row["id"] for row in world.rows(f"SELECT id FROM {_LISTED}")}
        names = [row["name"] for row in world.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        before = {
            name: {row["id"]: row["data"] for row in world.rows(f"SELECT id, data FROM {quoted(name)} ORDER BY rowid")}
            for name in names
            if not name.startswith(("openafm_", "sqlite_"))
        }
        data = {name: _read_table(rows, name in listed) for name, rows in before.items()}
        passed = copy.deepcopy(dict(arguments))
        result = self.tool.invoke(data, **passed)
        for name, rows in before.items():
            _store(world, name, rows, _rows(data[name]))
        return result, passed != arguments


def tau_tools(folder: str, digest: str) -> list[TauTool]:
    """Return the tools of a copy (for the `tools.py` that `import_tau_bench` writes).

    Raises:
        ToolFileError: the copy is missing or changed.
    """
    path = Path(folder)
    if not (path / "tools").is_dir():
        raise ToolFileError(f"{path} is missing; import the tasks again from where the copy is now")
    if _digest(path) != digest:
        raise ToolFileError(f"the tools in {path} changed after the import; import the tasks into a new project")
    with _packages(path) as name:
        try:
            return [TauTool(tool) for tool in importlib.import_module(f"{name}.tools").ALL_TOOLS]
        except Exception as error:
            raise ToolFileError(f"the tools in {path} cannot be imported: {type(error).__name__}: {error}") from error


def import_tau_bench(folder: Path, project: Path) -> TauImport:
    """Write a project whose tools, tables, policy and scenarios are those of a copy.

    Raises:
        ProjectError: the folder is not a domain of such tasks, or the project folder has files.
        ToolFileError: the tools cannot be imported.
    """
    folder = folder.resolve()
    _check_folders(folder, project)
    tools = tau_tools(str(folder), _digest(folder))
    scenarios, notes = _scenarios(folder, {tool.name for tool in tools})
    tables = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((folder / "data").glob("*.json"))}
    wrong = [name for name, table in tables.items() if not isinstance(table, dict | list)]
    notes += [f"data/{name}.json is not an object or a list and was left out" for name in wrong]
    kept = {name: table for name, table in tables.items() if name not in wrong}
    with writing_to(project):
        _write_project(folder, project, kept, scenarios, notes)
    read_project(project)
    rows = {name: len(table) for name, table in kept.items()}
    return TauImport(tools=len(tools), scenarios=len(scenarios), rows=rows, notes=tuple(notes))


def _write_project(
    folder: Path, project: Path, kept: Mapping[str, Any], scenarios: Sequence[Scenario], notes: list[str]
) -> None:
    for part in ("state", "scenarios"):
        (project / part).mkdir(parents=True, exist_ok=True)
    for name, table in kept.items():
        _write_json(project / "state" / f"{name}.json", [_row(id, value) for id, value in _items(table)])
    _write_json(project / "state" / f"{_LISTED}.json", [{"id": name} for name, t in kept.items() if isinstance(t, list)])
    created = "".join(f"CREATE TABLE {quoted(name)} (id TEXT PRIMARY KEY, data TEXT);\n" for name in kept)
    (project / "state" / "tables.sql").write_text(f"CREATE TABLE {_LISTED} (id TEXT PRIMARY KEY);\n{created}")
    (project / "project.toml").write_text(
        f"title = {json.dumps(folder.name)}\nmemory_mb = 1024\noutput_characters = 200000\n"
    )
    (project / "tools.py").write_text(_TOOLS.format(folder=str(folder), digest=_digest(folder)))
    (project / "policy.md").write_text(_policy(folder, notes))
    lines = "".join(json.dumps(scenario.to_dict(), ensure_ascii=False) + "\n" for scenario in scenarios)
    (project / "scenarios" / "tasks.jsonl").write_text(lines, encoding="utf-8")


_TOOLS = '''"""Tools of a copy of τ-bench-like tasks, written by `openafm annotate init --tasks`."""

from openafm.annotation.environments.tau_bench import tau_tools

TOOLS = tau_tools({folder!r}, digest={digest!r})
'''


def _check_folders(folder: Path, project: Path) -> None:
    for name in ("tools/__init__.py", "data"):
        if not (folder / name).exists():
            raise ProjectError(
                f"{folder} has no {name}; pass the folder of a domain of τ-bench-like tasks, such as tau_bench/envs/retail"
            )
    if project.exists() and (not project.is_dir() or any(project.iterdir())):
        raise ProjectError(f"{project} is not an empty folder; choose a new one")


def _policy(folder: Path, notes: list[str]) -> str:
    path = folder / "wiki.md"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    notes.append("there is no wiki.md; the policy is empty")
    return ""


def _scenarios(folder: Path, tools: set[str]) -> tuple[list[Scenario], list[str]]:
    found: list[Scenario] = []
    notes = ["the simulated user is not run: an annotator plays the user, whose instruction is the query of a scenario"]
    notes += _clock_notes(folder)
    tasks = _tasks(folder, notes)
    for id, task in tasks.items():
        outputs = list(getattr(task, "outputs", ()))
        found.append(
            Scenario(
                id=id,
                query=task.instruction,
                goal="Play the user of this instruction; the final state is that of the reference calls.",
                calls=tuple(ToolCall(name=a.name, arguments=dict(a.kwargs)) for a in task.actions if a.name != _RESPOND),
                answer=outputs[0] if len(outputs) == 1 else "",
                extra={"user_id": getattr(task, "user_id", ""), "outputs": outputs},
            )
        )
    if several := sum(len(each.extra["outputs"]) > 1 for each in found):
        notes.append(f"{several} tasks require several texts in replies; they are in 'outputs' and not checked")
    if responses := sum(any(action.name == _RESPOND for action in task.actions) for task in tasks.values()):
        notes.append(f"{responses} tasks have actions 'respond', which are not tools; they were left out")
    unknown = {call.name for each in found for call in each.calls} - tools
    notes += [f"reference calls use the tool {name}, which the copy does not have" for name in sorted(unknown)]
    return found, notes


def _tasks(folder: Path, notes: list[str]) -> dict[str, Any]:
    """Return the tasks of a copy by scenario id; a note names each file that cannot be imported."""
    found: dict[str, Any] = {}
    with _packages(folder) as package:
        for path in sorted(folder.glob("tasks*.py")):
            split = path.stem.removeprefix("tasks").strip("_") or "task"
            try:
                values = vars(importlib.import_module(f"{package}.{path.stem}")).values()
            except Exception as error:
                notes.append(f"{path.name} was left out: {type(error).__name__}: {error}")
                continue
            listed = (value for value in values if isinstance(value, list) and value and hasattr(value[0], "instruction"))
            found |= {f"{split}-{number}": task for number, task in enumerate(next(listed, []))}
    return found


def _clock_notes(folder: Path) -> list[str]:
    found = []
    for path in sorted((folder / "tools").glob("*.py")):
        try:
            check_deterministic(path)
        except ToolFileError as error:
            found.append(f"a replay may differ: {error}")
    return found


@contextlib.contextmanager
def _packages(folder: Path) -> Iterator[str]:
    """Make the packages above `folder` importable without executing them; yield the folder's name as a package.

    Modules of an earlier copy of the same names are set aside, and those of this one are removed at the end.
    """
    packages = [folder]
    while (packages[0].parent / "__init__.py").exists():
        packages.insert(0, packages[0].parent)
    root, name = packages[0].name, ""
    before = {key: sys.modules.pop(key) for key in list(sys.modules) if key.split(".")[0] == root}
    try:
        for each in packages:
            name = f"{name}.{each.name}" if name else each.name
            module = types.ModuleType(name)
            module.__path__ = [str(each)]
            sys.modules[name] = module
        yield name
    finally:
        for key in [key for key in sys.modules if key.split(".")[0] == root]:
            del sys.modules[key]
        sys.modules.update(before)


def _digest(folder: Path) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted((folder / "tools").rglob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _write_json(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n", encoding="utf-8")


def _items(table: dict[str, Any] | list[Any]) -> list[tuple[str, Any]]:
    if isinstance(table, dict):
        return [(str(key), value) for key, value in table.items()]
    return [(str(number), value) for number, value in enumerate(table)]


def _row(id: str, value: Any) -> dict[str, Any]:
    return {"id": id, "data": value if isinstance(value, dict | list) else compact_json(value)}


def _read_table(rows: Mapping[str, str], is_list: bool) -> dict[str, Any] | list[Any]:
    values = {id: json.loads(text) for id, text in rows.items()}
    return list(values.values()) if is_list else values


def _rows(table: dict[str, Any] | list[Any]) -> dict[str, str]:
    return {id: compact_json(value) for id, value in _items(table)}


def _store(world: World, name: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    for id in before.keys() - after.keys():
        world.run(f"DELETE FROM {quoted(name)} WHERE id = ?", id)
    for id, text in after.items():
        if id not in before:
            world.run(f"INSERT INTO {quoted(name)} (id, data) VALUES (?, ?)", id, text)
        elif before[id] != text:
            world.run(f"UPDATE {quoted(name)} SET data = ? WHERE id = ?", text, id)
