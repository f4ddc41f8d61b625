"""`openafm average`: the mean of the weights of several bundles."""

from __future__ import annotations

from typing import Annotated

import typer

from openafm.cli.options import PluginsOption
from openafm.cli.output import JsonOption, print_json, print_text


def average(
    bundles: Annotated[list[str], typer.Argument(help="Bundles of one architecture and tokenizer, by name or path.")],
    name: Annotated[str, typer.Option(help="Name of the new bundle.")],
    shares: Annotated[
        str, typer.Option(help="Relative shares in the order of the bundles, such as 0.4,0.6; default: equal.")
    ] = "",
    plugins: PluginsOption = None,
    json: JsonOption = False,
) -> None:
    """Write the mean of the weights of bundles that continue one training."""
    from openafm.bundle import open_bundle
    from openafm.core.errors import UsageError
    from openafm.recipes.average import average as write_average

    try:
        numbers = [float(share) for share in shares.split(",")] if shares else []
    except ValueError:
        raise UsageError(f"--shares '{shares}': expected numbers separated by commas, such as 0.4,0.6") from None
    made = write_average([open_bundle(each) for each in bundles], name, numbers)
    if json:
        print_json({"bundle": str(made.path), "signature": made.signature})
    else:
        print_text(f"{made.name} has the mean of {len(bundles)} bundles; signature {made.signature}")
