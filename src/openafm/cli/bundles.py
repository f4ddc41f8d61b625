"""`openafm inspect` and `openafm use`."""

from __future__ import annotations

from typing import Annotated

import typer

from openafm.cli.options import PluginsOption
from openafm.cli.output import JsonOption, print_json, print_table


def inspect(
    name: Annotated[str, typer.Argument(help="Bundle by name or path, or a named size such as on_device.base.")],
    plugins: PluginsOption = None,
    json: JsonOption = False,
) -> None:
    """Verify and describe a bundle, or describe a named size without weights."""
    from openafm.bundle import open_bundle
    from openafm.bundle.describe import describe_bundle, describe_size
    from openafm.models.sizes import SIZES

    description = describe_size(name) if name in SIZES else describe_bundle(open_bundle(name))
    if json:
        print_json(description.to_dict())
    else:
        rows = [(key, "-" if value is None else value) for key, value in description.to_dict().items()]
        print_table(("", ""), rows)


def use(
    name: Annotated[str | None, typer.Argument(help="Bundle to make the current model, by name or path.")] = None,
    json: JsonOption = False,
) -> None:
    """Set the current model, which commands use by default. Without NAME, list the bundles on this machine."""
    from openafm.bundle import choose_model, open_bundle

    if name is None:
        _list_bundles(json)
        return
    bundle = open_bundle(name)
    bundle.verify()
    chosen = choose_model(bundle.path)
    print_json({"bundle": str(chosen)}) if json else print(f"the current model is {chosen.name} ({chosen})")


def _list_bundles(json: bool) -> None:
    from openafm.bundle import BundleNotFoundError, list_bundles, resolve_model, shipped_bundle

    try:
        answering = resolve_model()
    except BundleNotFoundError:
        answering = None
    found = [(path, "local") for path in list_bundles()]
    if (shipped := shipped_bundle()) is not None:
        found.append((shipped, "shipped"))
    listing = [{"name": p.name, "from": origin, "path": str(p), "answers": p == answering} for p, origin in found]
    if json:
        print_json(listing)
    else:
        rows = [(b["name"], "*" if b["answers"] else "", b["from"], b["path"]) for b in listing]
        print_table(("name", "current", "from", "path"), rows)
