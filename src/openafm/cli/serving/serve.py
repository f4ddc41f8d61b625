"""`openafm serve`: the HTTP server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.cli.options import PluginsOption
from openafm.cli.output import JsonOption, print_json, print_text
from openafm.core.errors import UsageError
from openafm.core.termination import ends_on_sigterm

if TYPE_CHECKING:
    from openafm.serving.config import ServerConfig

HostOption = Annotated[
    str, typer.Option(help="Address to listen on; other addresses than loopback ones need keys: `openafm keys create`.")
]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")]


def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(help="A bundle to serve, by name or path; the first is the default. Default: all of this machine."),
    ] = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    require_key: Annotated[bool, typer.Option("--require-key", help="Require a key on loopback addresses too.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the port and the weights.")] = 1,
    guardrails: Annotated[bool, typer.Option(help="Check prompts and answers with the built-in blocklist.")] = True,
    guardrail: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="A guardrail model of `openafm safety train-guardrail`; answers wait for it."
        ),
    ] = None,
    max_running: Annotated[int, typer.Option(min=1, help="Answers generated at the same time.")] = 32,
    kv_memory_mb: Annotated[
        int, typer.Option(min=0, help="Memory for keys, values and adapters; 0: a quarter of the machine's.")
    ] = 0,
    max_body_mb: Annotated[int, typer.Option(min=1, help="Largest body of a request.")] = 4,
    request_seconds: Annotated[float, typer.Option(min=0.1, help="Limit of one answer.")] = 600.0,
    drain_seconds: Annotated[float, typer.Option(min=0, help="Time for running answers after SIGTERM.")] = 30.0,
    idle_minutes: Annotated[
        float, typer.Option(min=0, help="Release a model after this time without requests; 0: never.")
    ] = 30,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file of the certificate chain.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of the private key.")] = None,
    private: Annotated[
        Path | None,
        typer.Option(help="Folder of `openafm private release`: answer encrypted requests only, with the settings there."),
    ] = None,
    plugins: PluginsOption = None,
    json: JsonOption = False,
) -> None:
    """Serve models over HTTP: OpenAI's, Ollama's and Anthropic's APIs, and a playground. Ctrl-C stops the server."""
    from openafm.serving.config import ServerConfig
    from openafm.serving.server import bind, check_setup
    from openafm.serving.server import serve as run

    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key belong together; pass both")
    config = ServerConfig(
        host=host,
        port=port,
        models=tuple(model or ()),
        requires_key=require_key,
        workers=workers,
        guardrails=guardrails,
        guardrail_model="" if guardrail is None else str(guardrail.resolve()),
        max_running=max_running,
        kv_bytes=kv_memory_mb << 20,
        max_body_bytes=max_body_mb << 20,
        request_seconds=request_seconds,
        drain_seconds=drain_seconds,
        idle_seconds=60 * idle_minutes,
        tls_certificate=str(tls_cert or ""),
        tls_key=str(tls_key or ""),
    )
    if private is not None:
        config = _private_config(private, config)
    check_setup(config)
    with ends_on_sigterm(), bind(config) as bound:
        scheme = "https" if tls_cert else "http"
        shown = "localhost" if host in ("0.0.0.0", "::", "127.0.0.1") else host
        url = f"{scheme}://{shown}:{bound.getsockname()[1]}"

        def announce() -> None:
            if json:
                print_json({"url": url, "needs_keys": config.needs_keys})
            else:
                keys = "a key is needed" if config.needs_keys else "no key is needed"
                routes = "private node" if config.private else f"playground\n{url}/v1   OpenAI's API"
                print_text(f"{url}      {routes}; {keys}\n\nCtrl-C stops the server")
            sys.stdout.flush()  # a parent process may wait for these lines on a pipe

        run(config, bound, announce)


def _private_config(folder: Path, place: ServerConfig) -> ServerConfig:
    """Return the settings of a private node, which the command line cannot change."""
    from openafm.serving.private.node.folder import check_place, read_config

    check_place(place)
    return read_config(folder, place)
