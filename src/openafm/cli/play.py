"""`openafm play`: the playground in the browser."""

from __future__ import annotations

from typing import Annotated

import typer

from openafm.cli.output import print_text


def play(
    model: Annotated[list[str] | None, typer.Option(help="A bundle, by name or path; default: all of this machine.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; default: a free one.")] = 0,
    tools: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="A Python file with @fm.tool functions; the page asks before it runs one."),
    ] = None,
    schemas: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="A Python file with @fm.generable classes to choose from.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Open a playground for prompts, schemas and tools in the browser. Ctrl-C stops it."""
    import threading
    import webbrowser

    from openafm.serving.config import ServerConfig
    from openafm.serving.server import bind, check_setup, serve

    config = ServerConfig(
        port=port, models=tuple(model or ()), tool_files=tuple(tools or ()), type_files=tuple(schemas or ())
    )
    check_setup(config)
    with bind(config) as bound:
        bound.listen()  # the browser waits until the server accepts
        url = f"http://localhost:{bound.getsockname()[1]}"

        def announce() -> None:
            print_text(f"{url}\n\nCtrl-C stops the playground")
            if browser:
                threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

        serve(config, bound, announce)
