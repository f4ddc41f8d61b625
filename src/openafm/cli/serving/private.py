"""`openafm private`: releases and their log, relays, and the client of private nodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.cli.options import SetOption, parse_changes
from openafm.cli.output import JsonOption, print_json, print_text
from openafm.cli.serving.serve import HostOption
from openafm.core.errors import UsageError
from openafm.core.terminal import escaped
from openafm.core.termination import ends_on_sigterm

if TYPE_CHECKING:
    from starlette.types import ASGIApp

app = typer.Typer(help="Private compute: encrypted requests to nodes whose releases are logged.", no_args_is_help=True)
log_app = typer.Typer(help="Create, extend, show and serve a log of releases.", no_args_is_help=True)
app.add_typer(log_app, name="log")

LogArgument = Annotated[Path, typer.Argument(help="Folder of the log.")]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")]


@app.command()
def release(
    folder: Annotated[Path, typer.Argument(help="Folder of the node; its operator's key is created there if missing.")],
    model: Annotated[
        list[str] | None, typer.Option(help="A bundle to serve, by name or path; the first is the default.")
    ] = None,
    number: Annotated[int, typer.Option(min=1, help="Number of the release; higher than those before.")] = 1,
    minimum: Annotated[int, typer.Option(min=0, help="Clients refuse releases below this number.")] = 0,
    changes: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Measure this installation and fix the settings of a node. Add release.json to the log, then start the node."""
    from openafm.core.config import override
    from openafm.serving.config import ServerConfig
    from openafm.serving.private.node.folder import write_release

    config = override(ServerConfig(models=tuple(model or ())), parse_changes(changes))
    written = write_release(folder, config, number=number, minimum=minimum)
    if json:
        print_json({"release": written.number, "code": written.code, "weights": written.weights, "config": written.config})
    else:
        print_text(f"{folder / 'release.json'}: release {written.number} of {', '.join(written.weights)}")


@log_app.command("init")
def init(
    folder: LogArgument,
    origin: Annotated[str, typer.Option(help="Name of the log, such as example.com/releases.")],
    json: JsonOption = False,
) -> None:
    """Create an empty log and print its verifier key, which clients need."""
    from openafm.serving.private.log.release_log import ReleaseLog

    log = ReleaseLog.create(folder, origin)
    print_json({"key": str(log.key), "size": 0}) if json else print_text(str(log.key))


@log_app.command("add")
def add(
    folder: LogArgument,
    release: Annotated[Path, typer.Argument(help="release.json of a node.")],
    json: JsonOption = False,
) -> None:
    """Append a release. An entry is never changed or removed."""
    from openafm.core.regular_files import read_document
    from openafm.serving.private.log.release_log import ReleaseLog
    from openafm.serving.private.log.releases import read_release

    index = ReleaseLog(folder).add(read_release(read_document(release, 1 << 20)))
    print_json({"index": index, "size": index + 1}) if json else print_text(f"entry {index}")


@log_app.command("show")
def show(folder: LogArgument, json: JsonOption = False) -> None:
    """Print the verifier key, the signed checkpoint and the releases."""
    from openafm.serving.private.log.release_log import ReleaseLog
    from openafm.serving.private.log.releases import read_release

    log = ReleaseLog(folder)
    releases = [read_release(entry) for entry in log.entries]
    if json:
        print_json({"key": str(log.key), "checkpoint": log.signed, "releases": [vars(each) for each in releases]})
        return
    print_text(f"{log.key}\n\n{log.signed}")
    for index, each in enumerate(releases):
        print_text(
            f"{index}: release {each.number}, minimum {each.minimum}, {', '.join(each.weights)}, code {each.code[:16]}"
        )


@log_app.command("cosign")
def cosign(
    folder: LogArgument,
    key: Annotated[str, typer.Argument(help="Verifier key of the witness.")],
    signature: Annotated[str, typer.Argument(help="The signature line that `openafm private witness` prints.")],
) -> None:
    """Add the signature of a witness to the checkpoint."""
    from openafm.serving.private.log.notes import VerifierKey
    from openafm.serving.private.log.release_log import ReleaseLog

    ReleaseLog(folder).cosign(signature, VerifierKey.parse(key))


@log_app.command("serve")
def serve_log(
    folder: LogArgument, host: HostOption = "127.0.0.1", port: PortOption = 8030, json: JsonOption = False
) -> None:
    """Serve a log over HTTP. It is public and needs no key. Ctrl-C stops the server."""
    from openafm.serving.private.log.server import build_log_server

    _run(build_log_server(folder), host, port, json)


@app.command()
def witness(
    url: Annotated[str, typer.Argument(help="URL of the log.")],
    log_key: Annotated[str, typer.Argument(help="Verifier key of the log.")],
    name: Annotated[str, typer.Option(help="Name of the witness, such as example.org/witness.")],
    key: Annotated[Path, typer.Option(help="Private key of the witness; created if missing.")] = Path("witness.key"),
    json: JsonOption = False,
) -> None:
    """Sign the checkpoint of a log if it contains the one that this witness signed before."""
    from openafm.serving.private.log.witness import cosignature

    verifier, line = cosignature(url, log_key, name, key)
    print_json({"key": verifier, "signature": line}) if json else print_text(f"{verifier}\n{line}")


@app.command()
def trust(
    key: Annotated[str, typer.Argument(help="Verifier key of the log, as `openafm private log show` prints it.")],
    log: Annotated[str, typer.Option(help="URL of the log.")],
    witness: Annotated[list[str] | None, typer.Option(help="Verifier key of a witness. May be repeated.")] = None,
    quorum: Annotated[int | None, typer.Option(min=0, help="Witnesses that must have signed; default: all.")] = None,
    witness_days: Annotated[float, typer.Option(min=0.01, help="How old signatures of witnesses may be.")] = 7.0,
    log_days: Annotated[float, typer.Option(min=0.01, help="How old the log's own signature with a time may be.")] = 7.0,
) -> None:
    """Choose the log that must list the releases of nodes."""
    from openafm.serving.private.client import trust_file, write_trust
    from openafm.serving.private.verification import Trust

    witnesses = tuple(witness or ())
    needed = len(witnesses) if quorum is None else quorum
    chosen = Trust(
        log=log,
        log_key=key,
        witnesses=witnesses,
        quorum=needed,
        max_witness_days=witness_days,
        max_log_days=log_days,
    )
    write_trust(chosen)
    print_text(f"stored in {trust_file()}")


@app.command()
def ask(
    nodes: Annotated[
        str, typer.Argument(help="URLs of nodes or relays, with commas between them; one is chosen at random.")
    ],
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads standard input.")],
    accept: Annotated[
        list[str] | None, typer.Option(help="Use nodes with this assurance: software-only, for which no hardware vouches.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model of the node.")] = None,
    instructions: Annotated[str | None, typer.Option("--instructions", "-i", help="Instructions.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Token limit of the answer.")] = 512,
    key: Annotated[
        str,
        typer.Option(envvar="OPENAFM_PRIVATE_KEY", help="API key of the node or relay; its owner's requests can be linked."),
    ] = "",
    json: JsonOption = False,
) -> None:
    """Verify a node, send it an encrypted request and print the answer as it is generated."""
    from openafm.serving.private.client import PrivateClient, read_trust

    text = sys.stdin.read() if prompt == "-" else prompt
    messages = [{"role": "system", "content": instructions}] if instructions else []
    options = {"max_tokens": max_tokens} | ({"model": model} if model else {})
    client = PrivateClient([each for each in nodes.split(",") if each], read_trust(), accept or (), key)
    pieces = []
    for piece in client.chat([*messages, {"role": "user", "content": text}], **options):
        pieces.append(piece)
        if not json:
            print(escaped(piece), end="", flush=True)
    print_json({"content": "".join(pieces)}) if json else print()


@app.command()
def relay(
    to: Annotated[str, typer.Option(help="URL of the node.")],
    node_key: Annotated[
        str, typer.Option(envvar="OPENAFM_NODE_KEY", help="The relay's API key of the node, the same for all users.")
    ] = "",
    host: HostOption = "127.0.0.1",
    port: PortOption = 8020,
    json: JsonOption = False,
) -> None:
    """Forward encrypted requests to a node without the addresses and headers of clients. Ctrl-C stops the relay."""
    from openafm.serving.config import ServerConfig
    from openafm.serving.private.relay import build_relay
    from openafm.serving.server import check_keys

    if not to.startswith(("http://", "https://")):
        raise UsageError(f"'{to}' is not the URL of a node; pass one such as http://localhost:8000")
    config = ServerConfig(host=host, port=port)
    check_keys(config)
    _run(build_relay(config, to, node_key), host, port, json)


def _run(application: ASGIApp, host: str, port: int, json: bool) -> None:
    import uvicorn

    from openafm.serving.config import ServerConfig
    from openafm.serving.server import bind, uvicorn_config

    config = ServerConfig(host=host, port=port)
    with ends_on_sigterm(), bind(config) as bound:
        url = f"http://{'localhost' if host == '127.0.0.1' else host}:{bound.getsockname()[1]}"
        print_json({"url": url}) if json else print_text(f"{url}\n\nCtrl-C stops the server")
        sys.stdout.flush()  # a parent process may wait for this line on a pipe
        uvicorn.Server(uvicorn_config(config, application)).run(sockets=[bound])
