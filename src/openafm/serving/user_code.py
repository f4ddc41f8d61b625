"""Tools and types of the user's Python files, for the playground."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openafm.core.registry import load_plugin
from openafm.framework.errors import FoundationModelsError
from openafm.framework.schema.generable import Generable
from openafm.framework.tools.runner import ToolRunner
from openafm.framework.tools.tool import Tool, ToolLimits, by_name
from openafm.serving.config import ServerSetupError


def new_token() -> str:
    """Return a token that cannot be guessed."""
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, kw_only=True)
class UserCode:
    """Hold the tools and the schemas of imported files, by name, and the token that calls of the tools need.

    `openafm play` passes the token in the fragment of the page's address, which no other program of the machine reads.
    """

    runner: ToolRunner = field(default_factory=lambda: ToolRunner(tools={}, limits=ToolLimits()))
    schemas: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    token: str = field(default_factory=new_token, repr=False)

    @property
    def tools(self) -> Mapping[str, Tool]:
        return self.runner.tools


def load_user_code(tool_files: Sequence[str], type_files: Sequence[str], token: str = "") -> UserCode:
    """Import files, or modules by name, and return their tools and the schemas of their `@generable` classes.

    Args:
        token: what calls of the tools need; empty: a new one, which no page has.

    Raises:
        ServerSetupError: a file has no tool or no generable class, or a type cannot be generated.
        PluginError: a file cannot be imported.
    """
    tools: list[Tool] = []
    for file in tool_files:
        found = [value for value in vars(load_plugin(file)).values() if isinstance(value, Tool)]
        if not found:
            raise ServerSetupError(f"{file} has no tools; decorate functions with @fm.tool, or create instances of fm.Tool")
        tools += found
    schemas: dict[str, dict[str, Any]] = {}
    for file in type_files:
        classes = {name: value for name, value in vars(load_plugin(file)).items() if _is_generable(value)}
        if not classes:
            raise ServerSetupError(f"{file} has no generable class; decorate classes with @fm.generable")
        try:
            schemas |= {name: found.generation_schema().to_dict() for name, found in classes.items()}
        except FoundationModelsError as error:
            raise ServerSetupError(f"a class of {file} cannot be generated: {error}") from error
    try:
        runner = ToolRunner(tools=by_name(tools), limits=ToolLimits())
        return UserCode(runner=runner, schemas=schemas, token=token or new_token())
    except ValueError as error:
        raise ServerSetupError(f"{error}; the tools of all files need different names") from error


def _is_generable(value: Any) -> bool:
    return isinstance(value, type) and value is not Generable and hasattr(value, "generation_schema")
