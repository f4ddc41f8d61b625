"""Access control before any route: keys, scopes, origins, sizes and times of requests, disconnects, logs without content."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
import time
import traceback
from collections import Counter
from collections.abc import Mapping

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openafm.serving.config import ServerConfig
from openafm.serving.errors import ApiError, api_error, bad_request
from openafm.serving.keys import ANONYMOUS, Client, KeyRing
from openafm.serving.metrics import Metrics
from openafm.serving.request_checks import wrong_characters, wrong_host, wrong_origin

logger = logging.getLogger("openafm.serving")

PUBLIC_PATHS = frozenset(("/health", "/health/live", "/health/ready"))
SCOPES: Mapping[str, str] = {"/metrics": "metrics", "/v1/adapters/load": "admin", "/v1/adapters/unload": "admin"}
"""Scopes of paths; all others, unknown ones included, need `inference`. `admin` includes the others."""

_REFUSED_BYTES, _REFUSED_SECONDS = 64 << 10, 1.0  # of the body of a refused request that are read
_SINGLE_HEADERS = (b"authorization", b"content-length", b"host", b"origin", b"x-api-key")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
)


class AccessControl:
    """Wrap an application: check a request, read its body, run the application until it ends or the client disconnects."""

    def __init__(self, app: ASGIApp, config: ServerConfig, keys: KeyRing, metrics: Metrics) -> None:
        self._app, self._config, self._keys, self._metrics = app, config, keys, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._handle(scope, receive, _Reply(send), time.perf_counter())

    async def _handle(self, scope: Scope, receive: Receive, reply: _Reply, started: float) -> None:
        scope.setdefault("state", {})["client"] = ANONYMOUS
        try:
            scope["state"]["client"] = await self._admitted(scope, receive)
            body = await self._body(scope, receive)
            check_characters(body)
            await _run_until_disconnect(self._app, scope, body, receive, reply)
        except Exception as error:
            if not isinstance(error, ApiError):
                _log_unexpected(error)
            if reply.status is None:
                failed = api_error(error)
                response = JSONResponse(failed.body(scope["path"]), failed.status, failed.headers | {"Connection": "close"})
                await response(scope, receive, reply)
        finally:
            route = getattr(scope.get("route"), "path", "-")  # never the path itself, which a client chooses
            status = 499 if reply.status is None else reply.status
            self._metrics.record_reply(route, status)
            seconds, key = time.perf_counter() - started, scope["state"]["client"].id or "-"
            logger.info("%s %s %d %.3fs key=%s", scope["method"], route, status, seconds, key)

    async def _admitted(self, scope: Scope, receive: Receive) -> Client:
        """Return the client of a request that is allowed, or read a little of the body before the refusal.

        A client that still sends when the connection closes may never see the reply.

        Raises:
            ApiError: it is not allowed.
        """
        try:
            return self._checked(scope)
        except ApiError:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REFUSED_SECONDS):
                    await _discard(receive, _REFUSED_BYTES)
            raise

    def _checked(self, scope: Scope) -> Client:
        """Return the client of a request that is allowed.

        Raises:
            ApiError: it is not.
        """
        counts = Counter(name for name, _ in scope["headers"])
        repeated = next((name for name in _SINGLE_HEADERS if counts[name] > 1), None)
        if repeated is not None:
            raise ApiError(
                400, f"the header {repeated.decode()} occurs {counts[repeated]} times; send it once", code="headers"
            )
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if problem := wrong_origin(headers):
            raise ApiError(403, problem, code="cross_origin")
        if not scope["path"].isprintable():  # routes match paths that end with a line feed, `SCOPES` does not
            raise ApiError(404, "the path has control characters; remove them", code="not_found")
        if scope["path"] in PUBLIC_PATHS:
            return ANONYMOUS
        client = self._keys.find(text) if (text := _key_text(headers)) else None
        if not self._config.needs_keys:
            if problem := wrong_host(headers):
                raise ApiError(403, f"{problem}, or start the server with keys", code="host")
            return client or ANONYMOUS
        if client is None or client.key is None:
            raise ApiError(
                401,
                "this server needs a valid key (Authorization: Bearer KEY); `openafm keys create` on its machine makes one",
                code="invalid_api_key",
            )
        scope_name = SCOPES.get(scope["path"], "inference")
        if scope_name not in client.key.scopes and "admin" not in client.key.scopes:
            raise ApiError(
                403, f"the key has the scopes {', '.join(client.key.scopes)}; this needs {scope_name}", code="wrong_scope"
            )
        return client

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """Return the whole body.

        Raises:
            ApiError: it is too large or arrives too slowly, or the client disconnects.
        """
        limit = self._config.max_body_bytes
        too_large = ApiError(413, f"the body is larger than {limit:,} bytes", code="body_too_large")
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not length.isdigit() or int(length[:20]) > limit:
            raise too_large
        parts, size, is_last = list[bytes](), 0, False
        try:
            async with asyncio.timeout(self._config.body_seconds):
                while not is_last:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(400, "the client disconnected", code="disconnected")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limit:
                        raise too_large
                    is_last = not message.get("more_body", False)
        except TimeoutError:
            seconds = self._config.body_seconds
            raise ApiError(408, f"the body did not arrive within {seconds:g} s", code="body_timeout") from None
        return b"".join(parts)


class _Reply:
    """Send messages of a reply with the headers of every reply. `status` is None until the reply starts."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *_HEADERS]
        await self._send(message)


async def _run_until_disconnect(app: ASGIApp, scope: Scope, body: bytes, receive: Receive, reply: _Reply) -> None:
    """Run the application with a body that has been read; cancel it when the client disconnects."""
    if not any(name == b"content-type" and value.startswith(b"message/") for name, value in scope["headers"]):
        scope["headers"] = [pair for pair in scope["headers"] if pair[0] != b"content-type"]
        scope["headers"].append((b"content-type", b"application/json"))  # every body is JSON, whatever `curl -d` declares
    disconnected = asyncio.ensure_future(_disconnect(receive))
    bodies = [body]

    async def replay() -> Message:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        return await asyncio.shield(disconnected)

    running = asyncio.ensure_future(_run(app, scope, replay, reply))
    try:
        await asyncio.wait((running, disconnected), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
    finally:
        for task in (running, disconnected):
            task.cancel()
        await asyncio.wait((running, disconnected))
        if not running.cancelled():
            running.exception()  # mark as retrieved


async def _run(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)


async def _discard(receive: Receive, num_bytes: int) -> None:
    """Read the body to its end, or at least `num_bytes` of it."""
    more = True
    while more and num_bytes > 0:
        message = await receive()
        num_bytes -= len(message.get("body", b""))
        more = message.get("more_body", False)


async def _disconnect(receive: Receive) -> Message:
    """Return the message that the client has disconnected."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return message


def _key_text(headers: Mapping[bytes, str]) -> str:
    """Return the key of a request: a bearer token, the password of basic authentication, or x-api-key."""
    kind, _, value = headers.get(b"authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return headers.get(b"x-api-key", "")


def check_characters(body: bytes) -> None:
    """Check that no reply to a body can fail for its characters.

    Raises:
        ApiError: JSON escapes hold half of a surrogate pair.
    """
    if problem := wrong_characters(body):
        raise bad_request(problem)


def _log_unexpected(error: Exception) -> None:
    """Log the kind and the place of an error, not its message, which may quote a request."""
    places = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-3:]]
    logger.error("%s at %s", type(error).__name__, " < ".join(reversed(places)))
