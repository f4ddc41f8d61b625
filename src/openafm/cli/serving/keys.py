"""`openafm keys`: API keys of the server."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from openafm.cli.output import JsonOption, print_json, print_table, print_text

app = typer.Typer(help="Create, list and revoke API keys of the server.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Who or what uses the key.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="inference, metrics or admin; may be repeated. Default: inference.")
    ] = None,
    days: Annotated[float | None, typer.Option(min=0, help="Days until the key expires; default: never.")] = None,
    requests_per_minute: Annotated[float | None, typer.Option(help="Limit of requests.")] = None,
    tokens_per_minute: Annotated[float | None, typer.Option(help="Limit of computed and generated tokens.")] = None,
    priority: Annotated[int, typer.Option(help="Requests of higher priorities are computed first.")] = 0,
    json: JsonOption = False,
) -> None:
    """Create a key and print it. It is shown only now: the file holds its hash."""
    from openafm.serving.keys import create_key

    text, key = create_key(
        name,
        scope or ("inference",),
        days=days,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        priority=priority,
    )
    print_json({"key": text, "id": key.id, "name": key.name, "scopes": key.scopes}) if json else print_text(text)


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """List the keys without their secrets."""
    from openafm.serving.keys import keys_file, read_keys

    keys = read_keys(keys_file())
    if json:
        print_json([{name: value for name, value in vars(key).items() if name != "digest"} for key in keys])
        return
    rows = [
        (key.id, key.name, " ".join(key.scopes), _day(key.created), "never" if key.expires is None else _day(key.expires))
        for key in keys
    ]
    print_table(("id", "name", "scopes", "created", "expires"), rows)


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(help="Id or name of the key.")],
    json: JsonOption = False,
) -> None:
    """Revoke a key. Running servers refuse it from their next request on."""
    from openafm.serving.keys import revoke_key

    revoked = revoke_key(key)
    print_json({"revoked": revoked.id}) if json else print_text(f"revoked {revoked.id} ({revoked.name})")


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))
