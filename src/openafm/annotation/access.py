"""Access control before any route: origins, sizes of bodies, sessions, CSRF tokens, and the headers of every reply."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import traceback
from collections import Counter
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openafm.annotation.errors import AnnotationError, forbidden
from openafm.annotation.people.accounts import Accounts, Person, Role
from openafm.annotation.people.sessions import SESSION_SECONDS, Session, Sessions
from openafm.serving.request_checks import wrong_characters, wrong_host, wrong_origin

logger = logging.getLogger("openafm.annotation")

MAX_BODY_BYTES = 4 << 20
BODY_SECONDS = 30.0
PUBLIC_ROUTES = frozenset(("/api/session", "/api/sign-in", "/api/join"))
"""Routes below /api that need no session. Pages are public: they hold no data."""
OWN_ROUTES = ("/api/people/", "/api/sign-out")
"""Beginnings of routes that people use for their own data, also after they lost the access to the project."""

_SINGLE_HEADERS = (b"content-length", b"cookie", b"host", b"origin", b"x-csrf-token")
_POLICY = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", _POLICY.encode()),
)


class AccessControl:
    """Wrap an application. Requests below /api get `scope["state"]["session"]`.

    Args:
        project: id of the project; only people who may open it get a reply.
        needs_accounts: False serves the local admin to every request of a loopback address.
        is_secure: the browser uses https, to this server or to a proxy before it.
    """

    def __init__(
        self, app: ASGIApp, accounts: Accounts, *, project: str, needs_accounts: bool, is_secure: bool = False
    ) -> None:
        self._app, self.project, self.needs_accounts = app, project, needs_accounts
        self.sessions = Sessions(accounts)
        self._cookie_name = "__Host-session" if is_secure else "session"
        self._cookie_flags = "Path=/; HttpOnly; SameSite=Strict" + ("; Secure" if is_secure else "")
        self._local = None if needs_accounts else Session(person=accounts.local_admin(), csrf=secrets.token_urlsafe(32))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._handle(scope, receive, _Reply(send))

    def cookie(self, token: str) -> str:
        """Return the Set-Cookie header of a session; an empty token removes it."""
        age = round(SESSION_SECONDS) if token else 0
        return f"{self._cookie_name}={token}; Max-Age={age}; {self._cookie_flags}"

    def token(self, headers: Mapping[bytes, str]) -> str:
        """Return the session's token of a request's cookies, or an empty text."""
        try:
            morsel = SimpleCookie(headers.get(b"cookie", "")).get(self._cookie_name)
        except CookieError:
            return ""
        return "" if morsel is None else morsel.value

    async def _handle(self, scope: Scope, receive: Receive, reply: _Reply) -> None:
        try:
            scope.setdefault("state", {})["access"] = self
            scope["state"]["session"] = await self._admitted(scope)
            body = await _body(scope, receive)
            if problem := wrong_characters(body):
                raise AnnotationError(problem, code="characters")
            await self._app(scope, _replay(body, receive), reply)
        except Exception as error:
            if not isinstance(error, AnnotationError):
                _log_unexpected(error)
            if reply.is_started:
                return
            await error_reply(error)(scope, receive, reply)

    async def _admitted(self, scope: Scope) -> Session | None:
        """Return the session of a request that is allowed.

        Raises:
            AnnotationError: it is not allowed.
        """
        counts = Counter(name for name, _ in scope["headers"])
        if repeated := [name.decode() for name in _SINGLE_HEADERS if counts[name] > 1]:
            raise AnnotationError(f"the header {repeated[0]} occurs several times; send it once", code="headers")
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        _check_origin(headers)
        if self._local is not None and (problem := wrong_host(headers)):
            raise forbidden(f"{problem}, or serve with accounts")
        if not scope["path"].startswith("/api/"):
            return None
        session = self._local or await run_in_threadpool(self._found, headers)
        changes = scope["method"] not in ("GET", "HEAD")
        if changes and not headers.get(b"content-type", "").startswith("application/json"):
            raise AnnotationError("send JSON with the header Content-Type: application/json", status=415, code="media_type")
        if scope["path"] in PUBLIC_ROUTES:
            return session
        if session is None:
            raise AnnotationError("sign in first", status=401, code="signed_out")
        if changes and not session.is_csrf(headers.get(b"x-csrf-token", "")):
            raise forbidden("the header X-CSRF-Token is missing or old; reload the page")
        if not session.person.may_open(self.project) and not scope["path"].startswith(OWN_ROUTES):
            raise forbidden("your account has no access to this project; ask an admin for it")
        return session

    def _found(self, headers: Mapping[bytes, str]) -> Session | None:
        token = self.token(headers)
        return self.sessions.find(token) if token else None


async def current_session(request: Request) -> Session:
    """Return the session of a request (a dependency of routes, which are async: others would take a thread each)."""
    session = request.state.session
    if not isinstance(session, Session):
        raise AnnotationError("sign in first", status=401, code="signed_out")
    return session


async def current_person(request: Request) -> Person:
    """Return the person who sends a request (a dependency of routes)."""
    return (await current_session(request)).person


async def reviewer(request: Request) -> Person:
    """Return the person who sends a request, a reviewer or an admin (a dependency of routes)."""
    return await _with_role(request, Role.REVIEWER)


async def admin(request: Request) -> Person:
    """Return the person who sends a request, an admin (a dependency of routes)."""
    return await _with_role(request, Role.ADMIN)


def error_reply(error: Exception) -> JSONResponse:
    """Return the reply for an error; unexpected errors get a message without their content."""
    if not isinstance(error, AnnotationError):
        error = AnnotationError("internal error of the server; what you sent may not be stored", status=500, code="internal")
    headers = {"Retry-After": str(max(round(error.retry_after), 1))} if error.retry_after is not None else None
    return JSONResponse({"error": {"message": str(error), "code": error.code}}, error.status, headers)


async def _with_role(request: Request, role: Role) -> Person:
    person = await current_person(request)
    if not person.role.includes(role):
        raise forbidden(f"this needs the role {role}, your account has the role {person.role}")
    return person


class _Reply:
    """Send messages of a reply with the headers of every reply."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_started = True
            message["headers"] = [*message.get("headers", ()), *_HEADERS]
        await self._send(message)


async def _body(scope: Scope, receive: Receive) -> bytes:
    """Return the whole body.

    Raises:
        AnnotationError: it is too large, arrives too slowly, or the client disconnects.
    """
    too_large = AnnotationError(f"the body is larger than {MAX_BODY_BYTES:,} bytes", status=413, code="body_too_large")
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if not length.isdigit() or int(length[:20]) > MAX_BODY_BYTES:
        raise too_large
    body, is_last = bytearray(), False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(BODY_SECONDS):
            while not is_last:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise AnnotationError("the client disconnected", code="disconnected")
                body += message.get("body", b"")
                if len(body) > MAX_BODY_BYTES:
                    raise too_large
                is_last = not message.get("more_body", False)
            return bytes(body)
    raise AnnotationError(f"the body did not arrive within {BODY_SECONDS:g} s", status=408, code="body_timeout")


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a function that gives the body first, then what the client sends."""
    bodies = [body]

    async def next_message() -> Message:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        return await receive()

    return next_message


def _check_origin(headers: Mapping[bytes, str]) -> None:
    """Raise unless a browser sends the request from a page of this server, or no browser sends it."""
    is_cross_site = headers.get(b"sec-fetch-site", "none") not in ("none", "same-origin")
    is_link = headers.get(b"sec-fetch-mode") == "navigate"  # links from other pages, such as an invite in a mail
    if b"origin" not in headers and is_cross_site and not is_link:
        raise forbidden("pages of other origins may not use this server")
    if problem := wrong_origin(headers):
        raise forbidden(problem)


def _log_unexpected(error: Exception) -> None:
    """Log the kind and the place of an error, not its message, which may quote a request."""
    frames: list[Any] = traceback.extract_tb(error.__traceback__)[-3:]
    places = [f"{frame.filename}:{frame.lineno}" for frame in reversed(frames)]
    logger.error("%s at %s", type(error).__name__, " < ".join(places))
