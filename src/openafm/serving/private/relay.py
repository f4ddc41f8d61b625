"""A relay: forwards encrypted requests to one node, without the client's address and headers.

The relay sees addresses and ciphertexts, the node sees requests and the relay's address. That separates them only if
different parties run the two.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import httpx2 as httpx
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException

from openafm.serving.access import AccessControl
from openafm.serving.app import reply_to_error
from openafm.serving.errors import ApiError
from openafm.serving.keys import KeyRing, keys_file
from openafm.serving.metrics import Metrics
from openafm.serving.private.node.node import GATEWAY_PATH, STATEMENT_PATH
from openafm.serving.private.oblivious_http.encapsulation import CHUNKED, WHOLE

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from openafm.serving.config import ServerConfig

_REQUEST_TYPES = {framing.request_type: framing.response_type for framing in (WHOLE, CHUNKED)}
_KEPT_TYPES = (*_REQUEST_TYPES.values(), "application/json", "application/ohttp-keys", "application/problem+json")
_CONNECT_SECONDS = 10.0


def build_relay(config: ServerConfig, node: str, node_key: str = "") -> ASGIApp:
    """Return the application of a relay to the node at a URL. `node_key` is the relay's own API key of the node."""
    relay = _Relay(node.rstrip("/"), node_key, config.request_seconds)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with relay.client:
            yield

    app = FastAPI(openapi_url=None, lifespan=lifespan)
    for method, path in (("GET", STATEMENT_PATH), ("GET", GATEWAY_PATH), ("POST", GATEWAY_PATH)):
        app.add_api_route(path, relay.forward, methods=[method], response_model=None)
    app.add_api_route("/health/live", _live, methods=["GET"])
    for kind in (Exception, ApiError, HTTPException):
        app.add_exception_handler(kind, reply_to_error)
    return AccessControl(app, config, KeyRing(keys_file()), Metrics())


async def _live() -> dict[str, str]:
    return {"status": "ok"}


class _Relay:
    """Forward bodies to one node."""

    def __init__(self, node: str, node_key: str, seconds: float) -> None:
        self._node = node
        self._headers = {"authorization": f"Bearer {node_key}"} if node_key else {}
        timeout = httpx.Timeout(seconds, connect=_CONNECT_SECONDS)
        self.client = httpx.AsyncClient(timeout=timeout, trust_env=False, follow_redirects=False)

    async def forward(self, request: Request) -> Response:
        kind = request.headers.get("content-type", "")
        headers = {**self._headers, "accept-encoding": "identity", "user-agent": "openafm-relay"}
        if request.method == "POST":
            if kind not in _REQUEST_TYPES:
                raise ApiError(415, "a relay forwards encrypted requests only; use `openafm private ask`", code="media_type")
            headers["content-type"] = kind
        body = await request.body()
        stack = contextlib.AsyncExitStack()
        try:
            reply = await stack.enter_async_context(
                self.client.stream(request.method, self._node + request.url.path, content=body, headers=headers)
            )
        except httpx.HTTPError as error:
            raise ApiError(502, "the node of this relay does not answer; retry later", code="bad_gateway") from error
        media_type = reply.headers.get("content-type", "").partition(";")[0]
        if media_type not in _KEPT_TYPES:
            await stack.aclose()
            raise ApiError(502, "the node of this relay sent no reply of a private node", code="bad_gateway")
        return StreamingResponse(_body(reply, stack), status_code=reply.status_code, media_type=media_type)


async def _body(reply: httpx.Response, stack: contextlib.AsyncExitStack) -> AsyncIterator[bytes]:
    async with stack:
        async for data in reply.aiter_raw():
            yield data
