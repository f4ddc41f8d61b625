"""Shared parts of the wire formats: settings of models that read JSON, dependencies of routes, server-sent events."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, cast

from fastapi import Depends, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict
from starlette.types import Receive, Scope, Send

from openafm.runtime.decoding.sampling import GreedyConfig, RandomConfig, SamplingConfig
from openafm.serving.errors import api_error, bad_request
from openafm.serving.keys import Client
from openafm.serving.service import AnswerService

MAX_STOPS = 16
MAX_STOP_LENGTH = 4096

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))  # json.dumps would build one for each event


class Wire(BaseModel):
    """Base of JSON objects in requests. Unknown fields are ignored, as all compatible servers do."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


async def _service(request: Request) -> AnswerService:  # plain functions would run in a thread of their own
    return cast(AnswerService, request.app.state.service)


async def _client(request: Request) -> Client:
    return cast(Client, request.state.client)


Service = Annotated[AnswerService, Depends(_service)]
Caller = Annotated[Client, Depends(_client)]


def new_id(prefix: str) -> str:
    """Return a random id such as chatcmpl-..."""
    return f"{prefix}{secrets.token_hex(12)}"


def compact(value: Any) -> str:
    """Return JSON without spaces."""
    return _ENCODER.encode(value)


def sampling(
    temperature: float | None,
    top_p: float | None = None,
    top_k: int | None = None,
    seed: int | None = None,
    min_p: float | None = None,
    typical_p: float | None = None,
) -> SamplingConfig:
    """Return the sampling of a request. Without any parameter it is greedy, as in the command line and in sessions."""
    if top_k is not None and top_k <= 0:  # 0 and -1 disable it in other servers
        top_k = None
    if temperature == 0 or {temperature, top_p, top_k, seed, min_p, typical_p} == {None}:
        return GreedyConfig()
    if temperature is not None and not 0 < temperature <= 2:
        raise bad_request(f"temperature is {temperature}; use 0 to 2", param="temperature")
    if top_p is not None and not 0 < top_p <= 1:
        raise bad_request(f"top_p is {top_p}; use more than 0 and at most 1", param="top_p")
    if min_p is not None and not 0 <= min_p <= 1:
        raise bad_request(f"min_p is {min_p}; use 0 to 1", param="min_p")
    if typical_p is not None and not 0 < typical_p <= 1:
        raise bad_request(f"typical_p is {typical_p}; use more than 0 and at most 1", param="typical_p")
    return RandomConfig(
        temperature=1.0 if temperature is None else temperature,
        top_p=None if top_p == 1 else top_p,
        top_k=top_k,
        min_p=min_p or None,
        typical_p=None if typical_p == 1 else typical_p,
        seed=seed,
    )


def stop_texts(stop: str | Sequence[str] | None, param: str) -> tuple[str, ...]:
    """Return the stop texts of a request. Each is compared with the answer after each token, so their size is limited.

    Raises:
        ApiError: there are too many, or they are too long.
    """
    texts = (stop,) if isinstance(stop, str) else tuple(stop or ())
    length = sum(map(len, texts))
    if len(texts) > MAX_STOPS or length > MAX_STOP_LENGTH:
        raise bad_request(
            f"{param} has {len(texts)} texts of {length:,} characters; use at most {MAX_STOPS} of {MAX_STOP_LENGTH:,}"
            " together",
            param=param,
        )
    return texts


class EventStream(Response):
    """A streamed reply. It needs no task that waits for a disconnect: `AccessControl` has one and cancels the reply."""

    def __init__(self, events: AsyncGenerator[str], media_type: str) -> None:
        self._events = events
        self.status_code, self.media_type, self.background = 200, media_type, None
        self.init_headers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with contextlib.aclosing(self._events) as events:
            async for event in events:
                await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def event_stream(events: AsyncGenerator[str], path: str, media_type: str = "text/event-stream") -> EventStream:
    """Wait for the first event, so that errors before it have their own status, and return a streamed reply.

    An error after the first event is sent as the last one.
    """
    first = await anext(events)

    async def all_events() -> AsyncGenerator[str]:
        async with contextlib.aclosing(events):
            yield first
            try:
                async for event in events:
                    yield event
            except Exception as error:
                failed = compact(api_error(error).body(path))
                yield f"{failed}\n" if media_type == "application/x-ndjson" else f"event: error\ndata: {failed}\n\n"

    return EventStream(all_events(), media_type)
