"""HTTP routes of tool-use annotation. Views are made into JSON in the thread of their request: FastAPI would take others."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from openafm.annotation.access import admin, current_person
from openafm.annotation.agent import run_agent
from openafm.annotation.errors import AnnotationError
from openafm.annotation.people.accounts import Person
from openafm.annotation.server.workspace import Workspace
from openafm.annotation.trees.item import Change, Item
from openafm.annotation.trees.nodes import Content, NodeKind
from openafm.annotation.trees.tree import ErrorKind
from openafm.tokenizer.conversation import ToolCall

Current = Annotated[Person, Depends(current_person)]
Admin = Annotated[Person, Depends(admin)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewItem(_Body):
    """A new item; the page chooses its id, so that a repeated request makes one item."""

    scenario: str = Field(max_length=200)
    item: str = Field(pattern="^[0-9a-f]{12,32}$")


class Run(_Body):
    """Whose turn it is: `sequence` is the last event that the page has seen, `key` identifies the change."""

    key: str = Field(min_length=8, max_length=64)
    sequence: int = Field(ge=0)
    page: str = Field("", max_length=64)


class Call(_Body):
    name: str = Field(max_length=200)
    arguments: dict[str, Any]


class NodeContent(_Body):
    kind: Literal["query", "step", "answer"]
    text: str = ""
    calls: list[Call] = Field(default_factory=list, max_length=16)

    def content(self) -> Content:
        calls = tuple(ToolCall(name=call.name, arguments=call.arguments) for call in self.calls)
        return Content(kind=NodeKind(self.kind), text=self.text, calls=calls)


class Edit(Run):
    """A change of an item; which other fields it needs depends on `action`."""

    action: Literal["append", "edit", "insert", "delete", "revert", "done", "comment", "flag", "undo", "redo"]
    node: int = Field(0, ge=0)
    content: NodeContent | None = None
    keeps_rest: bool = False
    text: str = ""
    error: ErrorKind = ErrorKind.WRONG_ARGUMENTS
    is_on: bool = True


def annotation_router(workspace: Workspace) -> APIRouter:
    """Return the routes of a workspace."""
    router = APIRouter(prefix="/api")

    @router.get("/project")
    def project() -> JSONResponse:
        return JSONResponse(workspace.overview())

    @router.get("/items")
    def items() -> JSONResponse:
        return JSONResponse(workspace.store.overview())

    @router.get("/progress")
    def show_progress(_admin: Admin) -> JSONResponse:
        return JSONResponse(workspace.progress().to_dict())

    @router.post("/items")
    def create(body: NewItem, person: Current) -> dict[str, str]:
        return {"id": workspace.create(body.scenario, body.item, person).id}

    @router.get("/items/{id}")
    def show(id: str, person: Current, page: str = "") -> JSONResponse:
        return JSONResponse(workspace.view(workspace.item(id), page[:64], person))

    @router.get("/items/{id}/version")
    def version(id: str, person: Current, page: str = "") -> JSONResponse:
        sequence = workspace.item(id).tree.sequence
        others = workspace.others(id, page[:64], person)
        return JSONResponse({"sequence": sequence, "others": others, "is_running": workspace.is_running(id)})

    @router.get("/items/{id}/tables/{node}")
    def tables(id: str, node: int) -> JSONResponse:
        return JSONResponse(workspace.item(id).tables(node))

    @router.post("/items/{id}/changes")
    def change(id: str, body: Edit, person: Current) -> JSONResponse:
        item = workspace.item(id)
        item.once(body.key, lambda: _apply(item, body, Change(key=body.key, person=person.id, sequence=body.sequence)))
        return JSONResponse(workspace.view(item, body.page, person))

    @router.post("/items/{id}/run")
    async def run(id: str, body: Run, person: Current) -> StreamingResponse:
        return await run_in_threadpool(start, id, body, person, asyncio.get_running_loop())

    def start(id: str, body: Run, person: Person, loop: asyncio.AbstractEventLoop) -> StreamingResponse:
        item, cancelled = workspace.item(id), threading.Event()
        change = Change(key=body.key, person=person.id, sequence=body.sequence)
        if item.is_made(body.key):
            return _stream(iter([{"type": "stopped", "reason": "repeated"}]), cancelled, loop)
        with ExitStack() as stack:
            stack.enter_context(workspace.running(id, person.id))
            events = run_agent(
                item,
                workspace.model,
                change,
                max_steps=workspace.project.config.max_steps,
                cancelled=cancelled.is_set,
            )
            first = next(events)  # errors before the first event have a status of their own
            rest = stack.pop_all()
        found = (
            event | {"view": workspace.view(item, body.page, person)} if event["type"] == "node" else event
            for event in itertools.chain([first], events)
        )
        return _stream(_closing(found, rest), cancelled, loop)

    return router


def _apply(item: Item, body: Edit, change: Change) -> None:
    content = body.content.content() if body.content is not None else None
    if body.action in ("append", "edit", "insert") and content is None:
        raise AnnotationError(f"the change '{body.action}' needs 'content'", status=422)
    match body.action, content:
        case "append", Content(kind=NodeKind.QUERY):
            item.query(content.text, change)
        case "append", Content():
            item.insert(item.tree.head, content, change, keeps_rest=False)
        case "edit", Content():
            item.edit(body.node, content, change, keeps_rest=body.keeps_rest, reason=body.text)
        case "insert", Content():
            item.insert(body.node, content, change, keeps_rest=body.keeps_rest, reason=body.text)
        case "delete", _:
            item.delete(body.node, change, keeps_rest=body.keeps_rest, reason=body.text)
        case "revert", _:
            item.revert(body.node, change, reason=body.text)
        case "done", _:
            item.set_done(body.is_on, change)
        case "comment", _:
            item.comment(body.node, body.text, change)
        case "flag", _:
            item.flag(body.node, body.error, body.is_on, change)
        case "undo", _:
            item.undo(change)
        case "redo", _:
            item.redo(change)


def _closing(events: Iterator[dict[str, Any]], stack: ExitStack) -> Iterator[dict[str, Any]]:
    """Yield the events; an error becomes the last event. At the end the item is free again."""
    with stack:
        try:
            yield from events
        except AnnotationError as error:
            yield {"type": "stopped", "reason": "error", "message": str(error)}


def _stream(
    events: Iterator[dict[str, Any]], cancelled: threading.Event, loop: asyncio.AbstractEventLoop
) -> StreamingResponse:
    """Return server-sent events. A browser that leaves cancels the run after the present step.

    The run has a thread of its own, so that it also ends when its events are not read any more.
    """
    found: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    def put(event: dict[str, Any] | None) -> None:
        with contextlib.suppress(RuntimeError):  # the server has stopped; the run still stores its step
            loop.call_soon_threadsafe(found.put_nowait, event)

    def produce() -> None:
        try:
            for event in events:
                put(event)
        finally:
            put(None)

    async def lines() -> AsyncIterator[str]:
        try:
            is_over = False
            while not is_over:
                written = [await found.get()]  # one write for all events that came meanwhile
                while not found.empty():
                    written.append(found.get_nowait())
                is_over = written[-1] is None
                if text := "".join(f"data: {json.dumps(each, ensure_ascii=False)}\n\n" for each in written if each):
                    yield text
        finally:
            cancelled.set()

    threading.Thread(target=produce, daemon=True, name="openafm-agent").start()
    return StreamingResponse(lines(), media_type="text/event-stream")
