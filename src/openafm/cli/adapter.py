"""`openafm adapter`: train, export, inspect, install, list and remove adapters; delivery is in adapter_delivery.py."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import typer

from openafm.cli import adapter_delivery
from openafm.cli.output import JsonOption, print_json, print_table
from openafm.cli.train import parse_changes
from openafm.core.errors import UsageError

app = typer.Typer(help="Adapters: small sets of weights that make one base do one thing well.", no_args_is_help=True)
app.command()(adapter_delivery.keygen)
app.command()(adapter_delivery.serve)
app.command()(adapter_delivery.pull)

BaseOption = Annotated[
    str | None, typer.Option(help="The bundle that it is for, by name or path; by default the one that answers.")
]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Put KEY=VALUE into creatorDefined. May be repeated.")]


class NothingToRemoveError(UsageError):
    """Neither a name nor --obsolete, or both."""


@app.command()
def train(
    data: Annotated[Path, typer.Option(help="Conversations to learn from: chat JSONL, as for on_device.sft.")],
    base: BaseOption = None,
    evaluation: Annotated[Path | None, typer.Option("--eval", help="Conversations held out, in the same form.")] = None,
    name: Annotated[str, typer.Option(help="The adapter's name: letters, digits, underscores.")] = "adapter",
    rank: Annotated[int, typer.Option(help="The rank of the adapter's matrices.")] = 32,
    epochs: Annotated[int, typer.Option(help="How often to go through the data.")] = 5,
    learning_rate: Annotated[float, typer.Option(help="The highest learning rate.")] = 1e-3,
    batch_size: Annotated[int, typer.Option(help="Conversations in a step, on average.")] = 4,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Run folder, by default runs/adapter-NAME; a run found there is resumed."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Train an adapter on a bundle. Killed at any point, the same command goes on where it stopped."""
    from openafm.adapters.config import LoRAConfig
    from openafm.adapters.metadata import check_name
    from openafm.bundle import open_bundle, resolve_model
    from openafm.recipes.adapter import adapter_run, train_adapter

    check_name(name)  # told before the training, not after it
    changes = {
        "lora": LoRAConfig(rank=rank),
        "epochs": epochs,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
    }
    config = adapter_run(open_bundle(base or resolve_model()), data, evaluation, changes)
    result = train_adapter(config, output or Path("runs") / f"adapter-{name}", name)
    if json:
        print_json(result.to_dict())
        return
    if result.eval_losses:
        print_table(("epoch", "eval loss"), list(enumerate(result.eval_losses, start=1)))
        print()
    print_table(("", ""), [(key, value) for key, value in result.to_dict().items() if key != "eval_losses"])


@app.command("draft-train")
def draft_train(
    adapter: Annotated[Path, typer.Argument(help="The folder of the adapter to draft for, NAME.fmadapter.")],
    data: Annotated[Path, typer.Option(help="Conversations to learn from, those that the adapter learned from, say.")],
    evaluation: Annotated[Path | None, typer.Option("--eval", help="Conversations held out, to measure by.")] = None,
    base: Annotated[
        str | None, typer.Option(help="The adapter's base, by name or path, where it is not among your bundles.")
    ] = None,
    size: Annotated[str, typer.Option(help="The size of the draft model, as of on_device.draft.")] = "nano",
    name: Annotated[str | None, typer.Option(help="Name of the bundle made; by default NAME_draft.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change one value, as of `openafm train`. May be repeated.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Run folder, by default runs/NAME; a run found there is resumed.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Train a draft model for an adapter, for speculative decoding: answers stay as they are and take fewer steps.

    Prints how many of its drafts are accepted. `openafm adapter export --draft NAME` puts it into the adapter's folder.
    """
    from openafm.adapters.package import open_adapter
    from openafm.bundle import bundle_place, open_bundle
    from openafm.recipes.adapter import train_draft

    opened = open_adapter(adapter)
    name = name or f"{opened.name}_draft"
    bundle_place(name)  # a name that cannot be one is told before the training, not after it
    folder = output or Path("runs") / name
    target = None if base is None else open_bundle(base)
    values = parse_changes(changes)
    result = train_draft(opened, data, evaluation, folder, name, base=target, size=size, changes=values)
    if json:
        print_json(result.to_dict())
    else:
        print_table(("", ""), list(result.to_dict().items()))


@app.command()
def export(
    source: Annotated[Path, typer.Argument(help="The folder of a run, or of an adapter.")],
    name: Annotated[str, typer.Option(help="The adapter's name: letters, digits, underscores.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write NAME.fmadapter into.")],
    draft: Annotated[str | None, typer.Option(help="A bundle that drafts for the base, by name or path.")] = None,
    draft_tokens: Annotated[int, typer.Option(help="How many tokens it drafts at a time.")] = 5,
    author: Annotated[str, typer.Option(help="Who made it.")] = "",
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
    license: Annotated[str, typer.Option(help="What others may do with it.")] = "",
    values: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Write an adapter for others, NAME.fmadapter, with what its author has to tell."""
    from openafm.adapters.package import AdapterAbout
    from openafm.recipes.adapter import export_adapter

    about = AdapterAbout(
        author=author,
        description=description,
        license=license,
        draft_token_count=draft_tokens,
        creator_defined={key: _value(text) for key, text in parse_changes(values).items()},
    )
    _show(export_adapter(source, name, output, about, draft), json)


@app.command()
def inspect(
    adapter: Annotated[str, typer.Argument(help="The folder of an adapter, or the name of an installed one.")],
    base: BaseOption = None,
    json: JsonOption = False,
) -> None:
    """Describe an adapter, verifying its digest; of an installed one, the version for the base."""
    from openafm.adapters.package import open_adapter
    from openafm.adapters.store import find_adapter
    from openafm.bundle import open_bundle, resolve_model

    if Path(adapter).is_dir() or Path(adapter).name != adapter:
        _show(open_adapter(Path(adapter)), json)
    else:
        _show(find_adapter(adapter, open_bundle(base or resolve_model()).signature), json)


@app.command()
def install(
    folder: Annotated[Path, typer.Argument(help="The folder of an adapter, NAME.fmadapter.")], json: JsonOption = False
) -> None:
    """Install an adapter from this machine, so that it can be used by its name."""
    from openafm.adapters.store import install_adapter

    adapter = install_adapter(folder)
    if json:
        print_json({"identifier": adapter.identifier, "path": str(adapter.path)})
    else:
        print(f"{adapter.identifier} is installed ({adapter.path})")


@app.command("list")
def list_adapters(json: JsonOption = False) -> None:
    """List the installed adapters; one without a base on this machine is obsolete."""
    from openafm.adapters.metadata import AdapterError
    from openafm.adapters.package import open_adapter
    from openafm.adapters.store import installed_adapters
    from openafm.recipes.adapter import local_bundle

    listing: list[dict[str, Any]] = []
    for folder in installed_adapters():
        entry: dict[str, Any] = {
            "name": folder.parent.name,
            "identifier": folder.name,
            "base": None,
            "rank": None,
            "path": str(folder),
        }
        try:
            adapter = open_adapter(folder)
            base = local_bundle(adapter.base_signature)
            entry |= {"rank": adapter.config.rank, "base": None if base is None else base.name, "error": None}
        except AdapterError as error:
            entry |= {"error": str(error)}
        listing.append(entry)
    if json:
        print_json(listing)
        return
    rows = [
        (e["name"], e["identifier"], "damaged" if e["error"] else e["base"] or "obsolete", e["rank"] or "-", e["path"])
        for e in listing
    ]
    print_table(("name", "identifier", "base", "rank", "path"), rows)


@app.command()
def remove(
    name: Annotated[str | None, typer.Argument(help="The adapter to remove, in all its versions.")] = None,
    obsolete: Annotated[bool, typer.Option("--obsolete", help="Remove those for no base on this machine.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove an installed adapter, or all that no base on this machine can use."""
    from openafm.adapters.store import remove_adapter
    from openafm.framework.backends.adapter import Adapter

    if (name is None) == (not obsolete):
        raise NothingToRemoveError("give the NAME of an adapter or --obsolete, one of the two")
    removed = Adapter.remove_obsolete() if name is None else [folder.name for folder in remove_adapter(name)]
    print_json({"removed": removed}) if json else print(
        "\n".join(f"removed {name}" for name in removed) or "nothing to remove"
    )


def _show(adapter: Any, json: bool) -> None:
    from openafm.adapters.describe import describe_adapter
    from openafm.recipes.adapter import local_bundle

    base = local_bundle(adapter.base_signature)
    values = describe_adapter(adapter).to_dict() | {"base": None if base is None else base.name}
    if json:
        print_json(values)
    else:
        rows = [(key, "-" if value in (None, "", (), {}) else _cell(value)) for key, value in values.items()]
        print_table(("", ""), rows)


def _cell(value: object) -> object:
    if isinstance(value, tuple):
        return " ".join(value)
    return json_format.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


def _value(text: str) -> Any:
    """JSON where it is JSON, else the text itself."""
    try:
        return json_format.loads(text)
    except ValueError:
        return text
