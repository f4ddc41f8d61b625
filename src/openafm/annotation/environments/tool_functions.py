"""Tools of a project: the public functions of its `tools.py`, with schemas from their annotations and docstrings."""

from __future__ import annotations

import ast
import copy
import importlib.util
import inspect
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from openafm.annotation.environments.world import World
from openafm.core.errors import OpenAFMError
from openafm.framework.errors import FoundationModelsError
from openafm.framework.schema.content import GeneratedContent
from openafm.framework.schema.function_schema import FunctionSchema
from openafm.tokenizer.conversation import ToolDefinition

_MODULE = "openafm_project_tools"
_CLOCKS = {("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today"), ("time", "time")}
_RANDOM_MODULES = {"secrets", "uuid"}


class ToolFileError(OpenAFMError):
    """A project's `tools.py` cannot be imported, or a function in it cannot be a tool."""


class ProjectTool(ABC):
    """A tool of a project: a public function of its `tools.py`, or an entry of the list `TOOLS` there."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name that the model calls."""

    @abstractmethod
    def definition(self) -> ToolDefinition:
        """Return the definition that the model reads.

        Raises:
            ToolFileError: a parameter has no type, or one that cannot be generated.
        """

    @abstractmethod
    def call(self, world: World, arguments: Mapping[str, Any]) -> tuple[Any, bool]:
        """Return the tool's result and whether it changed its arguments. Its exceptions pass through."""


@dataclass(frozen=True)
class ToolFunction(ProjectTool):
    """Hold a function of `tools.py` as a tool."""

    function: Callable[..., Any]

    @property
    def name(self) -> str:
        return self.function.__name__

    @cached_property
    def is_stateful(self) -> bool:
        """True if the function receives the `World`."""
        return next(iter(inspect.signature(self.function).parameters), "") == "world"

    def definition(self) -> ToolDefinition:
        description = (inspect.getdoc(self.function) or self.name).split("\n\n")[0].replace("\n", " ")
        return ToolDefinition(name=self.name, description=description, parameters=self._schema.schema.to_dict())

    def call(self, world: World, arguments: Mapping[str, Any]) -> tuple[Any, bool]:
        passed = self._schema.call_arguments(GeneratedContent(dict(arguments)))
        before = copy.deepcopy(passed)
        result = self._bound(world)(**passed)
        return result, passed != before

    def _bound(self, world: Any) -> Callable[..., Any]:
        return types.MethodType(self.function, world) if self.is_stateful else self.function

    @cached_property
    def _schema(self) -> FunctionSchema:
        try:
            return FunctionSchema(self._bound(object()))
        except FoundationModelsError as error:
            raise ToolFileError(f"the tool {self.name}: {error}") from error


def load_tools(path: Path) -> dict[str, ProjectTool]:
    """Import a `tools.py` and return its tools by name: public functions in the order of the file, then `TOOLS`.

    Raises:
        ToolFileError: the file cannot be imported, has no public function, or reads the system's clock or random numbers.
    """
    check_deterministic(path)
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise ToolFileError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ToolFileError:
        raise
    except Exception as error:
        raise ToolFileError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    functions = [value for value in vars(module).values() if inspect.isfunction(value) and value.__module__ == _MODULE]
    tools: dict[str, ProjectTool] = {f.__name__: ToolFunction(f) for f in functions if not f.__name__.startswith("_")}
    tools |= {tool.name: tool for tool in getattr(module, "TOOLS", ()) if isinstance(tool, ProjectTool)}
    if not tools:
        raise ToolFileError(f"{path} has no public function and no list TOOLS; add a function, each one is a tool")
    return tools


def check_deterministic(path: Path) -> None:
    """Check that tools use the time and random numbers of the `World`, so that a replay gives the same state.

    Raises:
        ToolFileError: they do not, or the file is not Python.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError) as error:
        raise ToolFileError(f"{path} cannot be read: {error}") from error
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, name = node.func.value, node.func.attr
        owner_name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
        is_random = owner_name in _RANDOM_MODULES or (
            isinstance(owner, ast.Name) and owner.id == "random" and name != "Random"
        )
        if is_random or (owner_name, name) in _CLOCKS:
            raise ToolFileError(
                f"{path}, line {node.lineno}: {owner_name}.{name}() differs in every run; use world.now and world.random, "
                "so that a replay gives the same state"
            )
