"""`openafm adapter`: train, export, inspect, install, list and remove adapters. Delivery is in adapter_delivery.py."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import typer

from openafm.cli.models import adapter_delivery
from openafm.cli.options import PluginsOption, SetOption, parse_changes
from openafm.cli.output import JsonOption, print_json, print_table, print_text
from openafm.core.errors import UsageError

app = typer.Typer(
    help="Train, distribute and install adapters: low-rank weights that specialize a base model.", no_args_is_help=True
)
app.command()(adapter_delivery.keygen)
app.command()(adapter_delivery.serve)
app.command()(adapter_delivery.pull)

BaseOption = Annotated[str | None, typer.Option(help="The base bundle, by name or path; default: the current model.")]
MetadataOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Add to the metadata `creatorDefined`. May be repeated."),
]


@app.command()
def train(
    data: Annotated[Path, typer.Option(help="Training conversations as chat JSONL, in the same form as for on_device.sft.")],
    base: BaseOption = None,
    evaluation: Annotated[Path | None, typer.Option("--eval", help="Held-out conversations, in the same form.")] = None,
    name: Annotated[str, typer.Option(help="The adapter's name: letters, digits, underscores.")] = "adapter",
    rank: Annotated[int, typer.Option(help="The rank of the adapter's matrices.")] = 32,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 5,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3,
    batch_size: Annotated[int, typer.Option(help="Mean number of conversations in a step.")] = 4,
    plugins: PluginsOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Run folder, default: runs/adapter-NAME; a run in it is resumed."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Train an adapter on a base bundle. Repeat the command to resume after an interruption."""
    from openafm.adapters.config import LoRAConfig
    from openafm.adapters.metadata import check_name
    from openafm.bundle import open_bundle, resolve_model
    from openafm.recipes.adapters.train import adapter_run, train_adapter

    check_name(name)  # raises for an invalid name before the training
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
    adapter: Annotated[Path, typer.Argument(help="Folder of the adapter, NAME.fmadapter.")],
    data: Annotated[Path, typer.Option(help="Training conversations, such as those of the adapter.")],
    evaluation: Annotated[
        Path | None, typer.Option("--eval", help="Held-out conversations to measure the acceptance on.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="The adapter's base, by name or path; default: found by its signature.")
    ] = None,
    size: Annotated[str, typer.Option(help="The size of the draft model: micro or nano.")] = "nano",
    name: Annotated[str | None, typer.Option(help="Name of the bundle; default: NAME_draft.")] = None,
    changes: SetOption = None,
    plugins: PluginsOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Run folder, default: runs/NAME; a run in it is resumed.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Train a draft model for an adapter. Speculative decoding gives the same answers in fewer steps of the base.

    Prints the acceptance. `openafm adapter export --draft NAME` adds the draft model to the adapter's folder.
    """
    from openafm.adapters.package import open_adapter
    from openafm.bundle import bundle_place, open_bundle
    from openafm.recipes.adapters.train import train_draft

    opened = open_adapter(adapter)
    name = name or f"{opened.name}_draft"
    bundle_place(name)  # raises for an invalid name before the training
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
    source: Annotated[Path, typer.Argument(help="Folder of a run or of an adapter.")],
    name: Annotated[str, typer.Option(help="The adapter's name: letters, digits, underscores.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Output folder; the adapter is OUTPUT/NAME.fmadapter.")],
    draft: Annotated[str | None, typer.Option(help="Bundle of a draft model for the base, by name or path.")] = None,
    draft_tokens: Annotated[int, typer.Option(help="Tokens drafted per step.")] = 5,
    author: Annotated[str, typer.Option(help="Author, for the metadata.")] = "",
    description: Annotated[str, typer.Option(help="Description, for the metadata.")] = "",
    license: Annotated[str, typer.Option(help="License, for the metadata.")] = "",
    values: MetadataOption = None,
    plugins: PluginsOption = None,
    json: JsonOption = False,
) -> None:
    """Write an adapter for distribution, NAME.fmadapter, with its metadata."""
    from openafm.adapters.package import AdapterAbout
    from openafm.recipes.adapters.export import export_adapter

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
    adapter: Annotated[str, typer.Argument(help="Folder of an adapter, or the name of an installed one.")],
    base: BaseOption = None,
    plugins: PluginsOption = None,
    json: JsonOption = False,
) -> None:
    """Verify and describe an adapter; for the name of an installed one, the version for the base."""
    from openafm.adapters.package import open_adapter
    from openafm.adapters.store import find_adapter
    from openafm.bundle import open_bundle, resolve_model

    if Path(adapter).is_dir() or Path(adapter).name != adapter:
        _show(open_adapter(Path(adapter)), json)
    else:
        _show(find_adapter(adapter, open_bundle(base or resolve_model()).signature), json)


@app.command()
def install(
    folder: Annotated[Path, typer.Argument(help="Folder of an adapter, NAME.fmadapter.")], json: JsonOption = False
) -> None:
    """Install an adapter from a local folder for use by name."""
    from openafm.adapters.store import install_adapter

    adapter = install_adapter(folder)
    if json:
        print_json({"identifier": adapter.identifier, "path": str(adapter.path)})
    else:
        print_text(f"{adapter.identifier} is installed ({adapter.path})")


@app.command("list")
def list_adapters(json: JsonOption = False) -> None:
    """List the installed adapters. An adapter without its base on this machine is obsolete."""
    from openafm.adapters.metadata import AdapterError
    from openafm.adapters.package import open_adapter
    from openafm.adapters.store import installed_adapters
    from openafm.recipes.adapters.export import local_bundle

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
    name: Annotated[str | None, typer.Argument(help="Adapter to remove, with all its versions.")] = None,
    obsolete: Annotated[
        bool, typer.Option("--obsolete", help="Remove all adapters without their base on this machine.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Remove an installed adapter, or all obsolete ones."""
    from openafm.adapters.store import remove_adapter
    from openafm.framework.backends.adapter import Adapter

    if (name is None) == (not obsolete):
        raise UsageError("pass either the NAME of an adapter or --obsolete")
    removed = Adapter.remove_obsolete() if name is None else [folder.name for folder in remove_adapter(name)]
    print_json({"removed": removed}) if json else print_text(
        "\n".join(f"removed {name}" for name in removed) or "nothing to remove"
    )


def _show(adapter: Any, json: bool) -> None:
    from openafm.adapters.describe import describe_adapter
    from openafm.recipes.adapters.export import local_bundle

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
    """Return the parsed JSON, or the text if it is not JSON."""
    try:
        return json_format.loads(text)
    except ValueError:
        return text
