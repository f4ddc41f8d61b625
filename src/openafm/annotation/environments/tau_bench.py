"""Projects from a user's copy of τ-bench-like tasks (arXiv 2406.12045). The copy's tools run on the project's database.

A domain of a copy, such as `tau_bench/envs/retail`, is a folder with

    tools/        ALL_TOOLS, classes with `invoke(data, **arguments)` and `get_info()`
    data/*.json   tables: objects by id, or lists
    tasks*.py     lists of tasks with `instruction`, `actions` and `outputs`
    wiki.md       the policy
"""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openafm.annotation.environments.project import Scenario, check_new_folder
from openafm.annotation.environments.task_copies import (
    CopiedPackage,
    ProjectFiles,
    Rows,
    TaskImport,
    check_unchanged,
    code_digest,
    read_tables,
    store_rows,
)
from openafm.annotation.environments.tool_functions import ProjectTool, ToolFileError, check_deterministic
from openafm.annotation.environments.world import World
from openafm.tokenizer.conversation import ToolCall, ToolDefinition
from openafm.tokenizer.schema_text import compact_json

_CODE = ("tools",)
_RESPOND = "respond"  # a pseudo action that speaks to the user
_LISTED = "openafm_list"
"""The table with the names of tables that are lists in the copy."""


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
        before = read_tables(world)
        data = {name: _read_table(rows, name in listed) for name, rows in before.items()}
        passed = copy.deepcopy(dict(arguments))
        result = self.tool.invoke(data, **passed)
        for name, rows in before.items():
            store_rows(world, name, rows, _rows(data[name]))
        return result, passed != arguments


def tau_tools(folder: str, digest: str) -> list[TauTool]:
    """Return the tools of a copy (for the `tools.py` that `import_tau_bench` writes).

    Raises:
        ToolFileError: the copy is missing or changed.
    """
    path = Path(folder)
    check_unchanged(path, _CODE, digest)
    with CopiedPackage(path).active() as name:
        try:
            return [TauTool(tool) for tool in importlib.import_module(f"{name}.tools").ALL_TOOLS]
        except Exception as error:
            raise ToolFileError(f"the tools in {path} cannot be imported: {type(error).__name__}: {error}") from error


def import_tau_bench(folder: Path, project: Path) -> TaskImport:
    """Write a project whose tools, tables, policy and scenarios are those of a copy.

    Raises:
        ProjectError: the folder is not a domain of such tasks, or the project folder has files.
        ToolFileError: the tools cannot be imported.
    """
    folder = folder.resolve()
    check_new_folder(project)
    digest = code_digest(folder, _CODE)
    tools = tau_tools(str(folder), digest)
    scenarios, notes = _scenarios(folder, {tool.name for tool in tools})
    tables = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((folder / "data").glob("*.json"))}
    wrong = [name for name, table in tables.items() if not isinstance(table, dict | list)]
    notes += [f"data/{name}.json is not an object or a list and was left out" for name in wrong]
    kept = {name: table for name, table in tables.items() if name not in wrong}
    ProjectFiles(
        title=folder.name,
        tools=_TOOLS.format(folder=str(folder), digest=digest),
        policy=_policy(folder, notes),
        tables={name: _items(table) for name, table in kept.items()},
        scenarios=scenarios,
        listed={_LISTED: [name for name, table in kept.items() if isinstance(table, list)]},
    ).write(project)
    rows = {name: len(table) for name, table in kept.items()}
    return TaskImport(tools=len(tools), scenarios=len(scenarios), rows=rows, notes=tuple(notes))


_TOOLS = '''"""Tools of a copy of τ-bench-like tasks, written by `openafm annotate init --tasks`."""

from openafm.annotation.environments.tau_bench import tau_tools

TOOLS = tau_tools({folder!r}, digest={digest!r})
'''


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
    with CopiedPackage(folder).active() as package:
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


def _items(table: dict[str, Any] | list[Any]) -> list[tuple[str, Any]]:
    if isinstance(table, dict):
        return [(str(key), value) for key, value in table.items()]
    return [(str(number), value) for number, value in enumerate(table)]


def _read_table(rows: Rows, is_list: bool) -> dict[str, Any] | list[Any]:
    values = {id: json.loads(text) for id, text in rows.items()}
    return list(values.values()) if is_list else values


def _rows(table: dict[str, Any] | list[Any]) -> Rows:
    return {id: compact_json(value) for id, value in _items(table)}
