"""Tools that a model may call while it answers (report 7). The grammar guarantees their names and arguments."""

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
    """Base class of tools: `name`, `description`, `arguments_schema` and `async def call(self, args)`.

    The model reads the output of `call` as untrusted text: a string unchanged; `GeneratedContent`, an instance of a
    generable class or any JSON value as compact JSON; `Image`, a `Prompt` or a list with an `Image` as text and images, if
    the model sees images. An exception ends the request with `ToolCallError`.

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
        """Return the schema of the arguments, an object."""

    @abstractmethod
    async def call(self, args: GeneratedContent) -> Any:
        """Run the tool. Calls of one answer run concurrently."""

    def definition(self) -> ToolDefinition:
        """Return the definition that the model reads.

        Raises:
            TypeError: an attribute of the class is missing or has the wrong type.
            ValueError: the name has control characters.
            InvalidGenerationSchemaError: the arguments cannot be generated.
        """
        for attribute in ("name", "description"):
            value = getattr(self, attribute, None)
            if not isinstance(value, str) or not value:
                raise TypeError(f"the tool {type(self).__name__} needs a nonempty string '{attribute}', got {value!r}")
        if not self.name.isprintable():
            raise ValueError(f"the name {self.name!r} of a tool has control characters; remove them")
        if not inspect.iscoroutinefunction(self.call):
            raise TypeError(f"'call' of the tool {type(self).__name__} must be an async function; write 'async def call'")
        schema = self.arguments_schema
        if not isinstance(schema, GenerationSchema):
            raise TypeError(
                f"'arguments_schema' of the tool {type(self).__name__} must be a GenerationSchema, got {schema!r}"
            )
        return ToolDefinition(name=self.name, description=self.description, parameters=schema.to_dict())


class FunctionTool(Tool):
    """Hold a function as a tool, made by `@tool`. Calling the tool calls the function."""

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
    """Make a function a tool: `@tool` or `@tool(name=..., description=...)`.

    The docstring is the default description, the annotated parameters are the arguments. A coroutine function runs in the
    event loop of the request, another function in a thread.

    Raises:
        InvalidGenerationSchemaError: a parameter has no annotation, or one of an unsupported type.
    """
    local_names = sys._getframe(1).f_locals  # annotations may name local classes
    if function is None:
        return lambda decorated: FunctionTool(decorated, name, description, local_names)
    return FunctionTool(function, name, description, local_names)


@dataclass(frozen=True, kw_only=True)
class ToolLimits(Config):
    """Limits on the tool calls of a request.

    Attributes:
        rounds: consecutive answers that may call tools. The next one must be a response.
        calls: tool calls of a request, all rounds together. After them the next answer must be a response.
        call_seconds: timeout of a call, which then fails with `ToolCallError`; None: no timeout.
        request_seconds: timeout of the request, which then fails with `RequestTimeoutError`.
        output_characters: maximum length of an output; a longer one fails with `ToolCallError`.
    """

    rounds: int = 8
    calls: int = 32
    call_seconds: float | None = 60.0
    request_seconds: float | None = None
    output_characters: int = 100_000

    def __post_init__(self) -> None:
        self.require(self.rounds > 0, f"rounds must be positive, got {self.rounds}")
        self.require(self.calls > 0, f"calls must be positive, got {self.calls}")
        for name in ("call_seconds", "request_seconds"):
            seconds = getattr(self, name)
            self.require(seconds is None or seconds > 0, f"{name} must be positive, got {seconds}")
        self.require(self.output_characters > 0, f"output_characters must be positive, got {self.output_characters}")


def by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Return tools by name.

    Raises:
        TypeError: an element is not a tool.
        ValueError: two tools share a name.
    """
    named: dict[str, Tool] = {}
    if isinstance(tools, Tool):
        raise TypeError(f"tools must be a list, got a single tool; write [{tools.name}]")
    for each in tools:
        if not isinstance(each, Tool):
            raise TypeError(f"a tool is an instance of fm.Tool or a function with @fm.tool, got {each!r}")
        if each.name in named:
            raise ValueError(f"two tools named '{each.name}'; rename one")
        named[each.name] = each
    return named
