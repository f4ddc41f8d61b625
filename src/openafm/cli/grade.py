"""`openafm grade`: side-by-side grading of answers."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.cli.output import JsonOption, print_json, print_text
from openafm.core.errors import UsageError
from openafm.core.libraries import needed

if TYPE_CHECKING:
    from openafm.annotation.grading.judgments import JudgmentStore

app = typer.Typer(help="Compare systems' answers side by side: people or a judge model grade them.", no_args_is_help=True)

ProjectArgument = Annotated[Path, typer.Argument(help="Folder of the project.")]
DatabaseOption = Annotated[
    str, typer.Option(help="PostgreSQL URL, such as postgresql://user@host/name; default: an SQLite file in the project.")
]


@app.command()
def init(
    project: ProjectArgument,
    items: Annotated[
        Path | None, typer.Option(exists=True, help="JSONL file with items; default: a sample in nine locales.")
    ] = None,
    title: Annotated[str, typer.Option(help="Title on the page; default: the folder's name.")] = "",
    overlap: Annotated[int, typer.Option(min=1, help="People who judge each comparison.")] = 3,
    json: JsonOption = False,
) -> None:
    """Create a project. Images that items name are copied from the folder of the items."""
    with _libraries():
        from openafm.annotation.grading.items import read_items
        from openafm.annotation.grading.project import create_project
        from openafm.annotation.grading.sample import create_sample
    from openafm.core.files import copy_files

    if items is None:
        created = create_sample(project)
    else:
        found = read_items(items)
        copy_files(items.parent, project, sorted({image for item in found for image in item.images}), 1 << 30)
        created = create_project(project, found, title=title, overlap=overlap)
    result = {"project": str(project), "items": len(created.items), "comparisons": len(created.tasks)}
    if json:
        print_json(result)
    else:
        print_text(
            f"{project}: {len(created.items)} items, {len(created.tasks)} comparisons of {', '.join(created.systems)}\n"
            f"next: openafm grade serve --project {project}"
        )


@app.command()
def serve(
    project: Annotated[Path | None, typer.Option(help="Folder of the project; default: the sample.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; other addresses than loopback ones need accounts.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")] = 8010,
    accounts: Annotated[bool, typer.Option("--accounts", help="People sign in on a loopback address too.")] = False,
    public_url: Annotated[str, typer.Option(help="How browsers reach the server, if a proxy is before it.")] = "",
    database: DatabaseOption = "",
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file of the certificate chain.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of the private key.")] = None,
    json: JsonOption = False,
) -> None:
    """Serve the grading page. Ctrl-C stops the server."""
    with _libraries():
        from openafm.annotation.grading.server import build_grading_app
        from openafm.annotation.people.accounts import Accounts
        from openafm.annotation.web import WebConfig, first_invite
        from openafm.annotation.web import serve as run
        from openafm.serving.server import bind

    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key belong together; pass both")
    config = WebConfig(
        host=host,
        port=port,
        public_url=public_url.rstrip("/"),
        needs_accounts=accounts,
        tls_certificate=str(tls_cert or ""),
        tls_key=str(tls_key or ""),
    )
    settings = config.server()
    store = _open(_sample() if project is None else project, database)
    application = build_grading_app(store, config)
    with bind(settings) as bound:
        shown = "localhost" if host in ("0.0.0.0", "::", "127.0.0.1") else host
        url = config.public_url or f"{'https' if tls_cert else 'http'}://{shown}:{bound.getsockname()[1]}"
        link = first_invite(Accounts(store.database, store.clock), config, url)
        if json:
            print_json({"url": url, "project": str(store.project.folder), "first_invite": link})
        else:
            who = "you are the admin; no account is needed" if not config.has_accounts else "people sign in"
            invite = "" if link is None else f"\nfirst admin: {link}   (one person can use this link)"
            print_text(f"{url}   {store.project.title}; {who}{invite}\n\nCtrl-C stops the server")
        sys.stdout.flush()  # a parent process may wait for these lines on a pipe
        run(application, config, bound)


@app.command()
def invite(
    project: ProjectArgument,
    role: Annotated[str, typer.Option(help="annotator, reviewer or admin.")] = "annotator",
    url: Annotated[str, typer.Option(help="Address of the server.")] = "http://localhost:8010",
    database: DatabaseOption = "",
    json: JsonOption = False,
) -> None:
    """Print an invite link. One person can use it within a week."""
    with _libraries():
        from openafm.annotation.people.accounts import Accounts, Role
    from openafm.core.config import nearest

    if role not in list(Role):
        raise UsageError(f"unknown role '{role}'{nearest(role, list(Role))}")
    store = _open(project, database)
    token = Accounts(store.database, store.clock).invite(Role(role), [store.project.config.id])
    link = f"{url.rstrip('/')}/join#{token}"
    print_json({"link": link, "role": role}) if json else print_text(link)


def _libraries() -> AbstractContextManager[None]:
    return needed("grading", "fastapi, uvicorn and SQLAlchemy", "annotate")


def _open(project: Path, database: str) -> JudgmentStore:
    with _libraries():
        from openafm.annotation.grading.project import open_project
        from openafm.annotation.grading.server import open_store

    return open_store(open_project(project), database)


def _sample() -> Path:
    """Return the folder of the sample project; create it the first time."""
    from openafm.annotation.grading.project import SETTINGS
    from openafm.annotation.grading.sample import create_sample
    from openafm.core.files import data_home

    folder = data_home() / "grading" / "sample"
    if not (folder / SETTINGS).exists():
        create_sample(folder)
    return folder
