"""The grading server: its routes over HTTP, and its page in headless Chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grading_projects import item, project_of, store_of
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page, Request, sync_playwright
from web_servers import Browser, running_app

from openafm.annotation.clock import steady_clock
from openafm.annotation.grading.judgments import JudgmentStore, Verdict
from openafm.annotation.grading.sample import create_sample
from openafm.annotation.grading.server import build_grading_app, open_store
from openafm.annotation.people.accounts import Accounts, Role
from openafm.annotation.web import WebConfig
from openafm.core.files import OutOfSpaceError

PROGRAM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed (docs/data.md)")
SCREENSHOTS = os.environ.get("OPENAFM_SCREENSHOTS")
PIXEL = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000049454e44ae426082")


@pytest.fixture
def store(tmp_path: Path) -> JudgmentStore:
    (tmp_path / "menu.png").write_bytes(PIXEL)
    items = [item("i0", images=["menu.png"]), item("i1"), item("i2")]
    return store_of(project_of(tmp_path, items, overlap=2, title="Wave 1"), steady_clock())


@pytest.fixture
def url(store: JudgmentStore) -> Iterator[str]:
    config = WebConfig(port=0, needs_accounts=True)
    with running_app(build_grading_app(store, config), config) as url:
        yield url


def joined(url: str, store: JudgmentStore, name: str, role: Role = Role.ANNOTATOR) -> Browser:
    browser = Browser(url)
    accounts = Accounts(store.database, store.clock)
    browser.join(accounts.invite(role, [store.project.config.id]), name)
    return browser


def submission(task: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"task": task["key"], "verdict": "left", "strength": 2, "seconds": 1.5} | changes


def test_replies_never_name_systems(url: str, store: JudgmentStore) -> None:
    browser = joined(url, store, "Ana")
    task = browser.get("/task")["task"]
    assert {task["left"], task["right"]} == {f"A {task['prompt'][0]['text'][9:11]}", f"B {task['prompt'][0]['text'][9:11]}"}
    assert not {"first", "second", "answers", "systems"} & set(task)
    flags = {"left": ["harmful"], "right": []}
    browser.post("/judgments", submission(task, flags=flags, satisfaction={"left": 4, "right": 1}))
    (judgment,) = store.all()
    is_first_left = task["left"].startswith("A")
    assert judgment.verdict is (Verdict.FIRST if is_first_left else Verdict.SECOND)
    assert judgment.satisfaction == ((4, 1) if is_first_left else (1, 4))
    assert judgment.flags == ((("harmful",), ()) if is_first_left else ((), ("harmful",)))
    assert judgment.left == ("a" if is_first_left else "b")
    again = browser.get(f"/tasks/{task['key']}")["task"]
    assert (again["judgment"]["verdict"], again["judgment"]["flags"]) == ("left", flags)
    assert [each["verdict"] for each in browser.get("/history")] == ["left"]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"task": "unknown"}, 404),
        ({"verdict": "first"}, 422),
        ({"strength": 9}, 400),
        ({"seconds": -1}, 422),
        ({"flags": {"left": ["rude"]}}, 400),
        ({"comment": "x" * 6000}, 422),
        ({"surprise": 1}, 422),
        ({"revision": 3}, 409),
    ],
)
def test_wrong_judgments_are_refused(url: str, store: JudgmentStore, change: dict[str, Any], status: int) -> None:
    browser = joined(url, store, "Ana")
    reply = browser.send("POST", "/judgments", json=submission(browser.get("/task")["task"]) | change)
    assert reply.status_code == status
    assert reply.json()["error"]["message"]
    assert store.all() == []


def test_a_full_disk_is_shown(url: str, store: JudgmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = joined(url, store, "Ana")
    body = submission(browser.get("/task")["task"])

    def full(*_arguments: object, **_named: object) -> None:
        raise OutOfSpaceError("no space left on the disk")

    monkeypatch.setattr(JudgmentStore, "submit", full)
    reply = browser.send("POST", "/judgments", json=body)
    assert reply.status_code == 507
    assert "nothing was stored" in reply.json()["error"]["message"]
    monkeypatch.undo()
    assert browser.post("/judgments", body) == {"revision": 1}


def test_images_are_served_to_signed_in_people_only(url: str, store: JudgmentStore) -> None:
    key = next(key for key, task in store.project.tasks.items() if task.item.images)
    browser = joined(url, store, "Ana")
    reply = browser.send("GET", f"/images/{key}/0")
    assert (reply.content, reply.headers["content-type"]) == (PIXEL, "image/png")
    assert browser.send("GET", f"/images/{key}/1").status_code == 404
    assert Browser(url).send("GET", f"/images/{key}/0").status_code == 401


def test_reviewers_adjudicate_and_admins_see_progress(url: str, store: JudgmentStore) -> None:
    ana, bo, cy = (joined(url, store, name) for name in ("Ana", "Bo", "Cy"))
    cy.csrf = joined(url, store, "Dora").csrf  # a foreign token
    for browser, better in ((ana, "A"), (bo, "B")):
        while (task := browser.get("/task")["task"]) is not None:
            browser.post("/judgments", submission(task, verdict="left" if task["left"].startswith(better) else "right"))
    assert ana.send("GET", "/adjudication").status_code == 403
    assert ana.send("GET", "/progress").status_code == 403
    assert cy.send("POST", "/skips", json={"task": "x"}).status_code == 403
    reviewer = joined(url, store, "Rosa", Role.REVIEWER)
    for _ in range(3):
        found = reviewer.get("/adjudication")
        assert len(found["opinions"]) == 2
        assert "Ana" not in str(found)
        reviewer.post("/adjudications", submission(found["task"], verdict="both_bad", strength=0))
    assert reviewer.get("/adjudication")["state"] == "done"
    assert reviewer.send("GET", "/progress").status_code == 403
    progress = joined(url, store, "Ada", Role.ADMIN).get("/progress")
    assert (progress["total"], progress["done"], progress["agreement"]) == (3, 3, 0.0)
    assert [(each["name"], each["done"], each["open"], each["agreement"]) for each in progress["people"]] == [
        ("Ana", 3, 0, 0.0),
        ("Bo", 3, 0, 0.0),
    ]


# The page


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=PROGRAM)


@pytest.fixture(scope="module")
def sample_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = open_store(create_sample(tmp_path_factory.mktemp("projects") / "sample"))
    config = WebConfig(port=0)
    with running_app(build_grading_app(store, config), config) as url:
        yield url


def opened(chromium: Chromium, url: str, **settings: Any) -> Iterator[Page]:
    """Open a page. Errors of scripts and requests to other origins fail the test."""
    context = chromium.new_context(**{"color_scheme": "light", "viewport": {"width": 1200, "height": 900}} | settings)
    page = context.new_page()
    page.set_default_timeout(60_000)
    errors: list[Any] = []
    requests: list[Request] = []
    page.on("pageerror", lambda error: errors.append(error))
    page.on("request", lambda request: requests.append(request))
    page.goto(url)
    yield page
    context.close()
    assert errors == []
    assert {each.url.split("/", 3)[2] for each in requests if not each.url.startswith("data:")} == {url.split("/", 3)[2]}


@pytest.fixture
def page(chromium: Chromium, sample_url: str) -> Iterator[Page]:
    for page in opened(chromium, sample_url):
        page.wait_for_selector("#task:not([hidden])")
        yield page


def shot(page: Page, name: str) -> None:
    if SCREENSHOTS:
        page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", full_page=True)


@needs_chromium
def test_a_comparison_is_judged_by_keys_alone(page: Page) -> None:
    before = page.inner_text("#left")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("button", name="Right better").get_attribute("aria-pressed") == "true"
    page.keyboard.press("3")
    assert page.get_by_role("button", name="Right much better").get_attribute("aria-pressed") == "true"
    page.keyboard.press("c")
    page.keyboard.type("tbs1")  # text, not keys of the page
    page.keyboard.press("Escape")
    assert page.get_by_role("button", name="Right much better").get_attribute("aria-pressed") == "true"
    shot(page, "grade")
    page.keyboard.press("Enter")
    page.locator("#saved", has_text="Stored.").wait_for()
    assert page.inner_text("#left") != before
    page.keyboard.press("p")
    page.locator("#about", has_text="judged before").wait_for()
    assert page.inner_text("#left") == before
    assert page.input_value("#comment") == "tbs1"
    page.keyboard.press("t")
    page.keyboard.press("Enter")
    page.locator("#saved", has_text="Stored.").wait_for()


@needs_chromium
def test_a_draft_outlives_a_reload(page: Page) -> None:
    page.keyboard.press("ArrowLeft")
    page.get_by_role("group", name="Issues of the left answer").get_by_label("Hallucination").check()
    page.get_by_role("radiogroup", name="Satisfaction with the right answer").get_by_label("fair").check()
    page.fill("#comment", "half a thou")
    page.reload()
    page.locator("#saved", has_text="restored").wait_for()
    assert page.input_value("#comment") == "half a thou"
    assert page.get_by_role("button", name="Left slightly").get_attribute("aria-pressed") == "true"
    assert page.get_by_role("group", name="Issues of the left answer").get_by_label("Hallucination").is_checked()
    assert page.get_by_role("radiogroup", name="Satisfaction with the right answer").get_by_label("fair").is_checked()


@needs_chromium
def test_the_second_of_two_windows_is_refused_and_shows_the_stored_judgment(page: Page) -> None:
    other = page.context.new_page()
    other.goto(page.url)
    other.wait_for_selector("#task:not([hidden])")
    assert other.inner_text("#left") == page.inner_text("#left")
    other.keyboard.press("b")
    other.keyboard.press("Enter")
    other.locator("#saved", has_text="Stored.").wait_for()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.locator("#error", has_text="another window").wait_for()
    page.locator("#about", has_text="judged before").wait_for()
    assert page.get_by_role("button", name="Both bad").get_attribute("aria-pressed") == "true"


@needs_chromium
def test_an_unreachable_server_keeps_the_entry(page: Page) -> None:
    page.keyboard.press("t")
    page.context.set_offline(True)
    page.keyboard.press("Enter")
    page.locator("#error", has_text="not reached").wait_for()
    page.context.set_offline(False)
    page.keyboard.press("Enter")
    page.locator("#saved", has_text="Stored.").wait_for()


@needs_chromium
@pytest.mark.parametrize("width", [320, pytest.param(2560, marks=pytest.mark.slow)])
def test_the_page_fits_every_width_in_both_schemes(chromium: Chromium, sample_url: str, width: int) -> None:
    for page in opened(chromium, sample_url, color_scheme="dark", viewport={"width": width, "height": 800}):
        page.wait_for_selector("#task:not([hidden])")
        page.keyboard.press("?")
        page.locator("#guidelines summary").click()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        shot(page, f"grade-{width}-dark")
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll('input, select, textarea, button, img')].filter((each) =>
                !(each.labels?.length || each.textContent.trim() || each.getAttribute('aria-label') || each.alt)).length"""
        )
        assert unnamed == 0


@needs_chromium
@pytest.mark.slow
def test_people_join_sign_out_and_sign_in(chromium: Chromium, url: str, store: JudgmentStore) -> None:
    link = f"{url}/join#{Accounts(store.database, store.clock).invite(Role.ADMIN)}"
    for page in opened(chromium, link):
        page.get_by_label("Name").fill("Ana")
        page.get_by_label("Password").fill("a long password")
        page.get_by_role("button", name="Continue").click()
        page.wait_for_selector("#task:not([hidden])")
        page.get_by_role("link", name="Account").click()
        page.get_by_role("button", name="Create an invite link").click()
        page.wait_for_selector("#link-label:not([hidden])")
        assert "/join#" in page.input_value("#link")
        shot(page, "people")
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Name").fill("Ana")
        page.get_by_label("Password").fill("a wrong password")
        page.get_by_role("button", name="Continue").click()
        page.locator("#error", has_text="wrong").wait_for()
        page.get_by_label("Password").fill("a long password")
        page.keyboard.press("Enter")
        page.wait_for_selector("#task:not([hidden])")
