"""Progress by person: the numbers from logs, the verbs, and the page in headless Chromium."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grading_projects import item, project_of, store_of
from playwright.sync_api import Browser, Page, expect, sync_playwright
from project_folders import write_counters
from typer.testing import CliRunner
from web_servers import running_app

from openafm.annotation.clock import steady_clock
from openafm.annotation.grading.judgments import Answers, JudgmentStore, Verdict
from openafm.annotation.grading.server import build_grading_app
from openafm.annotation.people.accounts import Accounts, Role
from openafm.annotation.scripted_model import ScriptedModel
from openafm.annotation.server.app import build_annotation_app, open_workspace
from openafm.annotation.statistics.agreement import is_drift, share
from openafm.annotation.statistics.progress import progress as grading_progress
from openafm.annotation.trees.progress import progress
from openafm.annotation.trees.tree import Event, EventKind
from openafm.annotation.web import WebConfig
from openafm.cli.main import app

PROGRAM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
SCREENSHOTS = os.environ.get("OPENAFM_SCREENSHOTS")


def log(
    person: str, *changes: tuple[EventKind, dict[str, Any]], scenario: str = "one", seconds: float = 10.0
) -> list[Event]:
    """Return a log whose changes are made by one person, `seconds` after each other."""
    opening = {"scenario": {"id": scenario}, "policy": "", "tools": [], "tools_digest": "", "state": "s"}
    kinds = [(EventKind.OPENED, opening), *changes]
    return [
        Event(sequence=number, group=f"g{number}", kind=kind, payload=payload, person=person, time=seconds * number)
        for number, (kind, payload) in enumerate(kinds)
    ]


def node(kind: str, parent: int, *tools: str) -> tuple[EventKind, dict[str, Any]]:
    calls = [{"name": name, "arguments": {}} for name in tools]
    results = [{"text": "", "problem": ""} for _ in tools]
    text = "" if tools else "x"
    payload = {
        "kind": kind,
        "text": text,
        "calls": calls,
        "parent": parent,
        "results": results,
        "state": "s",
        "num_calls": 0,
    }
    return EventKind.NODE, payload


def flag(error: str, on: bool = True) -> tuple[EventKind, dict[str, Any]]:
    return EventKind.FLAG, {"node": 1, "error": error, "on": on}


DONE = (EventKind.STATUS, {"done": True})


def stem(tool: str) -> list[tuple[EventKind, dict[str, Any]]]:
    return [node("query", 0), node("step", 1, tool), node("answer", 2), DONE]


def test_progress_counts_items_time_errors_and_agreement_by_person() -> None:
    logs = {
        "a1": log("a", *stem("add"), flag("policy")),
        "a2": log("a", *stem("add"), scenario="two"),
        "a3": log("a", node("query", 0), flag("language"), flag("policy"), (EventKind.UNDO, {}), flag("language", on=False)),
        "b1": log("b", *stem("add"), seconds=30.0),
        "b2": log("b", *stem("remove"), scenario="two", seconds=400.0),
    }
    found = progress(logs, {"a": "Ana", "b": "Bo"}, "Wave")
    assert (found.total, found.done, found.open, found.flagged, found.errors) == (5, 4, 1, 1, {"policy": 1})
    ana, bo = found.people
    assert (ana.name, ana.done, ana.open, ana.flagged, dict(ana.errors)) == ("Ana", 2, 1, 1, {"policy": 1})
    assert (ana.seconds, bo.seconds) == (pytest.approx((50 + 40 + 50) / 3), pytest.approx(120 / 2))  # pauses do not count
    assert (ana.agreement, bo.agreement, found.agreement) == (0.5, 0.5, 0.5)
    assert progress({}, {}, "Empty").people == ()


def test_a_change_of_agreement_is_a_drift_if_chance_does_not_explain_it() -> None:
    assert is_drift([True] * 20, [True] * 8 + [False] * 12)
    assert not is_drift([True] * 20, [True] * 18 + [False] * 2)
    assert not is_drift([True], [])
    assert (share([]), share([True, False])) == (None, 0.5)


@pytest.fixture(scope="module")
def grading(tmp_path_factory: pytest.TempPathFactory) -> JudgmentStore:
    folder = tmp_path_factory.mktemp("wave")
    store = store_of(project_of(folder, [item("i0"), item("i1")], overlap=2, title="Wave 1"), steady_clock())
    accounts = Accounts(store.database, store.clock)
    tasks = list(store.project.tasks.values())
    for name, verdicts in (("Ana", (Verdict.FIRST, Verdict.FIRST)), ("Bo", (Verdict.FIRST,))):
        person = accounts.join(accounts.invite(Role.ANNOTATOR), name, "a long password")
        for task, verdict in zip(tasks, verdicts, strict=False):
            answers = Answers(verdict=verdict, strength=1, flags=(("format",), ()), seconds=20.0)
            store.submit(task, person.id, answers)
    return store


def test_progress_of_grading(grading: JudgmentStore) -> None:
    found = grading_progress(grading, Accounts(grading.database).names())
    assert (found.total, found.done, found.open, found.agreement, found.seconds) == (2, 1, 1, 1.0, 20.0)
    ana, bo = found.people
    assert ((ana.name, ana.done, ana.open), (bo.name, bo.done, bo.open)) == (("Ana", 2, 0), ("Bo", 1, 1))
    assert (dict(ana.errors), ana.flagged, ana.agreement) == ({"format": 2}, 2, 1.0)


@pytest.mark.long
def test_progress_on_the_command_line(grading: JudgmentStore, tmp_path: Path) -> None:
    folder = str(grading.project.folder)
    reply = CliRunner().invoke(app, ["grade", "progress", folder, "--json"])
    assert reply.exit_code == 0, reply.output
    assert [each["name"] for each in json.loads(reply.stdout)["people"]] == ["Ana", "Bo"]
    assert "Wave 1: 1 of 2 comparisons done" in CliRunner().invoke(app, ["grade", "progress", folder]).stdout
    project = write_counters(tmp_path / "counters")
    reply = CliRunner().invoke(app, ["annotate", "progress", "--project", str(project.path)])
    assert "Counters: 0 of 0 items done" in reply.stdout


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    if PROGRAM is None:
        pytest.skip("Chromium is not installed (docs/data.md)")
    with sync_playwright() as playwright:
        browser: Browser = playwright.chromium.launch(executable_path=PROGRAM)
        found = browser.new_page(viewport={"width": 1100, "height": 600}, color_scheme="light")
        found.set_default_timeout(60_000)
        yield found
        browser.close()


def screenshot(page: Page, name: str) -> None:
    if SCREENSHOTS:
        page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", full_page=True)


def test_the_page_of_grading_shows_each_person(page: Page, grading: JudgmentStore) -> None:
    with running_app(build_grading_app(grading, WebConfig(port=0))) as url:
        page.goto(f"{url}/progress")
        expect(page.get_by_role("heading", name="Wave 1")).to_be_visible()
        row = page.get_by_role("row", name="Ana")
        expect(row).to_contain_text("format 2")
        expect(page.locator("#counts")).to_have_text("1 of 2 comparisons done, 1 open, 2 flagged")
        page.set_viewport_size({"width": 320, "height": 600})
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        screenshot(page, "progress-narrow")
        page.set_viewport_size({"width": 1100, "height": 600})
        screenshot(page, "progress-grading")


def test_the_page_of_annotation_is_for_admins(page: Page, tmp_path: Path) -> None:
    project = write_counters(tmp_path / "counters")
    workspace = open_workspace(project, ScriptedModel(project))
    config = WebConfig(port=0, needs_accounts=True)
    with running_app(build_annotation_app(workspace, config), config) as url:
        tokens = [workspace.accounts.invite(role, [project.id]) for role in (Role.ANNOTATOR, Role.ADMIN)]
        for token, shown in zip(tokens, ("this needs the role admin", "No person has worked"), strict=True):
            page.context.clear_cookies()
            page.goto("about:blank")
            page.goto(f"{url}/join#{token}")
            page.get_by_label("Name").fill(f"Person {shown[:2]}")
            page.get_by_label("Password").fill("a long password")
            page.get_by_role("button", name="Continue").click()
            page.wait_for_url(f"{url}/")
            page.goto(f"{url}/progress")
            expect(page.get_by_text(shown)).to_be_visible()
    workspace.close()
