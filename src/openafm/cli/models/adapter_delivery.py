"""`openafm adapter keygen`, `serve` and `pull`: signed delivery of adapters over HTTP."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.output import JsonOption, counted, print_json, print_text
from openafm.core.termination import ends_on_sigterm


def keygen(
    file: Annotated[Path, typer.Argument(help="Output file of the private key; the public key is written to FILE.pub.")],
    json: JsonOption = False,
) -> None:
    """Create a key pair: the private key signs served adapters, the public key verifies pulled ones."""
    from openafm.adapters.delivery.keys import public_file, write_key_pair

    key = write_key_pair(file)
    print_json({"private": str(file), "public": str(public_file(file)), "key": key}) if json else print(key)


def serve(
    folder: Annotated[Path, typer.Argument(help="Folder that contains the adapters, NAME.fmadapter.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all interfaces.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for a free one.")] = 8646,
    key: Annotated[
        Path | None, typer.Option(help="Private key to sign with; default: this user's, created on first use.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Serve the adapters of a folder over HTTP with a signed manifest. Ctrl-C stops the server."""
    from openafm.adapters.delivery.keys import public_key, read_private_key, write_key_pair
    from openafm.adapters.delivery.server import build_catalog, make_server
    from openafm.core.files import data_home

    key_file = key or data_home() / "keys" / "adapters"
    if key is None and not key_file.exists():
        write_key_pair(key_file)
    private_key = read_private_key(key_file)
    catalog = build_catalog(folder, private_key)
    server = make_server(catalog, host, port)
    offered = [adapter.identifier for adapter in catalog.manifest.adapters]
    url, public = f"http://{host}:{server.server_port}", public_key(private_key)
    if json:
        print_json({"url": url, "key": public, "adapters": offered})
    else:
        print_text(
            f"serving {', '.join(offered)}\n\n  openafm adapter pull {url} NAME --key {public}\n\nCtrl-C stops the server"
        )
    sys.stdout.flush()  # a parent process may wait for these lines on a pipe
    with ends_on_sigterm(), server:
        server.serve_forever()


def pull(
    url: Annotated[str, typer.Argument(help="URL of the server, such as http://127.0.0.1:8646.")],
    name: Annotated[str, typer.Argument(help="The adapter's name.")],
    key: Annotated[
        str | None,
        typer.Option(help="The server's public key or its file; default: the key remembered from the first pull."),
    ] = None,
    base: Annotated[str | None, typer.Option(help="The base bundle, by name or path; default: the current model.")] = None,
    max_bytes: Annotated[int, typer.Option(help="Refuse larger adapters.")] = 8 << 30,
    json: JsonOption = False,
) -> None:
    """Download and install an adapter for your base. Repeat the command to resume an interrupted download."""
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
        fetched = f"{counted(pulled.num_fetched, 'byte')} fetched" if pulled.num_fetched else "already installed"
        print_text(f"{adapter.identifier} is installed ({adapter.path}); {fetched}, signed by {pulled.key}")
