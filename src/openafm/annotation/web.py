"""The web application that both tools mount: pages, accounts, error replies, access control, and its server.

app = build_app(accounts, pages="grade", routers=[router], project="...", title="...", config=config)
serve(app, accounts, config, announce)
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, cast

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from openafm.annotation.access import AccessControl, error_reply
from openafm.annotation.errors import AnnotationError, not_found
from openafm.annotation.people import routes
from openafm.annotation.people.accounts import Accounts, Role
from openafm.core.errors import OpenAFMError
from openafm.core.files import OutOfSpaceError
from openafm.core.termination import ends_on_sigterm
from openafm.serving.config import ServerConfig, ServerSetupError, is_loopback

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@dataclass(frozen=True, kw_only=True)
class WebConfig:
    """Hold the settings of a tool's server.

    Attributes:
        public_url: how browsers reach it, such as https://grade.example.org of a proxy; empty: host and port.
        needs_accounts: sign-in on a loopback address too. Other addresses always need it.
        trusted_proxies: addresses and networks of proxies whose X-Forwarded-For header names the client; empty: the header
            is ignored, and the limit of wrong sign-ins counts all people behind a proxy as one address.
        tls_certificate, tls_key: PEM files; both or neither.
    """

    host: str = "127.0.0.1"
    port: int = 8010
    public_url: str = ""
    needs_accounts: bool = False
    trusted_proxies: tuple[str, ...] = ()
    tls_certificate: str = ""
    tls_key: str = ""

    @property
    def is_secure(self) -> bool:
        return bool(self.tls_certificate) or self.public_url.startswith("https://")

    @property
    def has_accounts(self) -> bool:
        """True if people sign in; else every request of this machine is the local admin's."""
        return self.needs_accounts or bool(self.public_url or self.trusted_proxies) or not is_loopback(self.host)

    def server(self) -> ServerConfig:
        """Return the settings of the socket.

        Raises:
            ServerSetupError: passwords would be sent without encryption, or a proxy is not an address.
        """
        for proxy in self.trusted_proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError as error:
                raise ServerSetupError(
                    f"the proxy {proxy!r:.100} is not an IP address or network; pass one such as 127.0.0.1 or 10.0.0.0/8"
                ) from error
        if not is_loopback(self.host) and not self.is_secure:
            raise ServerSetupError(
                f"a server at {self.host} needs TLS: pass --tls-cert and --tls-key, or listen on a loopback address behind "
                "a proxy and pass its --public-url https://..."
            )
        return ServerConfig(
            host=self.host, port=self.port, tls_certificate=self.tls_certificate, tls_key=self.tls_key, drain_seconds=5.0
        )


def build_app(
    accounts: Accounts,
    *,
    pages: str,
    routers: Iterable[APIRouter],
    project: str,
    title: str,
    config: WebConfig,
    state: Mapping[str, object] | None = None,
) -> ASGIApp:
    """Return the ASGI application of a tool.

    Args:
        pages: the folder below `annotation/pages` whose index.html is the start page.
        routers: the tool's routes, below /api.
        project: id of the project, for access per project.
        state: attributes of `request.app.state` for the routes.
    """
    app = FastAPI(title=title, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.accounts = accounts
    for name, value in (state or {}).items():
        setattr(app.state, name, value)
    for router in (*routers, routes.router, _page_router(pages)):
        app.router.routes.extend(router.routes)  # include_router would match each of its routes twice
    for kind in (Exception, OpenAFMError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _reply)
    access = AccessControl(app, accounts, project=project, needs_accounts=config.has_accounts, is_secure=config.is_secure)
    if not config.trusted_proxies:
        return access
    # the protocols of ASGI in uvicorn and Starlette are the same, under other names
    return cast(ASGIApp, ProxyHeadersMiddleware(cast(Any, access), trusted_hosts=list(config.trusted_proxies)))


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where a server listens.

    Attributes:
        invite: a link for the first admin; None if there is one or the server has no accounts.
    """

    url: str
    invite: str | None
    has_accounts: bool

    def text(self, title: str) -> str:
        """Return what a terminal shows."""
        who = "people sign in" if self.has_accounts else "you are the admin; no account is needed"
        invite = "" if self.invite is None else f"\nfirst admin: {self.invite}   (one person can use this link)"
        return f"{self.url}   {title}; {who}{invite}"


def serve(app: ASGIApp, accounts: Accounts, config: WebConfig, announce: Callable[[Listening], None]) -> None:
    """Bind the address, announce it, and serve until SIGTERM or Ctrl-C.

    Raises:
        ServerSetupError: the address cannot be used.
    """
    import uvicorn

    from openafm.serving.server import bind, uvicorn_config

    settings = config.server()
    with ends_on_sigterm(), bind(settings) as bound:
        bound.listen()  # a browser that opens the announced address waits instead of being refused
        shown = "localhost" if config.host in ("0.0.0.0", "::", "127.0.0.1") else config.host
        url = config.public_url or f"{'https' if config.tls_certificate else 'http'}://{shown}:{bound.getsockname()[1]}"
        announce(Listening(url=url, invite=first_invite(accounts, config, url), has_accounts=config.has_accounts))
        sys.stdout.flush()  # a parent process may wait for these lines on a pipe
        uvicorn.Server(uvicorn_config(settings, app)).run(sockets=[bound])


def first_invite(accounts: Accounts, config: WebConfig, url: str) -> str | None:
    """Return an invite link for the first admin; None if there is one or the server has no accounts."""
    if not config.has_accounts or accounts.has_admin():
        return None
    return f"{config.public_url or url}/join#{accounts.invite(Role.ADMIN)}"


def _page_router(pages: str) -> APIRouter:
    """Return routes of static files: /, /people, /join, /progress, /static/FOLDER/NAME."""
    found = _read("shared") | _read(pages)
    router = APIRouter(include_in_schema=False)

    def reply(name: str) -> Response:
        if name not in found:
            raise not_found("such page")
        data, media_type = found[name]
        return Response(data, media_type=media_type)

    router.get("/")(lambda: reply(f"{pages}/index.html"))
    for name in ("join", "people"):
        router.get(f"/{name}")(lambda: reply("shared/people.html"))
    router.get("/progress")(lambda: reply("shared/progress.html"))
    router.get("/static/{folder}/{name}")(lambda folder, name: reply(f"{folder}/{name}"))
    return router


def _read(folder: str) -> dict[str, tuple[bytes, str]]:
    """Return content and media type of a folder's pages by folder/name."""
    return {
        f"{folder}/{file.name}": (file.read_bytes(), f"{_TYPES[file.name.rpartition('.')[2]]}; charset=utf-8")
        for file in files("openafm.annotation").joinpath("pages", folder).iterdir()
    }


async def _reply(_request: Request, error: Exception) -> JSONResponse:
    return error_reply(_translated(error))


def _translated(error: Exception) -> Exception:
    """Return an expected error with its status; other errors are returned unchanged."""
    match error:
        case RequestValidationError():
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"][1:])
            return AnnotationError(f"{place[:200] or 'the body'}: {first['msg']}", status=422)
        case HTTPException():
            return AnnotationError("no such route, or not with this method", status=error.status_code, code="not_found")
        case AnnotationError():
            return error
        case OutOfSpaceError():
            return AnnotationError(
                f"{error}; nothing was stored, your entries are still on this page", status=507, code="disk"
            )
        case OpenAFMError():
            return AnnotationError(str(error), status=500, code="failed")
    return error
