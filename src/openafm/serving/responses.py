"""OpenAI's /v1/responses: create, get, delete, cancel, stream; stored in the memory of the server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, TypeAlias

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from openafm.core.errors import OpenAFMError
from openafm.framework.backends.loaded_model import MAX_CALLS
from openafm.serving.errors import ApiError, api_error, bad_request
from openafm.serving.inference import CallsDelta, Decoding, Ended, TextDelta
from openafm.serving.messages import (
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
from openafm.serving.service import AnswerService, RunningTask, Task
from openafm.serving.wire import Caller, Service, Wire, compact, event_stream, new_id, opened, sampling
from openafm.tokenizer.conversation import ToolCall

router = APIRouter()

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
        """Return an estimate of its memory: the text of its conversation."""
        return sum(len(message.model_dump_json()) for message in self.messages)

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


@router.post("/v1/responses")
async def create(body: ResponsesRequest, request: Request, service: Service, caller: Caller) -> Response:
    """Answer an input, now, as a stream, or in the background."""
    store: ResponseStore = request.app.state.responses
    if body.background and (body.stream or body.store is False):
        raise bad_request("background responses are stored and not streamed; leave out stream and store", param="background")
    earlier = [] if body.previous_response_id is None else store.find(body.previous_response_id, caller).conversation()
    task = body.task(earlier, caller)
    model = service.models.find(body.model).name
    response = StoredResponse(body, caller.id, [*earlier, *body.messages()], model)
    if body.store is not False:
        store.put(response)
    if body.stream:
        return event_stream(await opened(_events(service, task, response)), request.url.path)
    if body.background:
        response.running = asyncio.ensure_future(_run_in_background(service, task, response))
    else:
        async for _ in _events(service, task, response):
            pass
    return JSONResponse(response.value)


@router.get("/v1/responses/{id}")
async def get(id: str, request: Request, caller: Caller) -> JsonObject:
    """Return a stored response."""
    store: ResponseStore = request.app.state.responses
    return store.find(id, caller).value


@router.post("/v1/responses/{id}/cancel")
async def cancel(id: str, request: Request, caller: Caller) -> JsonObject:
    """Cancel a background response. A finished one is unchanged."""
    store: ResponseStore = request.app.state.responses
    response = store.find(id, caller)
    if response.running is None:
        raise bad_request("only responses that were created with background: true can be cancelled", param="id")
    response.running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await response.running
    if not response.is_finished:  # it had not started
        response.value["status"] = "cancelled"
    return response.value


@router.delete("/v1/responses/{id}")
async def delete(id: str, request: Request, caller: Caller) -> JsonObject:
    """Remove a stored response; a running one is cancelled."""
    store: ResponseStore = request.app.state.responses
    store.remove(store.find(id, caller))
    return {"id": id, "object": "response.deleted", "deleted": True}


async def _run_in_background(service: AnswerService, task: Task, response: StoredResponse) -> None:
    with contextlib.suppress(OpenAFMError):  # recorded in the response
        async for _ in _events(service, task, response):
            pass


async def _events(service: AnswerService, task: Task, response: StoredResponse) -> AsyncIterator[str]:
    """Generate a response and yield its events. The stored value shows how it ended in all cases."""
    numbers = itertools.count()
    value = response.value

    def event(kind: str, **values: Any) -> str:
        return f"event: {kind}\ndata: {compact({'type': kind, 'sequence_number': next(numbers), **values})}\n\n"

    try:
        async with service.running(task) as running:
            yield event("response.created", response=value)
            value["status"] = "in_progress"
            yield event("response.in_progress", response=value)
            async for line in _output_events(running, value, event):
                yield line
        yield event(f"response.{value['status']}", response=value)
    except OpenAFMError as error:
        response.fail(error)
        raise
    finally:
        if not response.is_finished:
            value["status"] = "cancelled"


async def _output_events(running: RunningTask, value: JsonObject, event: Any) -> AsyncIterator[str]:
    """Yield the events of the output while it is generated, and complete `value`."""
    message = _TextItem(event)
    async for batch in running.batches():
        for _, delta in batch:
            match delta:
                case TextDelta():
                    for line in message.push(delta.text):
                        yield line
                case CallsDelta():
                    for line in _call_events(delta.calls, value["output"], len(message.items), event):
                        yield line
                case Ended():
                    ended = delta
    for line in message.finish(is_empty_shown=not value["output"]):
        yield line
    value["output"][:0] = message.items
    _complete(value, ended)


class _TextItem:
    """The message of a response, and its events."""

    def __init__(self, event: Any) -> None:
        self._event, self._id, self._text = event, new_id("msg_"), ""
        self.items: list[JsonObject] = []

    def push(self, text: str) -> list[str]:
        """Return the events of the next characters."""
        lines = [] if self.items else self._open()
        self._text += text
        place = {"item_id": self._id, "output_index": 0, "content_index": 0}
        return [*lines, self._event("response.output_text.delta", **place, delta=text, logprobs=[])]

    def finish(self, *, is_empty_shown: bool) -> list[str]:
        """Return the events of the end. An answer without text and calls has an empty message."""
        if not self.items and not is_empty_shown:
            return []
        lines = [] if self.items else self._open()
        item, part = self.items[0], {"type": "output_text", "text": self._text, "annotations": [], "logprobs": []}
        item |= {"status": "completed", "content": [part]}
        place = {"item_id": self._id, "output_index": 0, "content_index": 0}
        return [
            *lines,
            self._event("response.output_text.done", **place, text=self._text, logprobs=[]),
            self._event("response.content_part.done", **place, part=part),
            self._event("response.output_item.done", output_index=0, item=item),
        ]

    def _open(self) -> list[str]:
        item: JsonObject = {"id": self._id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        self.items.append(item)
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        place = {"item_id": self._id, "output_index": 0, "content_index": 0}
        return [
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.content_part.added", **place, part=part),
        ]


def _call_events(calls: Sequence[ToolCall], output: list[JsonObject], first: int, event: Any) -> list[str]:
    """Append calls to the output and return their events."""
    lines = []
    for index, call in enumerate(calls, start=first):
        arguments = compact(call.arguments)
        item = {
            "id": new_id("fc_"),
            "type": "function_call",
            "call_id": new_id("call_"),
            "name": call.name,
            "arguments": "",
            "status": "in_progress",
        }
        place = {"item_id": item["id"], "output_index": index}
        lines.append(event("response.output_item.added", output_index=index, item=item))
        lines.append(event("response.function_call_arguments.delta", **place, delta=arguments))
        lines.append(event("response.function_call_arguments.done", **place, name=call.name, arguments=arguments))
        item |= {"arguments": arguments, "status": "completed"}
        lines.append(event("response.output_item.done", output_index=index, item=item))
        output.append(item)
    return lines


def _complete(value: JsonObject, ended: Ended) -> None:
    reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(ended.finish)
    value["status"] = "completed" if reason is None else "incomplete"
    value["incomplete_details"] = None if reason is None else {"reason": reason}
    value["usage"] = {
        "input_tokens": ended.num_prompt,
        "input_tokens_details": {"cached_tokens": ended.num_cached},
        "output_tokens": ended.num_generated,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": ended.num_prompt + ended.num_generated,
    }


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
