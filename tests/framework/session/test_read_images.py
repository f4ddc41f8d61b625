"""Images for a text model with a reader of pages: the model gets the text that is written in them."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import openafm as fm
from openafm.adapters import store
from openafm.bundle import open_bundle, shipped_bundle
from openafm.bundle.errors import BundleTamperedError
from openafm.cli.main import run
from openafm.data.drawing.canvas import Canvas
from openafm.data.drawing.fonts import fonts_for
from openafm.framework.backends.adapter import resolve_adapter
from openafm.framework.backends.image_details import NO_TEXT
from openafm.framework.schema.copied_lines import copied_lines
from openafm.reading.page import FILES
from openafm.safety.guardrail import Allowed, Guardrail, Violation

PIL_Image = pytest.importorskip("PIL.Image")
SHIPPED = shipped_bundle()
pytestmark = pytest.mark.skipif(SHIPPED is None or open_bundle(SHIPPED).reader is None, reason="no reader ships")
LINES = (("Harbor Night Market", 54), ("Saturday, June 14, 2031", 26), ("Doors open at 19:45", 22))
TEXT = "\n".join(line for line, _ in LINES)
MARKDOWN = f"# {TEXT}"


def page(lines: tuple[tuple[str, int], ...] = LINES) -> bytes:
    font = next(font for font in fonts_for("en") if font.family == "DejaVu Sans")
    canvas, y = Canvas(700, 500, (250, 250, 245)), 40.0
    for text, size in lines:
        canvas.text(60, y, text, font, size, (20, 20, 40))
        y += 1.8 * size
    return canvas.png()


def blank() -> bytes:
    out = io.BytesIO()
    PIL_Image.new("RGB", (200, 100), "white").save(out, "PNG")
    return out.getvalue()


def test_the_model_gets_the_text_of_the_image() -> None:
    model = fm.SystemLanguageModel()
    assert fm.Capability.VISION in model.capabilities
    session = fm.LanguageModelSession(model=model)
    session.respond_blocking(
        fm.Prompt(fm.Image(page(), label="Flyer"), "When is it?"), options=fm.GenerationOptions(maximum_response_tokens=4)
    )
    prompt = session.transcript[0]
    assert prompt.turn.text == f"Flyer:\n{MARKDOWN}\nWhen is it?"
    assert prompt.images == {}
    assert not session.transcript.image_digests


def test_tokens_are_those_of_the_text() -> None:
    model = fm.SystemLanguageModel()
    counted = model.token_count_blocking(fm.Prompt(fm.Image(page()), "When is it?"))
    assert counted == model.token_count_blocking(f"{MARKDOWN}\nWhen is it?")


def test_an_answer_is_the_one_for_the_text() -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}

    def answer(*parts: Any) -> Any:
        session = fm.LanguageModelSession(model=fm.SystemLanguageModel())
        return json.loads(session.respond_blocking(fm.Prompt(*parts), json_schema=schema).to_json())

    assert answer(fm.Image(page()), "Which event?") == answer(MARKDOWN, "Which event?")


def test_an_image_without_text_says_so() -> None:
    model = fm.SystemLanguageModel()
    assert model.token_count_blocking(fm.Image(blank())) == model.token_count_blocking(NO_TEXT)


@pytest.mark.parametrize("detail", ["high", "balanced", "rapid"])
def test_details_of_images(detail: Any) -> None:
    assert fm.SystemLanguageModel().token_count_blocking(fm.Image(page()), image_detail=detail) > 5


def test_images_that_cannot_be_read() -> None:
    small = io.BytesIO()
    PIL_Image.new("RGB", (1, 1)).save(small, "PNG")
    with pytest.raises(fm.ImagePromptError, match="too small"):
        fm.LanguageModelSession(model=fm.SystemLanguageModel()).respond_blocking(fm.Image(small.getvalue()))


class _NoMarkets(Guardrail):
    def check_input(self, text: str) -> Any:
        return Violation(category="markets", reason="a market") if "Market" in text else Allowed()

    def check_output(self, text: str) -> Any:
        return Allowed()


def test_the_guardrail_reads_the_text_of_images() -> None:
    model = fm.SystemLanguageModel(guardrails=_NoMarkets())
    with pytest.raises(fm.GuardrailViolationError):
        fm.LanguageModelSession(model=model).respond_blocking(fm.Prompt(fm.Image(page()), "When is it?"))


def test_a_tool_may_return_an_image() -> None:
    @fm.tool
    def photo() -> Any:
        """Take a photo."""
        return fm.Image(page())

    session = fm.LanguageModelSession(model=fm.SystemLanguageModel(), tools=[photo])
    options = fm.GenerationOptions(tool_calling_mode="required", maximum_response_tokens=64)
    session.respond_blocking("Take a photo", options=options)
    outputs = [entry for entry in session.transcript if isinstance(entry, fm.ToolOutputEntry)]
    assert TEXT in outputs[0].turn.text


def test_a_transcript_with_images_of_another_model_is_refused() -> None:
    turn = fm.UserTurn(content=[fm.TextPart(text="What?"), fm.ImagePart(digest="0" * 64, num_tokens=9)])
    entry = fm.PromptEntry(turn=turn, options=fm.GenerationOptions(), images={})
    session = fm.LanguageModelSession.from_transcript(fm.Transcript([entry]), fm.SystemLanguageModel())
    with pytest.raises(fm.UnsupportedAttachmentError, match="no vision encoder"):
        session.respond_blocking("And now?")


def test_an_installed_adapter_comes_before_that_of_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path))
    bundle = open_bundle(SHIPPED)
    assert bundle.pages_adapter is not None
    assert resolve_adapter("pages", bundle).path == bundle.pages_adapter
    installed = store.adapter_place("pages", bundle.signature)
    shutil.copytree(bundle.pages_adapter, installed)
    assert resolve_adapter("pages", bundle).path == installed


def test_the_command_uses_the_adapter_for_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.png").write_bytes(page())
    (tmp_path / "s.json").write_text(
        '{"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}'
    )
    assert run(["respond", "Which event?", "--image", str(tmp_path / "a.png"), "--schema", str(tmp_path / "s.json")]) == 0
    assert json.loads(capsys.readouterr().out)["title"] in copied_lines(f"{MARKDOWN}\nWhich event?")


def test_verification_finds_a_damaged_reader(tmp_path: Path) -> None:
    assert SHIPPED is not None
    bundle = open_bundle(shutil.copytree(SHIPPED, tmp_path / "nano"))
    bundle.verify()
    weights = tmp_path / "nano" / "reader" / FILES[1]
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0\0")
    with pytest.raises(BundleTamperedError, match="reader"):
        open_bundle(tmp_path / "nano").verify()


def test_the_command_prints_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.png").write_bytes(page())
    assert run(["read", str(tmp_path / "a.png")]) == 0
    assert capsys.readouterr().out.strip() == TEXT
    assert run(["read", "--json", str(tmp_path / "a.png")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["text"] == TEXT
    assert [line["text"] for line in found["lines"]] == TEXT.splitlines()
    assert (found["width"], found["height"]) == (700, 500)
    assert all(0 < line["left"] < line["right"] < 700 and 0 < line["y"] < 500 for line in found["lines"])
    (tmp_path / "b.png").write_bytes(b"no image")
    assert run(["read", str(tmp_path / "b.png"), str(tmp_path / "a.png")]) == 1
    out, error = capsys.readouterr()
    assert TEXT in out
    assert "b.png" in error
