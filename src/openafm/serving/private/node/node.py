"""A private node: a server that answers encrypted requests only and keeps nothing of them.

It has no playground, no store of responses, no adapters to load and no pages; prefixes and images are not cached across
requests. Logs and metrics have the outer route only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from openafm.runtime.engines import image_cache, prefix_cache
from openafm.serving.access import AccessControl, check_characters
from openafm.serving.apis import anthropic, chat, completions, utilities
from openafm.serving.app import build_routes, reply_to_error
from openafm.serving.errors import ApiError, api_error
from openafm.serving.keys import KeyRing, keys_file
from openafm.serving.private.errors import MessageError
from openafm.serving.private.node.inner import Chunk, called, error_response, whole_chunks
from openafm.serving.private.node.keys import NodeKeys
from openafm.serving.private.oblivious_http.binary_http import decode_request
from openafm.serving.private.oblivious_http.chunks import ChunkSealer
from openafm.serving.private.oblivious_http.encapsulation import CHUNKED, WHOLE, Exchange, UnknownKeyError, seal_response
from openafm.serving.private.oblivious_http.key_configs import encode_key_configs

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from openafm.serving.config import ServerConfig

GATEWAY_PATH = "/.well-known/ohttp-gateway"
"""Path of encrypted requests and of the key configuration (RFC 9540)."""

STATEMENT_PATH = "/private/statement"
_FRAMINGS = {framing.request_type: framing for framing in (WHOLE, CHUNKED)}
_KEY_PROBLEM = "https://iana.org/assignments/http-problem-types#ohttp-key"
_OPEN_PATHS = ("/health", "/health/live", "/health/ready", "/metrics")
_NOT_DUMPABLE = 4  # PR_SET_DUMPABLE of Linux


def build_node(config: ServerConfig, keys: NodeKeys) -> ASGIApp:
    """Return the application of a private node, wrapped in access control."""
    inner = build_routes(config, (chat.router, completions.router, anthropic.router, utilities.router))
    gateway = _Gateway(inner, keys)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with inner.router.lifespan_context(inner):
            yield

    outer = FastAPI(openapi_url=None, lifespan=lifespan)
    for method, path, route in (
        ("GET", STATEMENT_PATH, gateway.statement),
        ("GET", GATEWAY_PATH, gateway.key_configs),
        ("POST", GATEWAY_PATH, gateway.answer),
    ):
        outer.add_api_route(path, route, methods=[method], response_model=None)
    outer.router.routes.extend(route for route in utilities.router.routes if getattr(route, "path", "") in _OPEN_PATHS)
    for kind in (Exception, ApiError, HTTPException):
        outer.add_exception_handler(kind, reply_to_error)
    outer.state = inner.state
    return AccessControl(outer, config, KeyRing(keys_file()), inner.state.service.metrics)


def forbid_traces_of_requests() -> None:
    """Disable caches that outlive a request, core dumps, and debuggers of other processes of this user.

    Call it before a model is loaded. The operating system's swap and its administrator are outside of this process.
    """
    os.environ[prefix_cache.LIMIT] = os.environ[image_cache.LIMIT] = "0"
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_NOT_DUMPABLE, 0, 0, 0, 0)


class _Gateway:
    """Decrypt requests, call the routes of the inner application, encrypt replies."""

    def __init__(self, inner: FastAPI, keys: NodeKeys) -> None:
        self._inner, self._keys = inner, keys

    async def statement(self, request: Request) -> Response:
        return Response(self._keys.statement(), media_type="application/json")

    async def key_configs(self, request: Request) -> Response:
        return Response(encode_key_configs([self._keys.current().config]), media_type="application/ohttp-keys")

    async def answer(self, request: Request) -> Response:
        framing = _FRAMINGS.get(request.headers.get("content-type", ""))
        if framing is None:
            known = " or ".join(_FRAMINGS)
            raise ApiError(415, f"the content type must be {known}; `openafm private ask` sends it", code="media_type")
        try:
            opened, exchange = self._keys.open(await request.body(), framing)
        except UnknownKeyError as error:
            problem = {"type": _KEY_PROBLEM, "title": str(error)}
            return JSONResponse(problem, 400, media_type="application/problem+json")
        except MessageError as error:
            raise ApiError(400, str(error), code="encryption") from error
        if framing is WHOLE:
            message = b"".join([chunk.data async for chunk in self._chunks(opened)])
            return Response(seal_response(exchange, message), media_type=framing.response_type)
        headers = {"Incremental": "?1"}
        return StreamingResponse(self._sealed(opened, exchange), headers=headers, media_type=framing.response_type)

    async def _sealed(self, opened: bytes, exchange: Exchange) -> AsyncIterator[bytes]:
        sealer = ChunkSealer(exchange)
        yield sealer.nonce
        async with contextlib.aclosing(self._chunks(opened)) as chunks:
            async for chunk in chunks:
                yield sealer.seal_last(chunk.data) if chunk.is_last else sealer.seal(chunk.data)

    async def _chunks(self, opened: bytes) -> AsyncGenerator[Chunk]:
        """Yield the chunks of the reply to a decrypted request. Errors are replies, which only the client can read."""
        path = ""
        has_started = False
        try:
            request = decode_request(opened)
            path = request.path
            check_characters(request.content)
            async with called(self._inner, request) as reply:
                async for chunk in reply.chunks():
                    has_started = True
                    yield chunk
        except Exception as error:
            if has_started:
                raise
            failed = ApiError(400, str(error), code="message") if isinstance(error, MessageError) else api_error(error)
            for chunk in whole_chunks(error_response(failed, path)):
                yield chunk
