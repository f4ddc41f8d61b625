"""The web application that both tools mount: pages, accounts, error replies, access control, and its server.

app = build_app(accounts, pages="grade", routers=[router], project="...", title="...", config=config)
serve(app, config, bound)
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from openafm.annotation.access import AccessControl, error_reply
from openafm.annotation.errors import AnnotationError, not_found
from openafm.annotation.people import routes
from openafm.annotation.people.accounts import Accounts, Role
from openafm.core.errors import OpenAFMError
from openafm.core.files import OutOfSpaceError
from openafm.serving.config import ServerConfig, ServerSetupError, is_loopback

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@dataclass(frozen=True, kw_only=True)
class WebConfig:
    """Hold the settings of a tool's server.

    Attributes:
        public_url: how browsers reach it, such as https://grade.example.org of a proxy; empty: host and port.
        needs_accounts: sign-in on a loopback address too. Other addresses always need it.
        tls_certificate, tls_key: PEM files; both or neither.
    """

    host: str = "127.0.0.1"
    port: int = 8010
    public_url: str = ""
    needs_accounts: bool = False
    tls_certificate: str = ""
    tls_key: str = ""

    @property
    def is_secure(self) -> bool:
        return bool(self.tls_certificate) or self.public_url.startswith("https://")

    @property
    def has_accounts(self) -> bool:
        """True if people sign in; else every request of this machine is the local admin's."""
        return self.needs_accounts or bool(self.public_url) or not is_loopback(self.host)

    def server(self) -> ServerConfig:
        """Return the settings of the socket.

        Raises:
            ServerSetupError: passwords would be sent without encryption.
        """
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
    return AccessControl(app, accounts, project=project, needs_accounts=config.has_accounts, is_secure=config.is_secure)


def serve(app: ASGIApp, config: WebConfig, bound: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    import uvicorn

    from openafm.serving.server import uvicorn_config

    uvicorn.Server(uvicorn_config(config.server(), app)).run(sockets=[bound])


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
