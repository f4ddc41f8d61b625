"""`openafm resign`: bundles of format version 1 in the current format."""

from __future__ import annotations

from typing import Annotated

import typer

from openafm.cli.output import JsonOption, print_json, print_text


def resign(
    name: Annotated[str, typer.Argument(help="A bundle of format version 1, by name or path.")],
    json: JsonOption = False,
) -> None:
    """Verify a bundle of format version 1 and sign it again, in place. Adapters for its old signature no longer fit."""
    from openafm.bundle.resign import resign_bundle
    from openafm.bundle.store import find_bundle

    bundle = resign_bundle(find_bundle(name))
    if json:
        print_json({"bundle": str(bundle.path), "signature": bundle.signature})
    else:
        print_text(f"{bundle.name} has format version 2 and the signature {bundle.signature}")
