"""`openafm respond --image` and /image in `openafm chat`, on a tiny random multimodal bundle."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import PIL.Image
import pytest
from tiny_bundles import write_multimodal_bundle

from openafm.cli.main import run

SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeing")
    write_multimodal_bundle(folder / "model")
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    first, second = (PIL.Image.new("RGB", (20, 20), color) for color in ("red", "blue"))
    first.save(folder / "sign.png")
    first.save(folder / "moving.gif", save_all=True, append_images=[second])
    (folder / "text.png").write_text("no image")
    (folder / "empty.png").touch()
    (folder / "folder.png").mkdir()
    for name, size in (("dot", (1, 1)), ("line", (1, 20_000))):
        PIL.Image.new("RGB", size).save(folder / f"{name}.png")
    noise = PIL.Image.effect_noise((20, 20), 50)
    noise.save(folder / "noise.png")
    (folder / "cut.png").write_bytes((folder / "noise.png").read_bytes()[:-60])
    return folder


@pytest.fixture(autouse=True)
def home(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(folder)


RESPOND = ["respond", "the cat?", "--model", "./model", "-i", "", "--schema", "schema.json", "--json"]


def test_respond_with_images(capsys: pytest.CaptureFixture[str]) -> None:
    counts = []
    for detail in ("rapid", "balanced", "high"):
        assert run([*RESPOND, "--image", "sign.png", "--image", "moving.gif", "--image-detail", detail]) == 0
        captured = capsys.readouterr()
        answer = json.loads(captured.out)
        assert answer["content"]["n"] in (1, 2)
        assert "moving.gif has 2 frames; the model sees the first" in captured.err
        counts.append(answer["usage"]["prompt_tokens"])
    assert [count - counts[0] for count in counts] == [0, 2 * 3, 2 * 19]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--image", "missing.png"], "the image missing.png does not exist"),
        (["--image", "text.png"], "not in a format that can be read"),
        (["--image", "empty.png"], "the image empty.png is empty"),
        (["--image", "folder.png"], "the image folder.png is a folder"),
        (["--image", "cut.png"], "the image cut.png is damaged or cut short"),
        (["--image", "dot.png"], "too small.*pass a larger image"),
        (["--image", "line.png"], "aspect ratio.*crop it"),
        (["--image", "sign.png", "--image-detail", "best"], "best"),
    ],
)
def test_a_wrong_image_is_explained(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*RESPOND, *arguments]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert "Traceback" not in error


def test_images_in_a_chat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["/image missing.png", "/image sign.png", "/image sign.png", "the cat?", "and?", "/exit"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    assert run(["chat", "--model", "./model", "-i", "", "--schema", "schema.json"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count('"n"') == 2
    for note in ("missing.png does not exist", "the next prompt has 1 image\n", "the next prompt has 2 images"):
        assert note in captured.err
