"""Run a server: socket, TLS, worker processes, limits of connections, draining."""

from __future__ import annotations

import gc
import json
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from openafm.core.config import from_dict, to_dict
from openafm.core.libraries import needed
from openafm.serving.config import ServerConfig, ServerSetupError

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

_CONFIG = "OPENAFM_SERVE_CONFIG"  # for worker processes


def bind(config: ServerConfig) -> socket.socket:
    """Return a bound socket.

    Raises:
        ServerSetupError: the address is in use or not of this machine.
    """
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(*found[:3])  # with the protocol: without it, asyncio keeps Nagle's algorithm, 40 ms a reply
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(found[4])
    except OSError as error:
        raise ServerSetupError(
            f"cannot listen at {config.host}:{config.port} ({error.strerror or error}); choose another address or port"
        ) from error
    return bound


def check_setup(config: ServerConfig) -> None:
    """Check models, keys, TLS files and libraries.

    Raises:
        OpenAFMError: a model is missing or damaged.
        ServerSetupError: the address needs keys and there are none, or the TLS files cannot be read.
        MissingLibraryError: the extra `serve` is not installed.
    """
    with needed("the server", "fastapi, uvicorn and prometheus-client", "serve"):
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    if config.private:
        with needed("a private node", "pyhpke and cryptography", "serve"):
            import pyhpke  # noqa: F401
    from openafm.serving.models import ModelCatalog

    ModelCatalog(config.models)
    check_keys(config)
    if config.tls_certificate:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.tls_certificate, config.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise ServerSetupError(f"the TLS files cannot be used ({error}); pass PEM files of one key pair") from error


def check_keys(config: ServerConfig) -> None:
    """Check that there are keys if the address needs them.

    Raises:
        ServerSetupError: there are none.
    """
    from openafm.serving.keys import KeyRing, keys_file

    if config.needs_keys and KeyRing(keys_file()).is_empty():
        raise ServerSetupError(
            f"a server at {config.host} needs keys, and there are none; create one with `openafm keys create NAME`"
        )


def serve(config: ServerConfig, bound: socket.socket, announce: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM or Ctrl-C, then let running answers end within `drain_seconds`.

    Args:
        announce: called once nothing of the settings can fail any more, such as to print the address.

    Raises:
        OpenAFMError: a model, a guardrail, a tool file or the folder of a private node is missing or damaged.
    """
    import uvicorn
    from uvicorn.supervisors import Multiprocess

    from openafm.serving.app import build_app

    logging.getLogger("openafm.serving").setLevel(logging.INFO)
    app = build_app(config)  # workers build their own; here it shows errors
    if config.workers == 1:
        if config.private:
            from openafm.serving.private.node.node import forbid_traces_of_requests

            forbid_traces_of_requests()
        exempt_from_collection()
        announce()
        uvicorn.Server(uvicorn_config(config, app)).run(sockets=[bound])
        return
    del app
    os.environ[_CONFIG] = json.dumps(to_dict(config))
    settings = uvicorn_config(config, "openafm.serving.server:worker_app")
    announce()
    Multiprocess(settings, sockets=[bound]).run()


def worker_app() -> ASGIApp:
    """Return the application of a worker process."""
    from openafm.serving.app import build_app
    from openafm.serving.protocol import LimitedProtocol

    config = from_dict(ServerConfig, json.loads(os.environ[_CONFIG]))
    LimitedProtocol.header_seconds = config.header_seconds
    app = build_app(config)
    exempt_from_collection()
    return app


def exempt_from_collection() -> None:
    """Exclude all objects that exist now, mostly of libraries, from garbage collection.

    A full collection of them holds the interpreter for 60 ms, in which no stream continues. Models are loaded later, so that
    released ones are still collected.
    """
    gc.collect()
    gc.freeze()


def uvicorn_config(config: ServerConfig, app: ASGIApp | str) -> uvicorn.Config:
    """Return uvicorn's settings. Nothing that a client sends is logged."""
    import uvicorn

    from openafm.serving.protocol import LimitedProtocol

    LimitedProtocol.header_seconds = config.header_seconds
    return uvicorn.Config(
        app,
        factory=isinstance(app, str),
        workers=config.workers,
        http=LimitedProtocol,
        ws="none",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(1, round(config.header_seconds)),  # 0 closes a connection that a client is about to use
        timeout_graceful_shutdown=round(config.drain_seconds),
        limit_concurrency=config.max_connections,
        ssl_certfile=config.tls_certificate or None,
        ssl_keyfile=config.tls_key or None,
    )
