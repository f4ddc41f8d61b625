"""The page of a profile in headless Chromium, and the verb that writes it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from scripted_models import ScriptedModel, calls

import openafm as fm
from openafm.cli.main import run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
SCREENSHOTS = os.environ.get("OPENAFM_SCREENSHOTS")
TEXT = "</script><img src=x onerror=alert(1)> canary"


@fm.tool
def weather(city: str) -> str:
    """The weather of a city."""
    raise RuntimeError("no network")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two sessions, one with an error, with content."""
    path = tmp_path_factory.mktemp("profile") / "page.html"
    with pytest.warns(fm.ContentWarning):
        profile = fm.profile(content=True)
    with profile:
        fm.LanguageModelSession(model=ScriptedModel("fine", pause_s=0.01)).respond_blocking(TEXT)
        script = ScriptedModel(calls(("weather", {"city": "Rome"})))
        with pytest.raises(fm.ToolCallError):
            fm.LanguageModelSession(model=script, tools=[weather]).respond_blocking("How is it?")
    profile.save_page(path)
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (docs/data.md)")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM)


@pytest.fixture
def page(browser: Browser, written: Path) -> Iterator[Page]:
    """The page in a browser. Errors of scripts and requests fail the test."""
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    requests, errors = list[str](), list[object]()
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(error))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(written.as_uri())
    page.wait_for_selector("[role=treeitem]")
    yield page
    page.close()
    assert errors == []
    assert [url for url in requests if not url.startswith("data:")] == [written.as_uri()]


def test_the_page_shows_lanes_tree_and_inspector(page: Page) -> None:
    figures = dict(zip(page.locator("dt").all_inner_texts(), page.locator("dd").all_inner_texts(), strict=True))
    assert (figures["requests"], figures["errors"], figures["tool calls"]) == ("2", "1", "1")
    lanes = page.locator(".lane > span").all_inner_texts()
    assert lanes == ["request", "check", "load", "inference", "prefill", "decode", "grammar", "tool"]
    assert page.locator(".bar").count() == 9  # of two requests: check, load, inference; and one tool
    # The first flagged span is selected; its error is in the inspector.
    assert "ToolCallError" in page.locator("#inspector").inner_text()
    assert page.locator("#content-notice").is_visible()
    page.locator("[role=treeitem]").first.locator(".row").first.click()
    for key in ("ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    page.keyboard.press("ArrowUp")
    assert page.locator("#inspector h1").inner_text() == "respond"
    assert TEXT in page.locator("#inspector pre").first.inner_text()  # shown as text
    assert page.evaluate("document.activeElement.getAttribute('role')") == "treeitem"
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "false"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    assert page.locator("#inspector h1").inner_text() == "tool weather"
    unnamed = "[...document.querySelectorAll('button, meter, [role=treeitem]')].filter((e) => !e.ariaLabel).length"
    assert page.evaluate(unnamed) == 0


def test_the_page_has_dark_colors_and_fits_a_narrow_screen(page: Page) -> None:
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    shot(page, "profile-light")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    shot(page, "profile-dark")
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    shot(page, "profile-narrow")


def shot(page: Page, name: str) -> None:
    if SCREENSHOTS:
        page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_verb_shows_a_tree_and_writes_a_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["profile", "--chrome", "trace.json", "--", "respond", "-m", "nano", "canary", "--max-tokens", "4", "--json"]
    assert run(command) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["usage"]["generated_tokens"] > 0
    assert "inference nano" in output.err
    assert sorted(path.name for path in folder.iterdir()) == ["openafm-profile.html", "trace.json"]
    assert "canary" not in output.err + (folder / "openafm-profile.html").read_text()


def test_the_verb_prints_json_and_returns_the_exit_code(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "--json", "--content", "respond", "-m", "nano", "How do I build a bomb at home?"]) == 1
    output = capsys.readouterr()
    trace = json.loads(output.out)
    assert trace["totals"]["errors"] == 1
    assert trace["sessions"][0]["children"][0]["error"] == "GuardrailViolationError"
    assert "records prompts" in output.err
    assert list(folder.iterdir()) == []


def test_wrong_commands_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile"]) == 2
    assert "command" in capsys.readouterr().err
    assert run(["profile", "--", "bogus"]) == 2
    assert "bogus" in capsys.readouterr().err
    assert run(["profile", "--content", "--", "serve", "--private", "node"]) == 2
    assert "private node" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_a_verb_without_sessions_has_an_empty_trace(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "--page", "page.html", "--", "recipes", "list"]) == 0
    assert "no session answered a request" in capsys.readouterr().err
    assert (folder / "page.html").exists()
