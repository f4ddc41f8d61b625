"""`openafm apple-sdk`: install Apple's unmodified Python SDK with openafm as its engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.output import JsonOption, print_json, print_text

app = typer.Typer(help="Install Apple's unmodified Python SDK with openafm as its engine.", no_args_is_help=True)


@app.command()
def install(
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            exists=True,
            help="Source distribution, packed or unpacked; default: pip downloads the pinned version.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Install the SDK with openafm's binding into this Python environment."""
    import sys

    from openafm.apple_sdk.install import install

    done = install(source)
    if json:
        print_json(done.to_dict())
        return
    print_text(f"installed apple-fm-sdk {done.version} with openafm as its engine: import apple_fm_sdk ({done.path})")
    if sys.platform == "darwin":
        print("To use the model of macOS instead: openafm apple-sdk uninstall, then pip install apple-fm-sdk")


@app.command()
def uninstall(json: JsonOption = False) -> None:
    """Remove the SDK that `install` installed."""
    from openafm.apple_sdk.install import uninstall

    removed = uninstall()
    print_json({"removed": removed}) if json else print("removed" if removed else "not installed")


@app.command()
def status(json: JsonOption = False) -> None:
    """Print whether the SDK is installed and which engine it uses."""
    from openafm.apple_sdk.install import status

    found = status()
    if json:
        print_json(found.to_dict())
    elif found.version is None:
        print("not installed; run openafm apple-sdk install")
    else:
        engine = "openafm" if found.is_ours else "Apple's own framework"
        changed = "" if found.is_intact else "; its files were changed, install it again"
        print_text(f"apple-fm-sdk {found.version} in {found.path} uses {engine}{changed}")
