"""The verbs of `openafm adapter` that bring adapters from one machine to another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.output import JsonOption, print_json


def keygen(
    file: Annotated[Path, typer.Argument(help="Where the private key goes; the public one goes beside it, FILE.pub.")],
    json: JsonOption = False,
) -> None:
    """Make a pair of keys: the private one signs what you serve, the public one is for those who pull."""
    from openafm.adapters.delivery.keys import public_file, write_key_pair

    key = write_key_pair(file)
    print_json({"private": str(file), "public": str(public_file(file)), "key": key}) if json else print(key)


def serve(
    folder: Annotated[Path, typer.Argument(help="The folder that holds the adapters, NAME.fmadapter.")],
    host: Annotated[str, typer.Option(help="The address to answer at; 0.0.0.0 is every one of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to answer at; 0 takes a free one.")] = 8646,
    key: Annotated[
        Path | None, typer.Option(help="The private key to sign with; by default one of this user, made when needed.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Serve the adapters of a folder over HTTP, with a signed manifest, until interrupted."""
    from openafm.adapters.delivery.keys import public_key, read_private_key, write_key_pair
    from openafm.adapters.delivery.server import make_server, stock
    from openafm.core.files import data_home

    key_file = key or data_home() / "keys" / "adapters"
    if key is None and not key_file.exists():
        write_key_pair(key_file)
    private_key = read_private_key(key_file)
    shelf = stock(folder, private_key)
    server = make_server(shelf, host, port)
    offered = [adapter.identifier for adapter in shelf.manifest.adapters]
    url, public = f"http://{host}:{server.server_port}", public_key(private_key)
    if json:
        print_json({"url": url, "key": public, "adapters": offered})
    else:
        print(f"serving {', '.join(offered)}\n\n  openafm adapter pull {url} NAME --key {public}\n\nuntil Ctrl-C")
    sys.stdout.flush()  # who started the server may wait for these lines at the end of a pipe
    try:
        server.serve_forever()
    finally:
        server.server_close()


def pull(
    url: Annotated[str, typer.Argument(help="The server, such as http://127.0.0.1:8646.")],
    name: Annotated[str, typer.Argument(help="The adapter's name.")],
    key: Annotated[
        str | None,
        typer.Option(help="The server's public key, or its file; by default the one that it showed at the first time."),
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="The bundle that it is for, by name or path; by default the one that answers.")
    ] = None,
    max_bytes: Annotated[int, typer.Option(help="Refuse what is larger.")] = 8 << 30,
    json: JsonOption = False,
) -> None:
    """Install the adapter that a server has for your base. A download that was interrupted goes on."""
    from openafm.adapters.delivery.client import pull_adapter
    from openafm.adapters.delivery.keys import read_public_key
    from openafm.bundle import open_bundle, resolve_model

    signature = open_bundle(base or resolve_model()).signature
    pulled = pull_adapter(url, name, signature, None if key is None else read_public_key(key), max_bytes)
    adapter = pulled.adapter
    if json:
        values = {"identifier": adapter.identifier, "path": str(adapter.path), "fetched_bytes": pulled.num_fetched}
        print_json(values | {"key": pulled.key})
    else:
        fetched = f"{pulled.num_fetched:,} bytes fetched" if pulled.num_fetched else "it was here already"
        print(f"{adapter.identifier} is installed ({adapter.path}); {fetched}, signed by {pulled.key}")
