"""Model Context Protocol: tools of MCP servers in a session, and our tools on an MCP server (extra `mcp`).

A connection runs in its own event loop and thread, so that blocking and async requests can both call its tools.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from openafm.core.errors import OpenAFMError
from openafm.framework.daemon import in_daemon_thread
from openafm.framework.errors import (
    AssetsUnavailableError,
    FoundationModelsError,
    InvalidGenerationSchemaError,
    UnsupportedGuideError,
)
from openafm.framework.schema.closing import closed_schema
from openafm.framework.schema.content import GeneratedContent
from openafm.framework.schema.schema import GenerationSchema
from openafm.framework.schema.validation import Validator
from openafm.framework.schema.wire_schema import WireSchema
from openafm.framework.tools.runner import ToolOutputError, ToolRunner
from openafm.framework.tools.tool import Tool, ToolLimits, by_name
from openafm.runtime.decoding.schema_lowering import UnsupportedSchemaError
from openafm.runtime.decoding.schema_rewrite import enforceable_schema
from openafm.tokenizer.conversation import JsonSchema, ToolCall, ToolDefinition
from openafm.tokenizer.schema_text import SchemaTextError, compact_json, schema_text

if TYPE_CHECKING:
    import mcp_types
    from mcp import Client
    from mcp.server import Server

_MAX_PAGES = 100
_MAX_TOOLS = 1_000
_MAX_LISTED_CHARACTERS = 20_000_000
_MAX_SCHEMA_CHARACTERS = 1_000_000
_CLOSE_SECONDS = 10.0
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")
_CONTROL = re.compile(r"[^\S \n]|[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_NEEDS_MCP = "the package mcp is missing; install openafm with the extra 'mcp'"


class McpError(FoundationModelsError):
    """An MCP server cannot be reached, or violates the protocol."""


class McpToolError(OpenAFMError):
    """A call failed on the MCP server; the message is the server's."""


def from_mcp(server: Any, *, names: Collection[str] | None = None, connect_seconds: float = 30.0) -> McpConnection:
    """Return a context manager (`with` or `async with`) of the tools of an MCP server:

        with fm.tools.from_mcp("http://localhost:8000/mcp") as tools:
            session = fm.LanguageModelSession(tools=tools)

    The grammar guarantees their arguments, as for other tools.

    Args:
        server: the address of a server; a command that starts one, as text or as a list; a server object of this process;
            `mcp.StdioServerParameters`; or a `mcp.Client`, whose open connection is used and stays open.
        names: the tools to use; all by default.
        connect_seconds: timeout of connecting and listing the tools.
    """
    return McpConnection(server, names, connect_seconds)


def serve_mcp(tools: Sequence[Tool], *, name: str = "openafm", limits: ToolLimits | None = None) -> Server[Any]:
    """Return an MCP server of `tools`, for a transport of the package `mcp` or for `from_mcp`.

    Raises:
        TypeError, ValueError: as `LanguageModelSession`.
        AssetsUnavailableError: the package `mcp` is not installed.
    """
    try:
        import mcp_types as types
        from mcp.server import Server
    except ImportError as error:
        raise AssetsUnavailableError(_NEEDS_MCP) from error

    runner = ToolRunner(tools=by_name(tools), limits=limits or ToolLimits())
    definitions = {tool.name: tool.definition() for tool in tools}
    schemas = {name: WireSchema(definition.parameters) for name, definition in definitions.items()}

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        listed = [
            types.Tool(name=each.name, description=each.description, input_schema=each.parameters)
            for each in definitions.values()
        ]
        return types.ListToolsResult(tools=listed)

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            if params.name not in schemas:
                raise McpToolError(f"no tool '{params.name}'; available tools: {', '.join(schemas)}")
            arguments = schemas[params.name].read(compact_json(params.arguments or {}))
            text, failed = await runner.call(ToolCall(name=params.name, arguments=arguments)), False
        except Exception as error:  # reported to the client
            text, failed = f"{type(error).__name__}: {error}", True
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=failed)

    return Server(name, on_list_tools=list_tools, on_call_tool=call_tool)


def serve_mcp_stdio(tools: Sequence[Tool], *, name: str = "openafm") -> None:
    """Serve `tools` on standard input and output until the client closes them."""
    server = serve_mcp(tools, name=name)

    async def run() -> None:
        from mcp.server.stdio import stdio_server

        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    asyncio.run(run())


class McpTool(Tool):
    """A tool of an MCP server."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop, listed: mcp_types.Tool) -> None:
        self.name = listed.name
        self.description = _CONTROL.sub(" ", listed.description or "").strip() or listed.name
        if not _NAME.fullmatch(listed.name):
            raise McpError(
                f"the server has a tool named {listed.name!r:.100}; names are 1 to 128 of A-Z, a-z, 0-9, '_', '.', '/', '-';"
                " select other tools with 'names'"
            )
        self._schema = _checked_schema(listed.name, dict(listed.input_schema))
        self._client, self._loop = client, loop
        super().__init__()

    @property
    def arguments_schema(self) -> GenerationSchema:
        return _GivenSchema(self._schema)

    def definition(self) -> ToolDefinition:
        return ToolDefinition(name=self.name, description=self.description, parameters=self._schema)

    async def call(self, args: GeneratedContent) -> str:
        """Call the tool on the server.

        Raises:
            McpToolError: the call failed on the server.
            ToolOutputError: the output is neither text nor JSON.
            McpError: the connection is closed.
        """
        if self._loop.is_closed():
            raise McpError(f"the connection to the server of '{self.name}' is closed; use its tools inside the 'with' block")
        request = self._client.call_tool(self.name, args.value())
        try:
            if asyncio.get_running_loop() is self._loop:
                result = await request
            else:
                result = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(request, self._loop))
        except Exception as error:
            raise McpError(f"the server of '{self.name}' did not answer: {error}") from error
        text = _result_text(result)
        if result.is_error:
            raise McpToolError(text or "the tool failed without a message")
        return text


@dataclass(frozen=True)
class _OpenConnection:
    loop: asyncio.AbstractEventLoop
    stop: asyncio.Event
    tools: list[Tool]


class McpConnection:
    """Context manager of a connection to an MCP server. Entering returns the tools, leaving closes the connection.

    Raises, when entered:
        McpError: the server cannot be reached in time, violates the protocol, or lacks a requested tool.
        UnsupportedGuideError, InvalidGenerationSchemaError: the arguments of a tool cannot be generated.
        AssetsUnavailableError: the package `mcp` is not installed.
    """

    def __init__(self, server: Any, names: Collection[str] | None, connect_seconds: float = 30.0) -> None:
        self._server, self._names, self._connect_seconds = server, names, connect_seconds
        self._open: _OpenConnection | None = None
        self._ended: Future[None] | None = None

    def __enter__(self) -> list[Tool]:
        with self._mcp_errors():
            opening = self._connect()
            try:
                self._open = opening.result(self._connect_seconds)
            except futures.TimeoutError:
                raise self._timeout(opening) from None
        return self._open.tools

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._open is not None and self._ended is not None:
            with contextlib.suppress(Exception):  # errors of a connection that is closed anyway
                self._open.loop.call_soon_threadsafe(self._open.stop.set)
                self._ended.result(_CLOSE_SECONDS)

    async def __aenter__(self) -> list[Tool]:
        if _is_connected(self._server):
            return await _tools(self._server, asyncio.get_running_loop(), self._names)
        with self._mcp_errors():
            opening = self._connect()
            try:
                self._open = await asyncio.wait_for(asyncio.wrap_future(opening), self._connect_seconds)
            except TimeoutError:
                raise self._timeout(opening) from None
        return self._open.tools

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, traceback)

    def _timeout(self, opening: Future[_OpenConnection]) -> McpError:
        """Return the error of a timeout. The thread ends by itself, when its connection does."""
        opening.cancel()
        return McpError(
            f"no connection to the MCP server {self._server!r:.200} after {self._connect_seconds:g} s;"
            " raise connect_seconds to allow more"
        )

    def _connect(self) -> Future[_OpenConnection]:
        """Start connecting. Cancelling the returned future closes the connection."""
        opened: Future[_OpenConnection] = Future()
        self._ended = in_daemon_thread(lambda: asyncio.run(self._run(opened)), "openafm-mcp")
        self._ended.add_done_callback(lambda ended: None if opened.done() else opened.set_exception(_reason(ended)))
        return opened

    @contextlib.contextmanager
    def _mcp_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            root = _root(error)
            if isinstance(root, FoundationModelsError):
                raise root from None
            raise McpError(f"the MCP server {self._server!r:.200} cannot be used: {root}") from error

    async def _run(self, opened: Future[_OpenConnection]) -> None:
        if _is_connected(self._server):
            raise McpError("this client is connected in an event loop; use 'async with' in that loop")
        stop = asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(self._connect_seconds):
                client = await stack.enter_async_context(_client(self._server))
                tools = await _tools(client, loop, self._names)
            if opened.set_running_or_notify_cancel():
                opened.set_result(_OpenConnection(loop, stop, tools))
                await stop.wait()


async def _tools(client: Client, loop: asyncio.AbstractEventLoop, names: Collection[str] | None) -> list[Tool]:
    listed: list[mcp_types.Tool] = []
    num_characters, cursor = 0, None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        listed += page.tools
        num_characters += sum(len(str(each)) for each in page.tools)
        cursor = page.next_cursor
        if not cursor:
            break
        if len(listed) > _MAX_TOOLS:
            raise McpError(f"the server lists more than {_MAX_TOOLS:,} tools")
        if num_characters > _MAX_LISTED_CHARACTERS:
            raise McpError(f"the server lists tools with more than {_MAX_LISTED_CHARACTERS:,} characters")
    missing = set(names or ()) - {each.name for each in listed}
    if missing:
        raise McpError(f"the server has no tools named {', '.join(sorted(missing))}")
    return [McpTool(client, loop, each) for each in listed if names is None or each.name in names]


def _client(server: Any) -> Client:
    try:
        from mcp import Client, StdioServerParameters

        from openafm.framework.tools.mcp_limits import limited_http, limited_process
    except ImportError as error:
        raise AssetsUnavailableError(_NEEDS_MCP) from error
    if isinstance(server, Client):
        return server
    if isinstance(server, str) and server.startswith(("http://", "https://")):
        return Client(limited_http(server))
    if isinstance(server, str):
        server = shlex.split(server)
    if isinstance(server, list | tuple):
        command, *arguments = map(str, server)
        server = StdioServerParameters(command=command, args=arguments)
    return Client(limited_process(server) if isinstance(server, StdioServerParameters) else server)


def _is_connected(server: Any) -> bool:
    try:
        from mcp import Client
    except ImportError:
        return False
    if not isinstance(server, Client):
        return False
    try:
        return bool(server.session)
    except RuntimeError:  # raised by clients that are not connected
        return False


class _GivenSchema(GenerationSchema):
    """A generation schema made from a JSON Schema."""

    def __init__(self, schema: JsonSchema) -> None:
        super().__init__(GeneratedContent, schema.get("description"), properties=())
        self._given = schema

    def to_dict(self) -> JsonSchema:
        return self._given


def _checked_schema(name: str, schema: JsonSchema) -> JsonSchema:
    """Return the checked schema of a tool's arguments, with closed objects."""
    schema = {key: value for key, value in schema.items() if key != "$schema"}
    try:
        schema = closed_schema(schema)
        schema.setdefault("additionalProperties", False)
        if len(compact_json(schema)) > _MAX_SCHEMA_CHARACTERS:
            raise SchemaTextError(f"the schema has more than {_MAX_SCHEMA_CHARACTERS:,} characters")
        if schema.get("type") != "object":
            raise SchemaTextError("the root must have type object")
        Validator(schema)
        schema_text(schema)
        enforceable_schema(schema)
    except (UnsupportedGuideError, UnsupportedSchemaError) as error:
        raise UnsupportedGuideError(f"the arguments of the MCP tool '{name}': {error}; leave it out with 'names'") from error
    except (InvalidGenerationSchemaError, SchemaTextError, RecursionError, ValueError) as error:
        raise InvalidGenerationSchemaError(f"the arguments of the MCP tool '{name}': {error}") from error
    return schema


def _result_text(result: mcp_types.CallToolResult) -> str:
    """Return the output as text. Structured content replaces text that is empty or the same JSON."""
    texts = [_block_text(block) for block in result.content]
    text, structured = "\n".join(texts), result.structured_content
    if structured is not None and (not texts or _is_json_of(text, structured)):
        return compact_json(structured)
    return text


def _block_text(block: mcp_types.ContentBlock) -> str:
    if block.type == "text":
        return block.text
    if block.type == "resource" and (text := getattr(block.resource, "text", None)) is not None:
        return str(text)
    raise ToolOutputError(f"the tool returned {block.type.replace('_', ' ')} content; only text is supported")


def _is_json_of(text: str, value: Any) -> bool:
    try:
        return bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False


def _reason(ended: Future[None]) -> BaseException:
    return ended.exception() or McpError("the connection closed during start-up")


def _root(error: BaseException) -> BaseException:
    """Return the first error of nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
