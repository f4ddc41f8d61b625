"""The application: routes, error replies, startup and shutdown, wrapped in access control."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from openafm.core.errors import OpenAFMError
from openafm.serving import pages
from openafm.serving.access import AccessControl
from openafm.serving.apis import anthropic, chat, completions, embeddings, ollama, playground, responses, utilities
from openafm.serving.apis.response_store import ResponseStore
from openafm.serving.config import ServerConfig
from openafm.serving.errors import ApiError, api_error, bad_request
from openafm.serving.keys import KeyRing, keys_file
from openafm.serving.metrics import Metrics
from openafm.serving.models import ModelCatalog
from openafm.serving.service import AnswerService
from openafm.serving.user_code import load_user_code

ROUTERS = (
    chat.router,
    completions.router,
    responses.router,
    embeddings.router,
    ollama.router,
    anthropic.router,
    utilities.router,
    playground.router,
    pages.router,
)
_IDLE_CHECK_SECONDS = 10.0


def build_app(config: ServerConfig) -> ASGIApp:
    """Return the ASGI application of a server.

    Raises:
        OpenAFMError: a model is missing or damaged, or the file of keys is damaged.
    """
    if config.private:
        from openafm.serving.private.node.folder import open_keys
        from openafm.serving.private.node.node import build_node

        return build_node(config, open_keys(Path(config.private), config))
    return AccessControl(app := build_routes(config), config, KeyRing(keys_file()), app.state.service.metrics)


def build_routes(config: ServerConfig, routers: Sequence[APIRouter] = ROUTERS) -> FastAPI:
    """Return the routes without access control."""
    metrics = Metrics()
    service = AnswerService(config, ModelCatalog(config.models, config.idle_seconds), metrics)
    app = FastAPI(title="openafm", docs_url=None, redoc_url=None, lifespan=_lifespan)
    app.state.service = service
    app.state.responses = ResponseStore(config.max_stored_responses, config.max_stored_bytes)
    app.state.user_code = load_user_code(config.tool_files, config.type_files, config.tool_token)
    for router in routers:
        app.include_router(router)
    for kind in (Exception, OpenAFMError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, reply_to_error)
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the default model at the start, release idle models, and end running answers at the stop."""
    service: AnswerService = app.state.service
    tasks = [asyncio.ensure_future(_load_default(service)), asyncio.ensure_future(_release_idle(service))]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.to_thread(service.close)


async def _load_default(service: AnswerService) -> None:
    with contextlib.suppress(OpenAFMError):  # the first request reports it
        async with service.base(None):
            pass


async def _release_idle(service: AnswerService) -> None:
    while True:
        await asyncio.sleep(_IDLE_CHECK_SECONDS)
        service.release_idle()


async def reply_to_error(request: Request, error: Exception) -> JSONResponse:
    """Return the reply for an expected error."""
    failed = _translated(error)
    return JSONResponse(failed.body(request.url.path), failed.status, failed.headers)


def _translated(error: Exception) -> ApiError:
    match error:
        case RequestValidationError():
            first: dict[str, Any] = dict(error.errors()[0])
            if first["type"] == "json_invalid":
                return bad_request("the body is not valid JSON", code="invalid_json")
            place = ".".join(str(part) for part in first["loc"][1:] if not str(part).startswith("function-"))
            return bad_request(f"{place[:200] or 'the body'}: {first['msg']}", param=place[:200] or None)
        case HTTPException(status_code=404):
            return ApiError(404, "no such route; /v1/models lists the models, docs/serving.md the routes", code="not_found")
        case HTTPException(status_code=405):
            return ApiError(405, "this route does not support the method", code="method_not_allowed")
        case HTTPException():
            return ApiError(error.status_code, "the body is not valid JSON in UTF-8", code="invalid_json")
    return api_error(error)
