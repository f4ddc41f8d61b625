"""`openafm annotate`: annotation of tool use in the browser, and its exports."""

from __future__ import annotations

import sys
import tempfile
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.cli.output import JsonOption, print_json, print_text
from openafm.core.errors import UsageError
from openafm.core.libraries import needed

if TYPE_CHECKING:
    from openafm.annotation.environments.project import Project
    from openafm.framework.backends.language_model import LanguageModel

app = typer.Typer(help="Annotate tool use: correct the steps of a live agent.", no_args_is_help=True)

SCRIPTED = "scripted"

ProjectOption = Annotated[Path, typer.Option(help="Folder of the project.")]
DatabaseOption = Annotated[
    str, typer.Option(help="PostgreSQL URL, such as postgresql://user@host/name; default: an SQLite file in the project.")
]


class Target(StrEnum):
    """What `openafm annotate export` writes."""

    SFT = "sft"
    PREFERENCES = "preferences"
    TREE = "tree"


@app.command()
def init(
    project: Annotated[Path, typer.Argument(help="New folder.")],
    sample: Annotated[str, typer.Option(help="Sample to copy: calendar, shop, travel or device.")] = "travel",
    json: JsonOption = False,
) -> None:
    """Create a project from a sample. Edit its files to make it your own."""
    with _libraries():
        from openafm.annotation.environments.project import read_project, write_sample

    write_sample(sample, project)
    num_scenarios = len(read_project(project).scenarios)
    if json:
        print_json({"project": str(project), "scenarios": num_scenarios})
    else:
        print_text(f"{project}: {num_scenarios} scenarios\nnext: openafm annotate serve --project {project}")


@app.command()
def serve(
    project: Annotated[
        Path | None, typer.Option(help="Folder of the project; default: a copy of the sample 'travel'.")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="Bundle name or path, a model of --endpoint, or 'scripted': the reference calls of the scenarios with some "
            "mistakes. Default: 'scripted' without --project, else the current model."
        ),
    ] = "",
    endpoint: Annotated[
        str, typer.Option(help="Address of an OpenAI-compatible server; OPENAFM_ENDPOINT_KEY is its key.")
    ] = "",
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
    """Serve the annotation page. Ctrl-C stops the server; every step is stored at once."""
    with _libraries():
        from openafm.annotation.environments.project import read_project, write_sample
        from openafm.annotation.server.app import build_annotation_app, open_workspace
        from openafm.annotation.web import WebConfig, first_invite
        from openafm.annotation.web import serve as run
        from openafm.serving.server import bind

    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key belong together; pass both")
    if project is None:
        project = Path(tempfile.mkdtemp(prefix="openafm-annotate-")) / "travel"
        write_sample("travel", project)
        model = model or SCRIPTED
    read = read_project(project)
    config = WebConfig(
        host=host,
        port=port,
        public_url=public_url.rstrip("/"),
        needs_accounts=accounts,
        tls_certificate=str(tls_cert or ""),
        tls_key=str(tls_key or ""),
    )
    settings = config.server()
    workspace = open_workspace(read, _model(read, model, endpoint), database)
    try:
        application = build_annotation_app(workspace, config)
        with bind(settings) as bound:
            bound.listen()  # a client that reads the address connects at once
            shown = "localhost" if host in ("0.0.0.0", "::", "127.0.0.1") else host
            url = config.public_url or f"{'https' if tls_cert else 'http'}://{shown}:{bound.getsockname()[1]}"
            link = first_invite(workspace.accounts, config, url)
            if json:
                print_json({"url": url, "project": str(project), "model": workspace.model.name, "first_invite": link})
            else:
                who = "you are the admin; no account is needed" if not config.has_accounts else "people sign in"
                invite = "" if link is None else f"\nfirst admin: {link}   (one person can use this link)"
                print_text(
                    f"{url}   {read.config.title}; model {workspace.model.name}; {who}{invite}\n"
                    f"project: {project}\n\nCtrl-C stops the server"
                )
            sys.stdout.flush()  # a parent process may wait for these lines on a pipe
            run(application, config, bound)
    finally:
        workspace.close()


def _libraries() -> AbstractContextManager[None]:
    return needed("annotation", "fastapi, uvicorn and SQLAlchemy", "annotate")


def _model(project: Project, name: str, endpoint: str) -> LanguageModel:
    import os

    if endpoint:
        from openafm.framework.backends.openai_model import OpenAICompatibleModel

        if not name:
            raise UsageError("--endpoint needs --model, the name of a model there")
        return OpenAICompatibleModel(endpoint, name, os.environ.get("OPENAFM_ENDPOINT_KEY"))
    if name == SCRIPTED:
        from openafm.annotation.scripted_model import ScriptedModel

        return ScriptedModel(project, mistakes=0.3)
    from openafm.framework.backends.system_model import SystemLanguageModel

    return SystemLanguageModel(bundle=name or None)
