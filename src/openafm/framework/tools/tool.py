"""Tools: what a model may call while it answers (report 7). Names and arguments are guaranteed by the grammar."""

from __future__ import annotations

import asyncio
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, overload

from openafm.core.config import Config
from openafm.framework.daemon import in_daemon_thread
from openafm.framework.schema.content import GeneratedContent
from openafm.framework.schema.function_schema import FunctionSchema
from openafm.framework.schema.schema import GenerationSchema
from openafm.tokenizer.conversation import ToolDefinition


class Tool(ABC):
    """A tool as a class: `name`, `description`, `arguments_schema`, and `async def call(self, args)`.

    What `call` returns goes to the model as untrusted text: a string as it is; `GeneratedContent`, an instance of a
    generable class or any JSON value as compact JSON. What it raises ends the request as `ToolCallError`.

    Raises:
        TypeError: `call` is not `async`, or `name` or `description` is not text.
    """

    name: str
    description: str

    def __init__(self) -> None:
        self.definition()

    @property
    @abstractmethod
    def arguments_schema(self) -> GenerationSchema:
        """The schema of the arguments: an object."""

    @abstractmethod
    async def call(self, args: GeneratedContent) -> Any:
        """Do the work. Several calls of one answer run at the same time."""

    def definition(self) -> ToolDefinition:
        """The tool as the model sees it.

        Raises:
            TypeError: the class is not a whole tool.
            InvalidGenerationSchemaError: its arguments cannot be generated.
        """
        for attribute in ("name", "description"):
            value = getattr(self, attribute, None)
            if not isinstance(value, str) or not value:
                raise TypeError(f"the tool {type(self).__name__} needs a '{attribute}' that is text, got {value!r}")
        if not inspect.iscoroutinefunction(self.call):
            raise TypeError(f"'call' of the tool {type(self).__name__} must be an async function; write 'async def call'")
        schema = self.arguments_schema
        if not isinstance(schema, GenerationSchema):
            raise TypeError(
                f"'arguments_schema' of the tool {type(self).__name__} must be a GenerationSchema, got {schema!r}"
            )
        return ToolDefinition(name=self.name, description=self.description, parameters=schema.to_dict())


class FunctionTool(Tool):
    """A function as a tool; made by `@tool`. Calling it calls the function."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str | None = None,
        description: str | None = None,
        local_names: Mapping[str, Any] | None = None,
    ) -> None:
        self.function = function
        self.name = name or function.__name__
        self.description = description or (inspect.getdoc(function) or self.name).split("\n\n")[0].replace("\n", " ")
        self._signature = FunctionSchema(function, local_names)
        super().__init__()

    @property
    def arguments_schema(self) -> GenerationSchema:
        return self._signature.schema

    async def call(self, args: GeneratedContent) -> Any:
        arguments = self._signature.call_arguments(args)
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**arguments)
        return await asyncio.wrap_future(in_daemon_thread(lambda: self.function(**arguments), "openafm-tool"))

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.function(*arguments, **keywords)


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...
@overload
def tool(*, name: str | None = None, description: str | None = None) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(function: Callable[..., Any] | None = None, /, *, name: str | None = None, description: str | None = None) -> Any:
    """Make a function a tool: `@tool` or `@tool(name=..., description=...)`; its docstring says what it does.

    Its annotated parameters are the arguments, of every type that can be generated. `async` or not: a plain function runs in
    a thread of its own.

    Raises:
        InvalidGenerationSchemaError: a parameter without a type, or of one that cannot be generated.
    """
    local_names = sys._getframe(1).f_locals  # annotations may name classes that stand inside a function
    if function is None:
        return lambda decorated: FunctionTool(decorated, name, description, local_names)
    return FunctionTool(function, name, description, local_names)


@dataclass(frozen=True, kw_only=True)
class ToolLimits(Config):
    """How far a request may go with its tools.

    Attributes:
        rounds: answers in a row that may call tools; the one after them must be a response.
        call_seconds: after which a call fails with `ToolCallError`; None: it may take forever.
        request_seconds: after which the whole request fails with `RequestTimeoutError`.
        output_characters: longest output of a call; a longer one fails with `ToolCallError`.
    """

    rounds: int = 8
    call_seconds: float | None = 60.0
    request_seconds: float | None = None
    output_characters: int = 100_000

    def __post_init__(self) -> None:
        self.require(self.rounds > 0, f"rounds must be positive, got {self.rounds}")
        for name in ("call_seconds", "request_seconds"):
            seconds = getattr(self, name)
            self.require(seconds is None or seconds > 0, f"{name} must be positive, got {seconds}")
        self.require(self.output_characters > 0, f"output_characters must be positive, got {self.output_characters}")


def by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    """The tools of a session by name.

    Raises:
        TypeError: one that is no tool.
        ValueError: two of the same name.
    """
    named: dict[str, Tool] = {}
    if isinstance(tools, Tool):
        raise TypeError(f"tools are a list, also if there is only one: [{tools.name}]")
    for each in tools:
        if not isinstance(each, Tool):
            raise TypeError(f"a tool is an instance of fm.Tool or a function with @fm.tool, got {each!r}")
        if each.name in named:
            raise ValueError(f"two tools named '{each.name}'; rename one")
        named[each.name] = each
    return named
