"""`openafm annotate`: annotation of tool use in the browser, and its exports."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.cli.evaluation.annotation_server import (
    AccountsOption,
    CertificateOption,
    DatabaseOption,
    ForwardedOption,
    HostOption,
    KeyOption,
    PortOption,
    PublicURLOption,
    web_config,
)
from openafm.cli.output import JsonOption, counted, print_json, print_table, print_text
from openafm.core.errors import UsageError
from openafm.core.libraries import needed

if TYPE_CHECKING:
    from openafm.annotation.environments.pool import ToolPool
    from openafm.annotation.environments.project import Project
    from openafm.annotation.trees.store import TreeStore
    from openafm.framework.backends.language_model import LanguageModel

app = typer.Typer(help="Annotate tool use: correct the steps of a live agent.", no_args_is_help=True)

SCRIPTED = "scripted"

ProjectOption = Annotated[Path, typer.Option(help="Folder of the project.")]


class Target(StrEnum):
    """What `openafm annotate export` writes."""

    SFT = "sft"
    PREFERENCES = "preferences"
    TREE = "tree"


@app.command()
def init(
    project: Annotated[Path, typer.Argument(help="New folder.")],
    sample: Annotated[str, typer.Option(help="Sample to copy: calendar, shop, travel or device.")] = "travel",
    tasks: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Instead of a sample: your copy of τ-bench-like tasks (a domain, such as tau_bench/envs/retail) or of "
            "ToolSandbox-like ones (the package tool_sandbox). Its code runs from there.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Create a project from a sample or from a copy of tasks. Edit its files to make it your own."""
    with _libraries():
        from openafm.annotation.environments.project import read_project, write_sample

    notes: tuple[str, ...] = ()
    if tasks is not None:
        with _libraries():
            from openafm.annotation.environments.task_import import import_tasks

        notes = import_tasks(tasks, project).notes
    else:
        write_sample(sample, project)
    num_scenarios = len(read_project(project).scenarios)
    if json:
        print_json({"project": str(project), "scenarios": num_scenarios, "notes": list(notes)})
    else:
        noted = "".join(f"\nnote: {note}" for note in notes)
        print_text(
            f"{project}: {counted(num_scenarios, 'scenario')}{noted}\nnext: openafm annotate serve --project {project}"
        )


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
    host: HostOption = "127.0.0.1",
    port: PortOption = 8010,
    accounts: AccountsOption = False,
    public_url: PublicURLOption = "",
    forwarded_allow_ips: ForwardedOption = "",
    database: DatabaseOption = "",
    tls_cert: CertificateOption = None,
    tls_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Serve the annotation page. Ctrl-C stops the server; every step is stored at once."""
    with _libraries():
        from openafm.annotation.environments.project import read_project, write_sample
        from openafm.annotation.server.app import build_annotation_app, open_workspace
        from openafm.annotation.web import Listening
        from openafm.annotation.web import serve as run

    config = web_config(
        host,
        port,
        accounts=accounts,
        public_url=public_url,
        forwarded_allow_ips=forwarded_allow_ips,
        tls_cert=tls_cert,
        tls_key=tls_key,
    )
    if project is None:
        project = Path(tempfile.mkdtemp(prefix="openafm-annotate-")) / "travel"
        write_sample("travel", project)
        model = model or SCRIPTED
    read = read_project(project)
    workspace = open_workspace(read, _model(read, model, endpoint), database)

    def announce(at: Listening) -> None:
        if json:
            print_json({"url": at.url, "project": str(project), "model": workspace.model.name, "first_invite": at.invite})
        else:
            shown = at.text(f"{read.config.title}; model {workspace.model.name}")
            print_text(f"{shown}\nproject: {project}\n\nCtrl-C stops the server")

    try:
        run(build_annotation_app(workspace, config), workspace.accounts, config, announce)
    finally:
        workspace.close()


@app.command()
def simulate(
    project: ProjectOption,
    mistakes: Annotated[float, typer.Option(min=0, max=1, help="Share of the model's calls with a wrong argument.")] = 0.5,
    database: DatabaseOption = "",
    json: JsonOption = False,
) -> None:
    """Let a scripted expert correct a scripted model in each scenario: a demonstration without people."""
    with _opened(project, database) as (read, store, pool):
        from openafm.annotation.simulated_annotator import annotate_scenarios

        done = annotate_scenarios(read, store, pool, mistakes=mistakes)
    if json:
        print_json({"project": str(project), **vars(done)})
    else:
        print_text(
            f"{project}: {counted(done.items, 'item')}, {counted(done.corrections, 'correction')}\n"
            f"next: openafm annotate export --project {project} --to sft"
        )


@app.command()
def export(
    project: ProjectOption,
    to: Annotated[Target, typer.Option(help="sft: main stems; preferences: abandoned branches; tree: everything.")],
    out: Annotated[Path | None, typer.Option(help="JSONL file; default: PROJECT/exports/TARGET.jsonl.")] = None,
    database: DatabaseOption = "",
    json: JsonOption = False,
) -> None:
    """Export items as JSONL. Main stems are replayed: in a fresh environment every call must give its result.

    `openafm data pack` and `openafm train` read the files for sft and preferences.
    """
    path = out or project / "exports" / f"{to.value}.jsonl"
    with _opened(project, database) as (read, store, pool):
        from openafm.annotation.trees.export import export as write

        report = write(store, read, pool, to.value, path)
    if json:
        print_json({"file": str(path)} | report.to_dict())
    else:
        skipped = "".join(f"\nleft out {each['item']}: {each['reason']}" for each in report.skipped)
        print_text(f"{path}: {counted(report.lines, 'line')}{skipped}")


@app.command(name="import")
def import_(
    trees: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="JSONL file of `export --to tree`.")],
    project: ProjectOption,
    database: DatabaseOption = "",
    json: JsonOption = False,
) -> None:
    """Import exported trees. Every call of every branch runs again and must give its result."""
    import json as json_library

    with _opened(project, database) as (read, store, pool):
        from openafm.annotation.trees.document import ForeignTreeError, import_tree

        items = []
        try:
            lines = trees.read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise ForeignTreeError(
                f"{trees} is not UTF-8 text; pass a file of `openafm annotate export --to tree`"
            ) from error
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                items.append(import_tree(json_library.loads(line), store, read, pool))
            except ValueError as error:
                raise ForeignTreeError(f"{trees}:{number}: not JSON: {error}") from error
            except ForeignTreeError as error:
                raise ForeignTreeError(f"{trees}:{number}: {error}") from error
    print_json({"items": items}) if json else print_text(f"{counted(len(items), 'item')} imported")


@app.command()
def check(project: ProjectOption, database: DatabaseOption = "", json: JsonOption = False) -> None:
    """Check which items that are marked as done solve their scenarios.

    Main stems are replayed in a fresh environment. Their ends are compared with `expect` of the scenario, else with the
    state after its reference calls, and their answers with its required texts.
    """
    with _opened(project, database) as (read, store, pool):
        from openafm.annotation.trees.solved import Outcome, check_items

        report = check_items(store, read, pool)
    if json:
        print_json(report.to_dict())
        return
    if report.items:
        rows = [(each.item, each.scenario, each.outcome.replace("_", " "), each.reason) for each in report.items]
        print_table(("item", "scenario", "outcome", ""), rows)
    counts = ", ".join(f"{report.count(outcome)} {outcome.replace('_', ' ')}" for outcome in Outcome)
    print_text(f"{counted(len(report.items), 'item')} marked as done: {counts}; {report.open} open")


@app.command()
def statistics(project: ProjectOption, database: DatabaseOption = "", json: JsonOption = False) -> None:
    """Print statistics: corrections, kinds of errors, time per item and per annotator."""
    with _opened(project, database) as (_, store, _):
        from openafm.annotation.trees.statistics import statistics as compute

        found = compute(store.logs())
    if json:
        print_json(found)
    else:
        rows = [(name, value) for name, value in found.items() if name not in ("people", "by_item")]
        print_table(("", ""), rows)


@app.command()
def progress(project: ProjectOption, database: DatabaseOption = "", json: JsonOption = False) -> None:
    """Print what each person has done: items, time, kinds of errors, agreement with others."""
    with _libraries():
        from openafm.annotation.people.accounts import Accounts
        from openafm.annotation.progress import COLUMNS
        from openafm.annotation.trees.progress import progress as compute

    with _opened(project, database) as (read, store, _):
        found = compute(store.logs(), Accounts(store.database).names(), read.config.title)
    if json:
        print_json(found.to_dict())
    else:
        print_text(f"{found.title}: {found.done} of {found.total} {found.unit} done, {found.flagged} flagged")
        print_table(COLUMNS, found.rows())


@contextmanager
def _opened(project: Path, database: str) -> Iterator[tuple[Project, TreeStore, ToolPool]]:
    """Open a project and its database without a server."""
    with _libraries():
        from openafm.annotation.environments.pool import ToolPool
        from openafm.annotation.environments.project import read_project
        from openafm.annotation.people.tables import PEOPLE
        from openafm.annotation.trees.store import open_trees
        from openafm.annotation.trees.tables import TREES

    read = read_project(project)
    store, pool = open_trees(read, database, [PEOPLE, TREES]), ToolPool(read, size=1)
    try:
        yield read, store, pool
    finally:
        pool.close()
        store.database.close()


def _libraries() -> AbstractContextManager[None]:
    return needed("annotation", "fastapi, uvicorn and SQLAlchemy", "annotate")


def _model(project: Project, name: str, endpoint: str) -> LanguageModel:
    import os

    if endpoint:
        from openafm.framework.backends.openai_model import OpenAICompatibleModel

        if not name:
            raise UsageError("--endpoint needs --model, the name of a model there")
        try:
            return OpenAICompatibleModel(endpoint, name, os.environ.get("OPENAFM_ENDPOINT_KEY"))
        except ValueError as error:
            raise UsageError(f"--endpoint: {error}") from error
    if name == SCRIPTED:
        from openafm.annotation.scripted_model import ScriptedModel

        return ScriptedModel(project, mistakes=0.3)
    from openafm.framework.backends.system_model import SystemLanguageModel

    return SystemLanguageModel(bundle=name or None)
