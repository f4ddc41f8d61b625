"""`openafm grade`: side-by-side grading of answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.libraries import needed
from openafm.core.terminal import escaped

if TYPE_CHECKING:
    from openafm.annotation.grading.judgments import JudgmentStore

app = typer.Typer(help="Compare systems' answers side by side: people or a judge model grade them.", no_args_is_help=True)

ProjectArgument = Annotated[Path, typer.Argument(help="Folder of the project.")]


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
    from openafm.core.regular_files import copy_files

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
            f"{project}: {counted(len(created.items), 'item')}, {counted(len(created.tasks), 'comparison')} of "
            f"{', '.join(created.systems)}\n"
            f"next: openafm grade serve --project {project}"
        )


@app.command()
def serve(
    project: Annotated[Path | None, typer.Option(help="Folder of the project; default: the sample.")] = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8011,
    accounts: AccountsOption = False,
    public_url: PublicURLOption = "",
    forwarded_allow_ips: ForwardedOption = "",
    database: DatabaseOption = "",
    tls_cert: CertificateOption = None,
    tls_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Serve the grading page. Ctrl-C stops the server."""
    with _libraries():
        from openafm.annotation.grading.server import build_grading_app
        from openafm.annotation.people.accounts import Accounts
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
    store = _open(_sample() if project is None else project, database)

    def announce(at: Listening) -> None:
        if json:
            print_json({"url": at.url, "project": str(store.project.folder), "first_invite": at.invite})
        else:
            print_text(f"{at.text(store.project.title)}\n\nCtrl-C stops the server")

    run(build_grading_app(store, config), Accounts(store.database, store.clock), config, announce)


@app.command()
def invite(
    project: ProjectArgument,
    role: Annotated[str, typer.Option(help="annotator, reviewer or admin.")] = "annotator",
    url: Annotated[str, typer.Option(help="Address of the server.")] = "http://localhost:8011",
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


@app.command()
def generate(
    prompts: Annotated[Path, typer.Argument(exists=True, help="JSONL file with prompts: items without answers.")],
    system: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=MODEL",
            help="A system that answers: a bundle's name or folder, or http://HOST/v1#NAME of an endpoint. May be repeated.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="JSONL file with items; existing answers are reused.")] = Path(
        "items.jsonl"
    ),
    locale: Annotated[
        list[str] | None, typer.Option(help="Keep prompts of this locale; may be repeated. Default: all.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Token limit of an answer.")] = 512,
    json: JsonOption = False,
) -> None:
    """Let systems answer a file of prompts: the items of a project."""
    with _libraries():
        from openafm.annotation.grading.generate import generate_answers, read_prompts
        from openafm.annotation.grading.models import open_model

    names = dict(_named(text) for text in system)
    models = {name: open_model(model) for name, model in names.items()}
    found = read_prompts(prompts, locale or ())
    report = generate_answers(found, models, out, folder=prompts.parent, max_tokens=max_tokens)
    if report.failed and not report.num_items:
        raise OpenAFMError(f"no prompt was answered by all systems; the first reason: {report.failed[0][2]}")
    if json:
        print_json({"out": str(out), **vars(report)})
        return
    print_text(
        f"{out}: {counted(report.num_items, 'item')}, {counted(report.num_answers, 'answer')}, "
        f"{report.num_reused} of them from before"
    )
    for item, name, reason in report.failed:
        print(escaped(f"no answer of {name} to {item}: {reason}"), file=sys.stderr)


@app.command()
def simulate(
    project: ProjectArgument,
    graders: Annotated[int, typer.Option(min=1, help="Simulated graders; each judges all comparisons.")] = 3,
    errors: Annotated[float, typer.Option(min=0, max=1, help="Share of random judgments.")] = 0.2,
    database: DatabaseOption = "",
    json: JsonOption = False,
) -> None:
    """Let simulated graders judge the items; they prefer varied words. A demonstration without people."""
    with _libraries():
        from openafm.annotation.grading.simulated_graders import grade_by_simulation

    done = grade_by_simulation(_open(project, database), num_graders=graders, error_rate=errors)
    if json:
        print_json({"project": str(project), **vars(done)})
    else:
        print_text(f"{project}: {counted(done.judgments, 'judgment')} by {counted(done.graders, 'simulated grader')}")


@app.command()
def auto(
    project: ProjectArgument,
    judge: Annotated[str, typer.Option(help="A bundle's name or folder, or http://HOST/v1#NAME of an endpoint.")],
    requests: Annotated[int, typer.Option(min=1, help="Concurrent requests.")] = 1,
    database: DatabaseOption = "",
    json: JsonOption = False,
) -> None:
    """Let a judge model grade the items, each pair in both orders, and report its agreement with people."""
    with _libraries():
        from openafm.annotation.grading.judge import asking, judge_all, replies
        from openafm.annotation.grading.models import open_model
        from openafm.annotation.statistics.outcomes import decide
        from openafm.annotation.statistics.report import counted_judgments, judge_report

    store = _open(project, database)
    run = judge_all(store, judge, asking(store.project, open_model(judge)), num_requests=requests)
    if run.failed and not run.num_new:
        raise OpenAFMError(
            f"all {counted(len(run.failed), 'request')} failed: {run.failed[0]}; run the command again to repeat them"
        )
    decisions = decide(store.project, counted_judgments(store))
    report = judge_report(store.project, decisions, replies(store, judge))
    if json:
        print_json({"judge": judge, "new": run.num_new, "failed": list(run.failed), **report})
        return
    print_text(
        f"{counted(report['replies'], 'reply', 'replies')}, {run.num_new} of them new; {report['nonsense']} are no verdict"
    )
    if run.failed:
        print_text(f"{counted(len(run.failed), 'request')} failed ({run.failed[0]}); run the command again to repeat them")
    if report["consistent"] is not None:
        print_text(f"the same winner in both orders: {report['consistent']:.0%}")
    if report["agreement"] is None:
        print_text("no comparison is judged by both people and this judge")
    else:
        low, high = report["interval"]
        print_text(f"agreement with people: {report['agreement']:.0%} [{low:.0%}, {high:.0%}] of {report['comparisons']}")


@app.command()
def report(
    project: ProjectArgument,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the report; default: report/ in the project.")
    ] = (None),
    database: DatabaseOption = "",
    json: JsonOption = False,
) -> None:
    """Write results with intervals, ratings, agreement and the figure as HTML, JSON, PNG and SVG."""
    with _libraries():
        from openafm.annotation.statistics.page import write_report
        from openafm.annotation.statistics.report import project_report

    found = project_report(_open(project, database))
    if not found["counts"]["judged"] and not found["judges"]:
        raise OpenAFMError(
            f"no comparison of {project} is judged yet; open `openafm grade serve --project {project}` or run "
            f"`openafm grade auto {project} --judge MODEL`"
        )
    paths = write_report(found, out or project / "report")
    if json:
        print_json({**found, "files": [str(path) for path in paths]})
        return
    rows = [
        (group, f"{row['first']} vs. {row['second']}", row["comparisons"], *_percents(row))
        for group, each in {**found["groups"], "all": found["all"]}.items()
        for row in each
    ]
    print_table(("locales", "pair", "comparisons", "win", "tie", "loss"), rows)
    for warning in found["warnings"]:
        print_text(f"check {warning}")
    print_text("\n".join(str(path) for path in paths))


@app.command()
def progress(project: ProjectArgument, database: DatabaseOption = "", json: JsonOption = False) -> None:
    """Print what each person has done: comparisons, time, flags, agreement with others."""
    with _libraries():
        from openafm.annotation.people.accounts import Accounts
        from openafm.annotation.progress import COLUMNS
        from openafm.annotation.statistics.progress import progress as compute

    store = _open(project, database)
    found = compute(store, Accounts(store.database).names())
    if json:
        print_json(found.to_dict())
    else:
        print_text(f"{found.title}: {found.done} of {found.total} {found.unit} done, {found.flagged} flagged")
        print_table(COLUMNS, found.rows())


@app.command()
def export(
    project: ProjectArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="JSONL file to write.")] = Path("preferences.jsonl"),
    database: DatabaseOption = "",
    json: JsonOption = False,
) -> None:
    """Export preferences and absolute grades for `openafm train on_device.reward_model --data`."""
    with _libraries():
        from openafm.annotation.grading.export import export_preferences
        from openafm.annotation.statistics.outcomes import decide
        from openafm.annotation.statistics.report import counted_judgments

    store = _open(project, database)
    result = export_preferences(decide(store.project, counted_judgments(store)), out)
    if json:
        print_json({"out": str(out), **vars(result)})
    else:
        print_text(
            f"{out}: {counted(result.num_pairs, 'pair')}, {counted(result.num_graded, 'graded answer')}, "
            f"{result.num_left_out} left out"
        )


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


def _named(text: str) -> tuple[str, str]:
    """Return name and model of NAME=MODEL."""
    name, equals, model = text.partition("=")
    if not (name and equals and model):
        raise UsageError(f"--system {text} is not NAME=MODEL, such as small=nano")
    return name, model


def _percents(row: Mapping[str, Any]) -> list[str]:
    shares = [(row[name]["share"], *row[name]["interval"]) for name in ("win", "tie", "loss")]
    return [f"{share:.0%} [{low:.0%}, {high:.0%}]" for share, low, high in shares]
