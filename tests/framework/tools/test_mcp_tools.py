"""MCP: tools of servers in a session, and our tools on a server."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from scripted_models import ScriptedModel, calls

import openafm as fm
from openafm.core.errors import UsageError
from openafm.framework.tools.runner import ToolOutputError, ToolTimeoutError
from openafm.tools import McpError, McpToolError, load_tools, main

SHORT = fm.GenerationOptions(maximum_response_tokens=40)


FILE = types.EmbeddedResource(type="resource", resource=types.TextResourceContents(uri="x:y", text="file"))


def weather_server() -> MCPServer:
    server = MCPServer("weather")

    @server.tool()
    def weather(city: str, days: int = 1) -> str:
        """The weather of a city"""
        return f"sunny in {city} for {days}"

    @server.tool()
    def table(city: str) -> dict[str, Any]:
        """Figures"""
        return {"city": city, "degrees": [1, 2.5]}

    @server.tool()
    def broken() -> str:
        """Never works"""
        raise ValueError("out of order")

    return server


def answering(result: types.CallToolResult, schema: dict[str, Any] | None = None) -> Server[Any]:
    """Return a server with one tool, `it`, whose result is `result`."""

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="it", input_schema=schema or {"type": "object"})])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        return result

    return Server("answering", on_list_tools=list_tools, on_call_tool=call_tool)


def text(content: str) -> types.TextContent:
    return types.TextContent(type="text", text=content)


def test_tools_of_a_server_run_in_blocking_and_async_requests() -> None:
    script = calls(("weather", {"city": "Oslo"}), ("table", {"city": "Rome"}))
    outputs = ["sunny in Oslo for 1", '{"city":"Rome","degrees":[1,2.5]}']

    async def run() -> None:
        async with fm.tools.from_mcp(weather_server()) as tools:
            model = ScriptedModel(script, "Done.", script, "Done.")
            session = fm.LanguageModelSession(model=model, tools=tools)
            assert await session.respond("x") == "Done."
            assert [turn.text for turn in model.requests[1].turns] == outputs
            assert session.respond_blocking("x") == "Done."  # while this event loop is blocked

    asyncio.run(run())
    with fm.tools.from_mcp(weather_server()) as tools:
        assert [tool.name for tool in tools] == ["weather", "table", "broken"]
        model = ScriptedModel(script, "Done.")
        assert fm.LanguageModelSession(model=model, tools=tools).respond_blocking("x") == "Done."
        assert [turn.text for turn in model.requests[1].turns] == outputs
        definition = tools[0].definition()
    assert definition.description == "The weather of a city"
    assert definition.parameters["properties"]["city"]["type"] == "string"
    assert definition.parameters["additionalProperties"] is False
    assert tools[0].arguments_schema.to_dict() == definition.parameters


def test_the_grammar_enforces_argument_schemas(model: fm.SystemLanguageModel) -> None:
    schema = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"], "$defs": {"n": {"enum": [7]}}}
    with fm.tools.from_mcp(answering(types.CallToolResult(content=[text("seven")]), schema)) as tools:
        session = fm.LanguageModelSession(model=model, tools=tools, tool_limits=fm.ToolLimits(rounds=1))
        options = fm.GenerationOptions(maximum_response_tokens=40, tool_calling_mode=fm.ToolCallingMode.REQUIRED)
        assert isinstance(session.respond_blocking("x", bool, options=options), bool)
    outputs = [entry.turn.text for entry in session.transcript if hasattr(entry, "call_id")]
    assert set(outputs) == {"seven"}
    assert all(call.arguments == {"n": 7} for entry in session.transcript for call in getattr(entry.turn, "tool_calls", ()))


def test_a_connected_client_is_used_and_stays_open() -> None:
    async def run() -> None:
        async with Client(weather_server()) as client:
            async with fm.tools.from_mcp(client, names=["weather"]) as tools:
                model = ScriptedModel(calls(("weather", {"city": "Oslo", "days": 3})), "Done.")
                assert await fm.LanguageModelSession(model=model, tools=tools).respond("x") == "Done."
                assert model.requests[1].turns[0].text == "sunny in Oslo for 3"  # type: ignore[union-attr]
            with pytest.raises(McpError, match="async with"), fm.tools.from_mcp(client):
                pass
            assert (await client.list_tools()).tools

    asyncio.run(run())


@pytest.mark.parametrize(
    ("result", "text_for_model"),
    [
        (types.CallToolResult(content=[text("a"), text("b")]), "a\nb"),
        (types.CallToolResult(content=[]), ""),
        (types.CallToolResult(content=[], structured_content={"a": [1]}), '{"a":[1]}'),
        (types.CallToolResult(content=[text('{\n "a": 1\n}')], structured_content={"a": 1}), '{"a":1}'),
        (types.CallToolResult(content=[text("one")], structured_content={"result": "one"}), "one"),
        (
            types.CallToolResult(
                content=[
                    types.EmbeddedResource(type="resource", resource=types.TextResourceContents(uri="x:y", text="file"))
                ]
            ),
            "file",
        ),
    ],
)
def test_results(result: types.CallToolResult, text_for_model: str) -> None:
    with fm.tools.from_mcp(answering(result)) as tools:
        model = ScriptedModel(calls(("it", {})), "Done.")
        fm.LanguageModelSession(model=model, tools=tools).respond_blocking("x")
        assert model.requests[1].turns[0].text == text_for_model  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        (types.CallToolResult(content=[text("no such city")], is_error=True), McpToolError, "no such city"),
        (types.CallToolResult(content=[], is_error=True), McpToolError, "without a message"),
        (
            types.CallToolResult(content=[types.ImageContent(type="image", data="aGk=", mime_type="image/png")]),
            ToolOutputError,
            "image",
        ),
        (types.CallToolResult(content=[text("x" * 100_001)]), ToolOutputError, "100,001"),
    ],
)
def test_failures_are_tool_call_errors(result: types.CallToolResult, error: type[Exception], words: str) -> None:
    with fm.tools.from_mcp(answering(result)) as tools:
        session = fm.LanguageModelSession(model=ScriptedModel(calls(("it", {}))), tools=tools)
        with pytest.raises(fm.ToolCallError, match=words) as caught:
            session.respond_blocking("x")
        assert caught.value.tool_name == "it"
        assert isinstance(caught.value.underlying_error, error)


def test_errors_of_a_server_are_tool_call_errors() -> None:
    with fm.tools.from_mcp(weather_server()) as tools:
        session = fm.LanguageModelSession(model=ScriptedModel(calls(("broken", {}))), tools=tools)
        with pytest.raises(fm.ToolCallError, match="broken"):
            session.respond_blocking("x")


def test_a_hanging_call_times_out() -> None:
    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="it", input_schema={"type": "object"})])

    async def call_tool(context: Any, params: Any) -> types.CallToolResult:
        await asyncio.sleep(60)
        return types.CallToolResult(content=[])

    server = Server("slow", on_list_tools=list_tools, on_call_tool=call_tool)
    with fm.tools.from_mcp(server) as tools:
        session = fm.LanguageModelSession(
            model=ScriptedModel(calls(("it", {}))), tools=tools, tool_limits=fm.ToolLimits(call_seconds=0.1)
        )
        with pytest.raises(fm.ToolCallError) as caught:
            session.respond_blocking("x")
        assert isinstance(caught.value.underlying_error, ToolTimeoutError)


def test_leaving_the_block_closes_the_connection_and_its_thread() -> None:
    with fm.tools.from_mcp(weather_server()) as tools:
        thread = next(each for each in threading.enumerate() if each.name == "openafm-mcp")
    thread.join(60)
    assert not thread.is_alive()
    session = fm.LanguageModelSession(model=ScriptedModel(calls(("weather", {"city": "Oslo"}))), tools=tools)
    with pytest.raises(fm.ToolCallError, match="closed"):
        session.respond_blocking("x")


def test_leaving_a_lost_connection_raises_nothing() -> None:
    connection = fm.tools.from_mcp(weather_server())
    with connection:
        opened = connection._open
        assert opened is not None
        opened.loop.call_soon_threadsafe(opened.stop.set)
        assert connection._ended is not None
        connection._ended.result(10)


def test_cancelling_while_connecting_ends_the_thread() -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        begun.set()
        await asyncio.to_thread(go_on.wait, 60)
        return types.ListToolsResult(tools=[types.Tool(name="it", input_schema={"type": "object"})])

    async def enter(connection: Any) -> None:
        async with connection:
            pass

    async def run() -> None:
        connection = fm.tools.from_mcp(Server("slow", on_list_tools=list_tools))
        task = asyncio.create_task(enter(connection))
        await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        assert connection._ended is not None
        await asyncio.wait_for(asyncio.wrap_future(connection._ended), 60)

    asyncio.run(run())


@pytest.mark.parametrize("is_async", [True, False])
def test_connecting_has_a_timeout(is_async: bool) -> None:
    """A server that reads and never answers."""
    server = [sys.executable, "-c", "import sys; sys.stdin.read()"]

    async def enter() -> None:
        async with fm.tools.from_mcp(server, connect_seconds=0.5):
            pass

    started = time.monotonic()
    with pytest.raises(McpError, match=r"no connection to .* after 0\.5 s"):
        if is_async:
            asyncio.run(enter())
        else:
            with fm.tools.from_mcp(server, connect_seconds=0.5):
                pass
    assert time.monotonic() - started < 15
    for thread in threading.enumerate():
        if thread.name == "openafm-mcp":
            thread.join(60)
            assert not thread.is_alive()


def tools_named(*names: str, description: str = "") -> Server[Any]:
    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        tools = [types.Tool(name=name, description=description, input_schema={"type": "object"}) for name in names]
        return types.ListToolsResult(tools=tools)

    return Server("named", on_list_tools=list_tools)


@pytest.mark.parametrize("name", ["", "a b", "a\x1b[2Jb", "a\nb", "\u202eevil", "a" * 129])
def test_unsafe_names_of_tools_raise(name: str) -> None:
    with pytest.raises(McpError, match="names are 1 to 128"), fm.tools.from_mcp(tools_named("good", name)):
        pass
    with fm.tools.from_mcp(tools_named("good", name), names=["good"]) as tools:
        assert [tool.name for tool in tools] == ["good"]


def test_descriptions_lose_control_characters() -> None:
    with fm.tools.from_mcp(tools_named("it", description="\x1b[31mred\u202e\ttext\nmore ")) as tools:
        assert tools[0].description == "[31mred  text\nmore"


@pytest.mark.parametrize("server", ["http://127.0.0.1:9/mcp", "no-such-command-at-all", [sys.executable, "-c", "0"], 5])
def test_unusable_servers_raise(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(McpError, match="cannot be used"), fm.tools.from_mcp(server):
        pass


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ({"type": "object", "properties": {"a": {"const": 1, "enum": [2]}}, "required": ["a"]}, fm.UnsupportedGuideError),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/no"}}}, fm.InvalidGenerationSchemaError),
        ({"type": "object", "properties": {"a": {"type": "thing"}}}, fm.InvalidGenerationSchemaError),
        ({"type": "object", "$dynamicRef": "file:///etc/passwd"}, fm.UnsupportedGuideError),
        ({"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}, fm.InvalidGenerationSchemaError),
    ],
)
def test_errors_of_argument_schemas_name_the_tool(
    model: fm.SystemLanguageModel, schema: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match="'it'"), fm.tools.from_mcp(answering(types.CallToolResult(content=[]), schema)) as tools:
        fm.LanguageModelSession(model=model, tools=tools).respond_blocking("x", options=SHORT)


def test_missing_names_raise() -> None:
    with pytest.raises(McpError, match="nothing"), fm.tools.from_mcp(weather_server(), names=["weather", "nothing"]):
        pass


@fm.tool
def add(first: int, second: int = 1) -> int:
    """Add two numbers."""
    return first + second


@fm.tool
async def fail() -> str:
    """Never works."""
    raise RuntimeError("not today")


def test_serving_tools() -> None:
    async def run() -> None:
        async with Client(fm.tools.serve_mcp([add, fail], name="sums")) as client:
            listed = (await client.list_tools()).tools
            assert [(tool.name, tool.description) for tool in listed] == [
                ("add", "Add two numbers."),
                ("fail", "Never works."),
            ]
            assert listed[0].input_schema["required"] == ["first"]
            for name, arguments, expected, is_error in (
                ("add", {"first": 2}, "3", False),
                ("add", {"first": "two"}, "does not match", True),
                ("add", {}, "required", True),
                ("fail", {}, "not today", True),
                ("nothing", {}, "no tool 'nothing'", True),
            ):
                result = await client.call_tool(name, arguments)
                assert expected in result.content[0].text  # type: ignore[union-attr]
                assert result.is_error is is_error

    asyncio.run(run())


def test_served_tools_round_trip() -> None:
    with fm.tools.from_mcp(fm.tools.serve_mcp([add])) as tools:
        model = ScriptedModel(calls(("add", {"first": 40, "second": 2})), "Done.")
        fm.LanguageModelSession(model=model, tools=tools).respond_blocking("x")
        assert model.requests[1].turns[0].text == "42"  # type: ignore[union-attr]


@pytest.mark.long
def test_a_process_that_serves_tools() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); from openafm.tools import main; main(sys.argv[2:])"
    command = [sys.executable, "-c", code, str(Path(__file__).parents[1]), "mcp_sample:tools"]
    with fm.tools.from_mcp(command) as tools:
        model = ScriptedModel(calls(("shout", {"text": "hello"})), "Done.")
        fm.LanguageModelSession(model=model, tools=tools).respond_blocking("x")
        assert model.requests[1].turns[0].text == "HELLO!"  # type: ignore[union-attr]


def test_invalid_locations_of_tools_raise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["no_such_module:tools"]) == 2
    assert "module:tools" in capsys.readouterr().err
    with pytest.raises(UsageError, match="no tools at"):
        load_tools("json:tools")
    for place in ("json:dumps", "sys:path"):
        with pytest.raises(UsageError, match="is not a list of tools"):
            load_tools(place)
    with pytest.raises(ValueError, match="two tools"):
        fm.tools.serve_mcp([add, add])
