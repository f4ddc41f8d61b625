"""Requests of OpenAI's /v1/responses, and the responses that are stored in the memory of the server."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from pydantic import Field

from openafm.framework.backends.loaded_model import MAX_CALLS
from openafm.serving.apis.messages import (
    Content,
    Function,
    FunctionCall,
    Message,
    ResponseFormat,
    SchemaFormat,
    ToolCallItem,
    chat_input,
    prompt_of,
    response_schema,
    text_of,
    tools_of,
)
from openafm.serving.apis.wire import Caller, Wire, compact, new_id, sampling
from openafm.serving.errors import ApiError, api_error, bad_request
from openafm.serving.inputs import Decoding
from openafm.serving.service import Task

_FINISHED = ("completed", "incomplete", "failed", "cancelled")

JsonObject: TypeAlias = dict[str, Any]


class InputItem(Wire):
    """A message, a call, or the output of a call."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] = "user"
    content: Content = None
    call_id: str = ""
    name: str = ""
    arguments: str = "{}"
    output: Content = None


class TextFormat(Wire):
    """The form of the answer's text."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = "response"
    json_schema: JsonObject | None = Field(default=None, alias="schema")


class TextOptions(Wire):
    """Options of the answer's text."""

    format: TextFormat = Field(default_factory=TextFormat)


class FunctionTool(Function):
    """A function, listed flat."""

    type: Literal["function"]


class ResponsesRequest(Wire):
    """The body of a new response."""

    model: str | None = None
    input: str | list[InputItem]
    instructions: str | None = None
    tools: list[FunctionTool] = Field(default_factory=list)
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: TextOptions = Field(default_factory=TextOptions)
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    previous_response_id: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool = False

    def messages(self) -> list[Message]:
        """Return the input as messages of a chat."""
        if isinstance(self.input, str):
            return [Message(role="user", content=self.input)]
        return [_message(item) for item in self.input]

    def task(self, earlier: Sequence[Message], caller: Caller) -> Task:
        """Return the task of this request after `earlier` messages.

        Raises:
            ApiError: a parameter is wrong.
        """
        opening = [Message(role="system", content=self.instructions)] if self.instructions else []
        wanted = self.text.format
        schema_format = SchemaFormat(name=wanted.name, schema=wanted.json_schema)
        tools = tools_of(self.tools)
        source = chat_input(
            prompt_of([*opening, *earlier, *self.messages()], tools),
            schema=response_schema(ResponseFormat(type=wanted.type, json_schema=schema_format)),
            tools=tools,
            tool_choice=self.tool_choice,
            max_calls=1 if self.parallel_tool_calls is False else MAX_CALLS,
        )
        decoding = Decoding(sampling=sampling(self.temperature, self.top_p), max_tokens=self.max_output_tokens)
        return Task(model=self.model, source=source, decoding=decoding, client=caller)


class StoredResponse:
    """A response while it is generated and afterwards.

    Attributes:
        owner: id of the key that created it; only this key sees it.
        messages: the conversation up to and including its input.
        running: the task that generates it in the background.
    """

    def __init__(self, body: ResponsesRequest, owner: str, messages: Sequence[Message], model: str) -> None:
        self.owner, self.messages = owner, list(messages)
        self.running: asyncio.Task[None] | None = None
        self.value: JsonObject = {
            "id": new_id("resp_"),
            "object": "response",
            "created_at": int(time.time()),
            "status": "queued" if body.background else "in_progress",
            "background": bool(body.background),
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "store": body.store is not False,
            "temperature": body.temperature,
            "text": {"format": body.text.format.model_dump(by_alias=True, exclude_none=True)},
            "tool_choice": body.tool_choice or "auto",
            "tools": [{**tool.model_dump(), "strict": True} for tool in body.tools],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    @property
    def id(self) -> str:
        return str(self.value["id"])

    @property
    def is_finished(self) -> bool:
        return self.value["status"] in _FINISHED

    def conversation(self) -> list[Message]:
        """Return the messages up to and including the answer, for the next response."""
        output: list[JsonObject] = self.value["output"]
        text = "".join(part["text"] for item in output if item["type"] == "message" for part in item["content"])
        calls = [
            ToolCallItem(id=item["call_id"], function=FunctionCall(name=item["name"], arguments=item["arguments"]))
            for item in output
            if item["type"] == "function_call"
        ]
        return [*self.messages, Message(role="assistant", content=text, tool_calls=calls or None)]

    @property
    def num_bytes(self) -> int:
        """Return an estimate of its memory: the text of its conversation and of what it repeats of its request."""
        return sum(len(message.model_dump_json()) for message in self.messages) + len(compact(self.value))

    def fail(self, error: BaseException) -> None:
        """Record the error that ended it."""
        failed = api_error(error)
        self.value |= {"status": "failed", "error": {"code": failed.code, "message": str(failed)}}


class ResponseStore:
    """Responses by id, in memory: the latest ones. Each is visible to the key that created it.

    Args:
        most: most responses.
        most_bytes: most text of their conversations together.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._sizes: dict[str, int] = {}

    def put(self, response: StoredResponse) -> None:
        """Store a response. The oldest ones are dropped and, if they still run, cancelled."""
        self._responses[response.id] = response
        self._sizes[response.id] = response.num_bytes
        while len(self._responses) > self._most or sum(self._sizes.values()) > self._most_bytes:
            self.remove(next(iter(self._responses.values())))

    def find(self, id: str, caller: Caller) -> StoredResponse:
        """Return a response of this caller.

        Raises:
            ApiError: there is none.
        """
        response = self._responses.get(id)
        if response is None or response.owner != caller.id:
            raise ApiError(404, f"no response '{id[:80]}' is stored; responses are kept in memory", code="not_found")
        return response

    def remove(self, response: StoredResponse) -> None:
        """Drop a response; a running one is cancelled."""
        if response.running is not None:
            response.running.cancel()
        del self._responses[response.id], self._sizes[response.id]


def _message(item: InputItem) -> Message:
    match item.type:
        case "message":
            return Message(role=item.role, content=item.content)
        case "function_call":
            call = ToolCallItem(id=item.call_id, function=FunctionCall(name=item.name, arguments=item.arguments))
            return Message(role="assistant", tool_calls=[call])
        case "function_call_output":
            return Message(role="tool", tool_call_id=item.call_id, content=text_of(item.output, "input"))
    raise bad_request(f"input items of type '{item.type[:40]}' are not supported", param="input")
