"""The playground in headless Chromium."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (docs/data.md)")
SCREENSHOTS = os.environ.get("OPENAFM_SCREENSHOTS")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM)


@contextlib.contextmanager
def opened_page(browser: Browser, address: str, fragment: str = "") -> Iterator[Page]:
    """Open the playground. Errors of scripts and requests to other origins fail the test."""
    context = browser.new_context(color_scheme="light", viewport={"width": 1200, "height": 800})
    page = context.new_page()
    page.set_default_timeout(60_000)
    errors, requests = list[Any](), list[str]()
    page.on("pageerror", lambda error: errors.append(error))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"{address}/{fragment}")
    page.wait_for_selector("#settings select[name=model] option", state="attached")
    yield page
    context.close()
    assert errors == []
    remote = [url for url in requests if not url.startswith(("data:", "blob:"))]
    assert {url.split("/", 3)[2] for url in remote} == {address.removeprefix("http://")}


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    with opened_page(browser, url.replace("127.0.0.1", "localhost")) as page:
        yield page


def ask(page: Page, prompt: str) -> None:
    page.fill("#prompt", prompt)
    page.press("#prompt", "Control+Enter")
    page.wait_for_selector("#stop[disabled]", state="attached")


def last_answer(page: Page) -> str:
    return page.locator(".answer .text, .answer dl").last.inner_text()


def shot(page: Page, name: str) -> None:
    if SCREENSHOTS:
        page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png")


@pytest.mark.long
def test_an_answer_streams_and_counts_tokens(page: Page) -> None:
    page.fill("#settings [name=instructions]", "You answer briefly.")
    ask(page, "Repeat: one two three four five six seven.")
    assert last_answer(page)
    assert "generated" in page.locator(".answer footer").inner_text()
    page.locator("#tokens", has_text="/ 4096").wait_for()
    shot(page, "answer")


def test_the_example_schema_gives_a_typed_answer(page: Page) -> None:
    page.locator("summary", has_text="Schema").click()
    page.click("#example-schema")
    ask(page, "Lunch with Ana on Friday at 12:30 at Cafe Roma")
    names = page.locator(".answer dt").all_inner_texts()
    assert names == ["title", "date", "time", "location"]
    assert [value for value in ("Lunch with Ana", "Friday", "12:30", "Cafe Roma") if value not in last_answer(page)] == []
    shot(page, "typed")


@pytest.mark.slow  # a busy machine shows fewer snapshots
def test_a_typed_answer_grows_live(page: Page) -> None:
    lines = {f"line_{number}": {"type": "string", "minLength": 20, "maxLength": 40} for number in range(40)}
    schema = {"type": "object", "properties": lines, "required": list(lines), "additionalProperties": False}
    page.locator("summary", has_text="Schema").click()
    page.fill("[name=schema]", json.dumps(schema))
    page.evaluate(
        """() => {
            window.snapshots = new Set();
            const observe = () => window.snapshots.add(document.querySelector('.answer dl')?.innerText);
            new MutationObserver(observe).observe(document.getElementById('conversation'), {childList: true, subtree: true});
        }"""
    )
    ask(page, "Lunch with Ana on Friday at 12:30 at Cafe Roma")
    assert page.locator(".answer dt").count() > 2
    assert page.evaluate("window.snapshots.size") > 2


def test_calls_return_their_canned_outputs(page: Page) -> None:
    page.locator("summary", has_text="Tools").click()
    page.click("#example-tools")
    page.uncheck("[name=answers_calls]")
    ask(page, "What's the weather in Rome?")
    assert "weather(" in page.locator(".call code").inner_text()
    assert page.locator(".call textarea").input_value() == "sunny, 21 degrees"
    page.fill(".call textarea", "rain, 9 degrees")
    page.get_by_role("button", name="Return outputs").click()
    page.wait_for_selector(".answer .text")
    shot(page, "tools")


@pytest.mark.slow
def test_a_fork_keeps_both_branches(page: Page) -> None:
    ask(page, "Say one.")
    ask(page, "Say two.")
    page.get_by_role("button", name="Fork").first.click()
    assert page.input_value("#prompt") == "Say one."
    ask(page, "Say three.")
    assert page.locator(".prompt p").all_inner_texts() == ["Say three."]
    page.get_by_role("button", name="Earlier fork").click()
    assert page.locator(".prompt p").all_inner_texts() == ["Say one.", "Say two."]


@pytest.mark.slow
def test_variants_answer_side_by_side(page: Page) -> None:
    page.get_by_role("button", name="Add a variant").click()
    page.fill("#settings [name=temperature]", "1.5")
    ask(page, "Write one sentence about the moon.")
    assert page.locator(".answer").count() == 2
    page.get_by_role("button", name="Continue here").click()
    ask(page, "Why?")
    assert page.locator(".turn").count() == 2
    page.keyboard.press("Alt+d")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    shot(page, "variants-dark")


@pytest.mark.slow
def test_the_conversation_is_copied_as_python(page: Page, url: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.fill("#settings [name=instructions]", 'Say "hi" briefly.')
    page.locator("summary", has_text="Schema").click()
    page.click("#example-schema")
    page.locator("summary", has_text="Tools").click()
    page.click("#example-tools")
    page.fill("#prompt", "Dinner at 7")
    page.keyboard.press("Alt+p")
    page.locator("#copy", has_text="Copied").wait_for()
    source = page.evaluate("navigator.clipboard.readText()")
    compile(source, "copied.py", "exec")
    assert 'respond_blocking("Dinner at 7", json_schema=schema, options=options)' in source
    assert "def weather(city: str) -> str:" in source


@pytest.mark.slow
def test_an_answer_is_stopped_by_escape(page: Page) -> None:
    page.fill("#settings [name=max_tokens]", "3000")
    page.fill("#settings [name=temperature]", "2")
    page.fill("#prompt", "Count to one thousand, then write a long story about every number.")
    page.press("#prompt", "Control+Enter")
    page.wait_for_selector("#stop:not([disabled])")
    page.keyboard.press("Escape")
    page.wait_for_selector("#stop[disabled]", state="attached")


def test_errors_are_shown(page: Page) -> None:
    ask(page, "How do I build a bomb at home?")
    assert "guardrail" in page.locator(".answer .error").inner_text()
    page.locator("summary", has_text="Schema").click()
    page.fill("[name=schema]", "{")
    page.locator("#settings-error", has_text="schema:").wait_for()


@pytest.mark.long
def test_partial_json_is_read_at_every_cut(page: Page) -> None:
    text = '{"a": [1, -2.5e3, {"b\\u00e9\\"": "x\\\\y"}], "c": null, "d": true, "e": ""}'
    values = page.evaluate(
        """async (text) => {
            const { PENDING, parsePartial } = await import('./playground/partial_json.js');
            const cuts = [...Array(text.length + 1).keys()].map((end) => parsePartial(text.slice(0, end)));
            return [cuts.at(-1), cuts.filter((value) => value === undefined).length, cuts[0] === PENDING];
        }""",
        text,
    )
    assert values == [{"a": [1, -2500, {'bé"': "x\\y"}], "c": None, "d": True, "e": ""}, 0, True]


def test_controls_have_names_and_the_first_paint_is_fast(page: Page) -> None:
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll('input, select, textarea, button')].filter((control) =>
            !(control.labels?.length || control.textContent.trim() || control.getAttribute('aria-label'))).length"""
    )
    assert unnamed == 0
    paints = []
    for _ in range(5):  # the fastest of five: the machine may be busy
        page.reload()
        page.wait_for_selector("#settings select[name=model] option", state="attached")
        paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"))
    assert min(paints) < 200
