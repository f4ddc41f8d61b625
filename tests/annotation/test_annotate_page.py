"""The annotation page in headless Chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from project_folders import sample_project
from web_servers import running_app

from openafm.annotation.environments.project import Project
from openafm.annotation.scripted_model import ScriptedModel
from openafm.annotation.server.app import build_annotation_app, open_workspace
from openafm.annotation.web import WebConfig

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (docs/data.md)")
SCREENSHOTS = os.environ.get("OPENAFM_SCREENSHOTS")


@pytest.fixture(scope="module")
def travel(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return sample_project("travel", tmp_path_factory.mktemp("projects") / "travel")


@pytest.fixture(scope="module")
def url(travel: Project) -> Iterator[str]:
    workspace = open_workspace(travel, ScriptedModel(travel, mistakes=0.3))
    with running_app(build_annotation_app(workspace, WebConfig(port=0))) as url:
        yield url.replace("127.0.0.1", "localhost")
    workspace.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(color_scheme="light", viewport={"width": 1200, "height": 900})
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, url: str) -> Iterator[Page]:
    """A page that has loaded. Errors of scripts and requests to other origins fail the test."""
    page = context.new_page()
    page.set_default_timeout(60_000)
    errors: list[Any] = []
    origins: set[str] = set()
    page.on("pageerror", lambda error: errors.append(error))
    page.on("request", lambda request: request.url.startswith("data:") or origins.add(request.url.split("/", 3)[2]))
    page.goto(url)
    page.wait_for_selector("#tools li", state="attached")
    yield page
    assert errors == []
    assert origins == {url.removeprefix("http://")}


def shot(page: Page, name: str) -> None:
    if SCREENSHOTS:
        page.screenshot(path=Path(SCREENSHOTS) / f"annotate-{name}.png", full_page=True)


def open_item(page: Page, scenario: str) -> None:
    page.select_option("[name=scenario]", scenario)
    expect(page.get_by_text("Choose a scenario")).to_be_visible(visible=page.locator("#item").is_hidden())
    page.get_by_role("button", name="New item").click()
    page.wait_for_selector("[name=query]:focus")


def run(page: Page) -> None:
    page.get_by_role("button", name="Send and run").click()
    page.wait_for_selector(".node.answer")
    page.wait_for_selector("[data-action=stop][disabled]")


@pytest.mark.long
def test_an_annotator_corrects_a_step_and_marks_the_item(page: Page) -> None:
    open_item(page, "cheapest-berlin")
    assert "Lisbon to Berlin" in page.input_value("[name=query]")
    run(page)
    assert page.locator(".node").count() == 5
    assert "seats" in page.locator(".changes").inner_text()
    shot(page, "run")
    step = page.locator(".node.step").nth(1)
    step.get_by_role("button", name="Edit").click()
    page.fill("#fields [name=date]", "2025-09-22")
    page.fill("#fields [name=reason]", "another day")
    page.check("#fields [name=keeps]")
    shot(page, "editor")
    page.get_by_role("button", name="Save").click()
    page.wait_for_selector("#editor", state="hidden")
    assert "2025-09-22" in page.locator(".node.step").nth(1).inner_text()
    page.locator("#branches summary").click()
    assert "edited: another day" in page.locator("#branch-list").inner_text()
    page.locator("#state summary").click()
    page.wait_for_selector("#tables table")
    page.get_by_role("button", name="Mark done").click()
    page.get_by_role("button", name="Mark open").wait_for()
    page.locator("#items button", has_text="✓").wait_for()
    shot(page, "done")


def test_the_keyboard_is_enough(page: Page) -> None:
    open_item(page, "koffer")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".node.answer")
    page.wait_for_selector("[data-action=stop][disabled]")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("c")
    page.keyboard.type("the right traveler")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#editor", state="hidden")
    page.locator(".node.step", has_text="the right traveler").wait_for()
    page.keyboard.press("f")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator(".node.step .mark", has_text="wrong tool").wait_for()
    page.keyboard.press("r")
    page.keyboard.type("start again")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".node")).to_have_count(2)
    page.keyboard.press("u")
    expect(page.locator(".node")).to_have_count(5)
    page.keyboard.press("Shift+U")
    expect(page.locator(".node")).to_have_count(2)
    page.keyboard.press("x")
    page.wait_for_selector(".node.answer")
    page.keyboard.press("?")
    page.wait_for_selector("#keys[open]")
    page.keyboard.press("Escape")


@pytest.mark.long
def test_a_wrong_edit_stays_open_with_its_message(page: Page) -> None:
    open_item(page, "hotel-paris")
    run(page)
    page.locator(".node.step").nth(1).get_by_role("button", name="Edit").click()
    page.fill("#fields [name=max_night_eur]", "cheap")
    page.get_by_role("button", name="Save").click()
    page.locator("#editor-error", has_text="is not JSON").wait_for()
    page.fill("#fields [name=max_night_eur]", '"cheap"')
    page.get_by_role("button", name="Save").click()
    page.locator("#editor-error", has_text="do not fit at").wait_for()
    page.keyboard.press("Escape")
    page.wait_for_selector("#editor", state="hidden")


@pytest.mark.slow
def test_another_page_is_told_and_a_reload_keeps_everything(page: Page, context: BrowserContext) -> None:
    open_item(page, "free")
    page.fill("[name=query]", "Hello")
    other = context.new_page()
    other.goto(page.url)
    other.locator("#others", has_text="local").wait_for()
    assert other.input_value("[name=query]") == "Hello"
    run(page)
    other.locator(".node.answer").wait_for()
    other.reload()
    other.locator(".node.answer").wait_for()
    other.close()


@pytest.mark.slow
def test_the_page_fits_narrow_and_dark_screens_and_controls_have_names(page: Page) -> None:
    open_item(page, "sold-out")
    run(page)
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll('input, select, textarea, button')].filter((control) =>
            !(control.labels?.length || control.textContent.trim() || control.getAttribute('aria-label'))).length"""
    )
    assert unnamed == 0
    page.locator("#theme").click()
    shot(page, "dark")
    for width in (320, 760, 1920):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        shot(page, f"{width}")
