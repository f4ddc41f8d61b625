"""Projects from a user's copy of ToolSandbox-like tasks (arXiv 2408.04682). The copy's tools run on the project's database.

A copy is a package, such as `ToolSandbox/tool_sandbox`, with

    common/execution_context.py   ExecutionContext, tables by DatabaseNamespace; new_context(context) makes one current
    common/tool_discovery.py      ToolBackend
    tools/*.py                    functions with `@register_as_tool(...)` that read and change the current context
    scenarios/                    named_scenarios(...): starting contexts, messages, milestones by name

A call loads the rows of the project into a new context, runs the function and stores the rows that it changed.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from openafm.annotation.environments.call_clock import call_clock
from openafm.annotation.environments.task_copies import (
    CopiedPackage,
    Rows,
    check_unchanged,
    read_tables,
    store_rows,
)
from openafm.annotation.environments.tool_functions import ProjectTool, ToolFileError
from openafm.annotation.environments.world import World
from openafm.framework.schema.function_schema import parameter_descriptions
from openafm.tokenizer.conversation import ToolDefinition
from openafm.tokenizer.schema_text import compact_json

CODE = ("tools", "common")
"""The folders whose code runs in calls."""
MESSAGES = "SANDBOX"
"""The table of messages, which is not part of the state."""
_NETWORK = {"aiohttp", "http", "httpx", "requests", "socket", "urllib"}


class SandboxLibrary:
    """The imported modules of a copy.

    Args:
        folder: the package.

    Raises:
        ToolFileError: the copy, or a package that it needs, cannot be imported.
    """

    def __init__(self, folder: Path) -> None:
        self.package = CopiedPackage(folder)
        self.left_out: dict[str, str] = {}
        """Registered functions that cannot be tools of a project, with the reason."""
        with self.package.active() as name:
            try:
                self._contexts = importlib.import_module(f"{name}.common.execution_context")
                self.tools = {tool.name: tool for tool in self._find_tools(folder / "tools", f"{name}.tools")}
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise ToolFileError(f"{folder} cannot be imported; install what it needs: {reason}") from error
        self.namespaces = [each for each in self._contexts.DatabaseNamespace if each.name != MESSAGES]
        self.messages = self._contexts.DatabaseNamespace[MESSAGES]

    def scenarios(self) -> Mapping[str, Any]:
        """Return the scenarios of the copy by name.

        Raises:
            ToolFileError: they cannot be imported.
        """
        with self.package.active() as name:
            try:
                backend = importlib.import_module(f"{name}.common.tool_discovery").ToolBackend.DEFAULT
                named: Callable[..., Mapping[str, Any]] = importlib.import_module(f"{name}.scenarios").named_scenarios
                return named(preferred_tool_backend=backend)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise ToolFileError(f"the scenarios of {name} cannot be imported: {reason}") from error

    def tables(self, context: Any) -> dict[str, Rows]:
        """Return the rows of a context by table, without messages."""
        return {each.name.lower(): _rows(context.get_database(namespace=each).to_dicts()) for each in self.namespaces}

    def run(self, function: Callable[..., Any], world: World, arguments: Mapping[str, Any]) -> Any:
        """Return the result of a function of the copy on the tables of a project, and store the rows that it changes."""
        before = read_tables(world)
        with self.package.active(), call_clock(self.package.modules(), world):
            context = self._context(before)
            with self._contexts.new_context(context):
                result = function(**arguments)
            after = self.tables(context)
        for table, rows in before.items():
            store_rows(world, table, rows, after[table])
        return result

    def _context(self, tables: Mapping[str, Rows]) -> Any:
        context = self._contexts.ExecutionContext()
        for namespace in self.namespaces:
            if context.get_database(namespace=namespace).to_dicts():  # rows that every context starts with
                context.remove_from_database(namespace=namespace, predicate=self._contexts.pl.lit(True))
            if rows := [json.loads(text) for text in tables[namespace.name.lower()].values()]:
                context.add_to_database(namespace=namespace, rows=rows)
        return context

    def _find_tools(self, folder: Path, package: str) -> Iterator[SandboxTool]:
        for path in sorted(folder.glob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            names = [each.name for each in tree.body if isinstance(each, ast.FunctionDef) and _is_registered(each)]
            if uses_network(tree):
                self.left_out |= dict.fromkeys(names, "needs the network")
                continue
            module = importlib.import_module(f"{package}.{path.stem}") if names else None
            for name in names:
                tool = SandboxTool(getattr(module, name), self)
                try:
                    tool.definition()
                except Exception as error:  # annotations are arbitrary expressions
                    self.left_out[name] = f"has no schema: {type(error).__name__}: {error!s:.200}"
                else:
                    yield tool


@dataclass(frozen=True)
class SandboxTool(ProjectTool):
    """Run a registered function of a copy."""

    function: Callable[..., Any]
    library: SandboxLibrary = field(repr=False)

    @property
    def name(self) -> str:
        return str(self.function.__name__)

    def definition(self) -> ToolDefinition:
        text = inspect.getdoc(self.function) or self.name
        descriptions = parameter_descriptions(text)
        properties = {}
        for name, adapter in self._adapters.items():
            about = {"description": descriptions[name]} if name in descriptions else {}
            properties[name] = {**adapter.json_schema(), **about}
        required = [name for name, each in self._parameters.items() if each.default is each.empty]
        parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        return ToolDefinition(name=self.name, description=text.split("\n\n")[0].replace("\n", " "), parameters=parameters)

    def call(self, world: World, arguments: Mapping[str, Any]) -> tuple[Any, bool]:
        passed = {name: self._adapters[name].validate_python(value) for name, value in arguments.items()}
        before = copy.deepcopy(passed)
        return self.library.run(self.function, world, passed), passed != before

    @cached_property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function).parameters

    @cached_property
    def _adapters(self) -> dict[str, Any]:
        from pydantic import TypeAdapter

        hints = typing.get_type_hints(inspect.unwrap(self.function))
        root = self.library.package.name.split(".")[0]
        return {name: TypeAdapter(_json_type(hints[name], root)) for name in self._parameters}


_libraries: dict[tuple[str, str], SandboxLibrary] = {}  # a package that extends polars is imported once in a process


def sandbox_tools(folder: str, digest: str) -> list[SandboxTool]:
    """Return the tools of a copy (for the `tools.py` of an imported project).

    Raises:
        ToolFileError: the copy is missing or changed, or cannot be imported.
    """
    path = Path(folder)
    check_unchanged(path, CODE, digest)
    if (folder, digest) not in _libraries:
        _libraries[folder, digest] = SandboxLibrary(path)
    return list(_libraries[folder, digest].tools.values())


def uses_network(tree: ast.Module) -> bool:
    """Return True if a module imports a client of network services."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
    return bool(found & _NETWORK)


def _is_registered(function: ast.FunctionDef) -> bool:
    """Return True if a decorator registers a function as a tool that agents see."""
    texts = [ast.unparse(each) for each in function.decorator_list]
    return any(
        text.split("(")[0].split(".")[-1] == "register_as_tool" and ("visible_to" not in text or "AGENT" in text)
        for text in texts
    )


def _json_type(hint: Any, root: str) -> Any:
    """Return a type hint without the members of a union that mark omitted arguments: classes of the copy."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    members = [each for each in typing.get_args(hint) if getattr(each, "__module__", "").split(".")[0] != root]
    return typing.Union[tuple(members)]  # noqa: UP007 - built from a tuple


def _rows(rows: list[dict[str, Any]]) -> Rows:
    """Return rows by id: the first column `..._id` if its values differ, else the position."""
    key = next((name for name in (rows[0] if rows else ()) if name.endswith("_id")), None)
    ids = [] if key is None else [str(row.get(key)) for row in rows]
    if len(set(ids)) < len(rows):
        ids = [str(number) for number in range(len(rows))]
    return {id: compact_json(row) for id, row in zip(ids, rows, strict=True)}
