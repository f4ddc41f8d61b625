"""OpenAI's /v1/responses: create, get, delete, cancel, and the events of streams."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from openafm.core.errors import OpenAFMError
from openafm.serving.apis.response_store import JsonObject, ResponsesRequest, ResponseStore, StoredResponse
from openafm.serving.apis.wire import Caller, Service, compact, event_stream, new_id
from openafm.serving.checked_text import TextDelta
from openafm.serving.errors import bad_request
from openafm.serving.inference import CallsDelta, Ended
from openafm.serving.service import AnswerService, RunningTask, Task
from openafm.tokenizer.conversation import ToolCall

router = APIRouter()


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
        return await event_stream(_events(service, task, response), request.url.path)
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


async def _events(service: AnswerService, task: Task, response: StoredResponse) -> AsyncGenerator[str]:
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


async def _output_events(running: RunningTask, value: JsonObject, event: Any) -> AsyncGenerator[str]:
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
