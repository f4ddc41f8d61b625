"""`openafm list`, `openafm alias`, `openafm pull` and `openafm share`: the bundles of this machine."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openafm.cli.output import JsonOption, counted, human_bytes, print_json, print_table, print_text
from openafm.core.errors import UsageError
from openafm.core.termination import ends_on_sigterm

if TYPE_CHECKING:
    from openafm.bundle.library.entries import LibraryEntry


def list_(json: JsonOption = False) -> None:
    """List the bundles of this machine: size, engine, numerics, aliases and last use."""
    from openafm.bundle.library.entries import library_entries

    listing = [_facts(entry) for entry in library_entries()]
    total = sum(each["bytes"] for each in listing)
    if json:
        print_json({"bundles": listing, "total_bytes": total})
        return
    if not listing:
        print_text("no bundles yet; `openafm quickstart`, `openafm import` or `openafm pull` adds one")
        return
    rows = [_row(each) for each in listing]
    print_table(("name", "current", "size", "engine", "weights", "aliases", "last use", "from"), rows)
    print_text(f"\n{human_bytes(total)} in {counted(len(listing), 'bundle')}")


def _facts(entry: LibraryEntry) -> dict[str, Any]:
    from openafm.runtime.engines.selection import engine_name

    bundle = entry.bundle
    used = None if entry.last_used is None else datetime.datetime.fromtimestamp(entry.last_used, datetime.UTC)
    return {
        "name": entry.path.name,
        "aliases": list(entry.aliases),
        "from": entry.origin,
        "path": str(entry.path),
        "bytes": entry.num_bytes,
        "engine": None if bundle is None else engine_name(bundle),
        "weights": None if bundle is None else bundle.numerics.weights,
        "activations": None if bundle is None else bundle.numerics.activations,
        "context_length": None if bundle is None else bundle.config.context_length,
        "signature": None if bundle is None else bundle.signature,
        "last_used": None if used is None else used.isoformat(timespec="seconds"),
        "current": entry.is_current,
        "problem": entry.problem,
    }


def _row(facts: dict[str, Any]) -> tuple[Any, ...]:
    used = facts["last_used"] and facts["last_used"][:10]
    engine = "damaged" if facts["problem"] else facts["engine"]
    current = "*" if facts["current"] else ""
    named = " ".join(facts["aliases"])
    return facts["name"], current, human_bytes(facts["bytes"]), engine, facts["weights"], named, used, facts["from"]


def alias(
    name: Annotated[str, typer.Argument(metavar="ALIAS", help="The new name; every command accepts it.")],
    bundle: Annotated[str | None, typer.Argument(metavar="NAME", help="The bundle that it stands for.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the alias; the bundle stays.")] = False,
    json: JsonOption = False,
) -> None:
    """Give a bundle of this machine another name, or remove such a name."""
    from openafm.bundle.store import set_alias

    if remove == (bundle is not None):
        raise UsageError("pass ALIAS NAME to set an alias, or ALIAS --remove to remove one")
    set_alias(name, bundle)
    if json:
        print_json({"alias": name, "bundle": bundle})
    else:
        print_text(f"{name} stands for {bundle}" if bundle else f"removed the alias {name}")


def pull(
    source: Annotated[str, typer.Argument(help="Folder, file URL, URL of `openafm share`, or OWNER/NAME of the hub.")],
    bundle: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The bundle's name on a server; default: its only one.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name on this machine; default: that of the source.")] = None,
    key: Annotated[
        str | None, typer.Option(help="The server's public key or its file; default: the key of the first pull.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Add a bundle to this machine, verified. Repeat the command to resume an interrupted download."""
    from openafm.adapters.delivery.keys import read_public_key
    from openafm.bundle.library import pulling

    is_server = source.startswith(("http://", "https://"))
    if bundle is not None and not is_server:
        raise UsageError("only a server has bundles to choose from: `openafm pull URL NAME`; other sources are one bundle")
    if key is not None and not is_server:
        raise UsageError("--key belongs to a server")
    if is_server:
        pulled = pulling.pull_served(source, bundle, name, None if key is None else read_public_key(key))
    elif pulling.is_hub_name(source):
        pulled = pulling.pull_hub(source, name)
    else:
        pulled = pulling.pull_copy(source, name)
    found = pulled.bundle
    if json:
        values = {"bundle": str(found.path), "signature": found.signature, "fetched_bytes": pulled.num_fetched}
        print_json(values | {"key": pulled.key, "notes": pulled.notes})
        return
    for note in pulled.notes:
        print_text(f"note: {note}")
    signed = f", signed by {pulled.key}" if pulled.key else ""
    print_text(f"{found.name} is installed ({found.path}){signed}; `openafm use {found.name}` makes it the current model")


def share(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Bundles by name or path.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all interfaces.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for a free one.")] = 8647,
    key: Annotated[
        Path | None, typer.Option(help="Private key to sign with; default: this user's, created on first use.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Serve bundles over HTTP with a signed manifest, for `openafm pull`. Ctrl-C stops the server."""
    from openafm.adapters.delivery.keys import public_key, read_private_key, write_key_pair
    from openafm.adapters.delivery.server import make_server
    from openafm.bundle import open_bundle
    from openafm.bundle.library.sharing import share_bundles
    from openafm.core.files import data_home

    key_file = key or data_home() / "keys" / "bundles"
    if key is None and not key_file.exists():
        write_key_pair(key_file)
    private_key = read_private_key(key_file)
    bundles = [open_bundle(name) for name in names]
    server = make_server(share_bundles(bundles, private_key), host, port)
    url, public = f"http://{host}:{server.server_port}", public_key(private_key)
    offered = [bundle.name for bundle in bundles]
    if json:
        print_json({"url": url, "key": public, "bundles": offered})
    else:
        commands = "\n".join(f"  openafm pull {url} {name} --key {public}" for name in offered)
        print_text(f"serving {', '.join(offered)}\n\n{commands}\n\nCtrl-C stops the server")
    sys.stdout.flush()  # a parent process may wait for these lines on a pipe
    with ends_on_sigterm(), server:
        server.serve_forever()
