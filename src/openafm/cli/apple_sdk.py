"""`openafm apple-sdk`: Apple's Python SDK, unchanged, above openafm's engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.output import JsonOption, print_json

app = typer.Typer(help="Apple's Python SDK, unchanged, above this engine.", no_args_is_help=True)


@app.command()
def install(
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Its source distribution, packed or not; by default pip fetches the pinned version."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Put the SDK, with our binding, into this Python environment."""
    import sys

    from openafm.apple_sdk.install import install

    done = install(source)
    if json:
        print_json(done.to_dict())
        return
    print(f"apple-fm-sdk {done.version} answers with openafm: import apple_fm_sdk ({done.path})")
    if sys.platform == "darwin":
        print("For the model of macOS instead: openafm apple-sdk uninstall, then pip install apple-fm-sdk")


@app.command()
def uninstall(json: JsonOption = False) -> None:
    """Remove the SDK that `install` put here."""
    from openafm.apple_sdk.install import uninstall

    removed = uninstall()
    print_json({"removed": removed}) if json else print("removed" if removed else "it was not installed")


@app.command()
def status(json: JsonOption = False) -> None:
    """Say whether the SDK is in this environment, and who answers it."""
    from openafm.apple_sdk.install import status

    found = status()
    if json:
        print_json(found.to_dict())
    elif found.version is None:
        print("not installed; see openafm apple-sdk install")
    else:
        answering = "openafm" if found.is_ours else "Apple's own framework"
        changed = "" if found.is_intact else ", but files were changed since: install it again"
        print(f"apple-fm-sdk {found.version} in {found.path} is answered by {answering}{changed}")
