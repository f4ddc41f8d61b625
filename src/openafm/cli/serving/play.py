"""`openafm play`: the playground in the browser."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.output import print_text
from openafm.core.termination import ends_on_sigterm


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
    import tempfile

    from openafm.serving.config import ServerConfig
    from openafm.serving.server import bind, check_setup, serve
    from openafm.serving.user_code import new_token

    token = new_token() if tools else ""
    config = ServerConfig(
        port=port,
        models=tuple(model or ()),
        tool_files=tuple(tools or ()),
        type_files=tuple(schemas or ()),
        tool_token=token,
    )
    check_setup(config)
    with ends_on_sigterm(), bind(config) as bound, tempfile.TemporaryDirectory(prefix="openafm-play-") as folder:
        bound.listen()  # the browser waits until the server accepts
        url = f"http://localhost:{bound.getsockname()[1]}" + (f"/#token={token}" if token else "")

        def announce() -> None:
            print_text(f"{url}\n\nCtrl-C stops the playground")
            sys.stdout.flush()  # a parent process may wait for the address on a pipe
            if browser:
                _open_page(url, Path(folder))

        serve(config, bound, announce)


def _open_page(url: str, folder: Path) -> None:
    """Open a page in the browser. An address with a token goes through a file, because other users see command lines.

    Args:
        folder: a folder that only this user can read.
    """
    import threading
    import webbrowser

    if "#" in url:
        page = folder / "open.html"
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={url}"><a href="{url}">playground</a>\n')
        url = page.as_uri()
    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
