"""The playground in headless Chromium: images, feedback, history, Python tools and types, profile."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import PIL.Image
import pytest
from playwright.sync_api import Browser, Page, expect
from playwright.sync_api import Request as BrowserRequest
from servers import http, running_server
from test_playground import CHROMIUM, ask, browser, last_answer, opened_page, shot
from tiny_bundles import write_multimodal_bundle

import openafm as fm
from openafm.cli.main import run
from openafm.core.config import ConfigError
from openafm.serving.config import ServerConfig

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (docs/data.md)")
__all__ = ["browser"]  # a fixture

PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
TOOLS = '''
import openafm as fm

@fm.tool
def weather(city: str) -> str:
    """The weather of a city today"""
    return f"python says sun in {city}"

@fm.tool
def failing(city: str) -> str:
    """A tool that fails"""
    raise RuntimeError("no network")
'''
TYPES = """
import openafm as fm

@fm.generable
class Place:
    city: str

@fm.generable
class Meeting:
    title: str
    place: Place
"""


TOKEN = "of-this-start"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server with Python tools and types."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "playground_tools.py").write_text(TOOLS)
    (folder / "playground_types.py").write_text(TYPES)
    files = {"tool_files": (str(folder / "playground_tools.py"),), "type_files": (str(folder / "playground_types.py"),)}
    with running_server(**files, tool_token=TOKEN) as url:
        yield url.replace("127.0.0.1", "localhost")


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with opened_page(browser, address, f"#token={TOKEN}") as page:
        yield page


@pytest.mark.long
def test_python_tools_run_after_a_confirmation(page: Page) -> None:
    calls: list[str] = []
    page.on("request", lambda request: calls.append(request.url) if request.url.endswith("tools/call") else None)
    ask(page, "What's the weather in Rome?")
    assert "weather(" in page.locator(".call code").inner_text()
    assert calls == []  # nothing runs unasked
    page.get_by_role("button", name="Run weather in Python").click()
    expect(page.locator(".call textarea")).to_have_value(re.compile("^python says sun in "))
    shot(page, "python-tool")
    page.get_by_role("button", name="Return outputs").click()
    page.wait_for_selector(".answer .text")
    assert len(calls) == 1
    assert TOKEN not in page.url  # nor in the history of the browser


def test_calls_of_tools_over_http(address: str) -> None:
    token = {"x-playground-token": TOKEN}

    def call(name: str, **arguments: str) -> tuple[int, dict[str, object]]:
        reply = http.post(f"{address}/playground/tools/call", json={"name": name, "arguments": arguments}, headers=token)
        return reply.status_code, reply.json()

    for path in ("/", "/playground/tools", "/playground/schemas", "/playground/api.js"):
        shown = http.get(f"{address}{path}")
        assert TOKEN not in shown.text + str(shown.headers)  # other programs of this machine can read these
    assert call("weather", city="Oslo") == (200, {"output": "python says sun in Oslo"})
    assert call("failing", city="Oslo")[0] == 500
    assert call("os.system", command="true")[0] == 404
    for wrong in ({}, {"x-playground-token": ""}, {"x-playground-token": "\u00fc".encode()}):
        body = {"name": "weather", "arguments": {"city": "Oslo"}}
        assert http.post(f"{address}/playground/tools/call", json=body, headers=wrong).status_code == 403
    foreign = http.post(
        f"{address}/playground/tools/call", json={"name": "weather"}, headers=token | {"Origin": "https://evil.test"}
    )
    assert foreign.status_code == 403


def test_the_schema_comes_from_a_python_type(page: Page) -> None:
    page.locator("summary", has_text="Schema").click()
    page.select_option("[name=type]", "Meeting")
    schema = json.loads(page.input_value("[name=schema]"))
    assert schema["x-order"] == ["title", "place"]
    assert "Place" in schema["$defs"]


def test_images_are_dropped_and_chosen(page: Page, tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(PIXEL)
    page.set_input_files("#image-files", tmp_path / "red.png")
    page.locator("#images img[alt='red.png']").wait_for()
    page.evaluate(
        """(data) => {
            const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
            const transfer = new DataTransfer();
            transfer.items.add(new File([bytes], 'blue.png', { type: 'image/png' }));
            const composer = document.getElementById('composer');
            composer.dispatchEvent(new DragEvent('dragover', { dataTransfer: transfer, bubbles: true }));
            composer.dispatchEvent(new DragEvent('drop', { dataTransfer: transfer, bubbles: true }));
            const paste = new ClipboardEvent('paste', { clipboardData: transfer, bubbles: true, cancelable: true });
            document.getElementById('prompt').dispatchEvent(paste);
        }""",
        base64.b64encode(PIXEL).decode(),
    )
    page.locator("#images img[alt='blue.png']").nth(1).wait_for()
    page.get_by_role("button", name="Remove blue.png").first.click()
    assert page.locator("#images img").count() == 2
    shot(page, "images")
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "What is this?")
    parts = sent_messages(sent.value)[-1]["content"]
    assert [part["type"] for part in parts] == ["image_url", "image_url", "text"]
    assert base64.b64decode(parts[0]["image_url"]["url"].partition(",")[2]) == PIXEL
    assert page.locator(".prompt img").count() == 2
    assert page.locator("#images img").count() == 0
    assert "image" in page.locator(".answer .error").inner_text()  # nano has no vision encoder
    (tmp_path / "text.txt").write_text("no image")
    page.set_input_files("#image-files", tmp_path / "text.txt")
    page.locator("#prompt-error", has_text="only images").wait_for()
    with page.expect_response("**/tokenize"):
        page.fill("#prompt", "Hello")
    assert "only images" in page.locator("#prompt-error").inner_text()  # counting tokens keeps it


def test_a_model_with_a_vision_encoder_answers(browser: Browser, tmp_path: Path) -> None:
    bundle = write_multimodal_bundle(tmp_path / "seeing").path
    PIL.Image.new("RGB", (24, 24), "red").save(tmp_path / "red.png")
    with running_server(models=(str(bundle),)) as url, opened_page(browser, url.replace("127.0.0.1", "localhost")) as page:
        page.fill("#settings [name=max_tokens]", "4")
        page.set_input_files("#image-files", tmp_path / "red.png")
        page.locator("#images img").wait_for()
        with page.expect_request("**/v1/chat/completions") as sent:
            ask(page, "the cat")
        assert page.locator(".answer .error").all_inner_texts() == []
        assert "generated" in page.locator(".answer footer").inner_text()
        assert sent_messages(sent.value)[-1]["content"] != "the cat"
        page.get_by_role("button", name="Good answer").click()
        page.fill("#feedback [name=comment]", "right")
        with page.expect_download() as download:
            page.click("#feedback button[value=save]")
        download.value.save_as(tmp_path / "feedback.json")
    written = json.loads((tmp_path / "feedback.json").read_text())
    assert (written["sentiment"], written["issues"], written["comment"]) == ("positive", [], "right")
    assert fm.Transcript.parse(written["transcript"]).image_digests


def sent_messages(request: BrowserRequest) -> list[dict[str, object]]:
    return json.loads(request.post_data or "")["messages"]


def test_feedback_is_a_file_in_the_format_of_sessions(browser: Browser, url: str, tmp_path: Path) -> None:
    with opened_page(browser, url.replace("127.0.0.1", "localhost")) as page:  # without tools, which the model would call
        page.fill("#settings [name=instructions]", "You answer briefly.")
        prompt = "Repeat: one two three four five six seven."
        ask(page, prompt)
        answer = last_answer(page)
        page.get_by_role("button", name="Bad answer").click()
        page.select_option("#feedback [name=category]", "tooVerbose")
        page.fill("#feedback [name=comment]", "too long")
        page.fill("#feedback [name=desired]", "Waves.")
        shot(page, "feedback")
        with page.expect_download() as download:
            page.click("#feedback button[value=save]")
        download.value.save_as(tmp_path / "feedback.json")
        written = json.loads((tmp_path / "feedback.json").read_text())
        assert written["sentiment"] == "negative"
        assert written["issues"] == [{"category": "tooVerbose", "explanation": "too long"}]
        transcript = fm.Transcript.parse(written["transcript"])
        assert [turn.text for turn in transcript.turns[1:]] == [prompt, answer]
        session = fm.LanguageModelSession.from_transcript(transcript)
        same = json.loads(session.log_feedback(fm.Sentiment.NEGATIVE, desired_output="x"))
        assert {key: value for key, value in same.items() if key in ("version", "type", "transcript")} == {
            key: written[key] for key in ("version", "type", "transcript")
        }
        page.get_by_role("button", name="Bad answer", pressed=True).wait_for()
        page.get_by_role("button", name="Good answer").click()
        page.click("#feedback button[value=cancel]")  # nothing is saved
        assert page.locator("#feedback").is_hidden()


def test_past_conversations_are_kept_and_deleted(page: Page, address: str) -> None:
    ask(page, "Say one.")
    ask(page, "Say two.")
    page.get_by_role("button", name="Fork").nth(1).click()
    ask(page, "Say three.")
    page.keyboard.press("Alt+h")
    tree = page.locator("#past > ul").first.locator("button").all_inner_texts()
    assert tree == ["Say one.", "Say two.", "Say three."]
    page.locator("#past").get_by_role("button", name="Say two.").click()
    assert page.locator(".prompt p").all_inner_texts() == ["Say one.", "Say two."]
    shot(page, "history")
    page.goto(address)
    page.wait_for_selector("#settings select[name=model] option", state="attached")
    page.click("#history")
    page.locator("#past").get_by_role("button", name="Say one.", exact=True).click()
    assert page.locator(".turn").count() == 2
    page.get_by_role("button", name="Delete Say one.").click()
    assert page.evaluate("localStorage.getItem('conversations')") == "[]"


def test_an_answer_has_a_profile(page: Page) -> None:
    ask(page, "Repeat: one two three four five six seven.")
    label = page.locator(".answer .lane").get_attribute("aria-label") or ""
    assert "first token after" in label
    assert page.locator(".lane span").count() == 2
    left = "(id) => document.getElementById(id).getBoundingClientRect().left"
    assert page.evaluate(left, "composer") == page.evaluate(left, "conversation") > 0
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    shot(page, "narrow")
    page.set_viewport_size({"width": 1200, "height": 800})
    page.keyboard.press("Alt+d")
    page.keyboard.press("Alt+h")
    shot(page, "profile-lane-dark")


def test_wrong_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty_code.py").write_text("x = 1\n")
    for option, reason in (("--tools", "has no tools"), ("--schemas", "has no generable class")):
        assert run(["play", "--no-browser", option, str(tmp_path / "empty_code.py")]) == 2
        assert reason in capsys.readouterr().err
    assert run(["play", "--no-browser", "--tools", str(tmp_path / "absent.py")]) != 0
    assert "absent.py" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="loopback"):
        ServerConfig(host="0.0.0.0", tool_files=("x.py",))
