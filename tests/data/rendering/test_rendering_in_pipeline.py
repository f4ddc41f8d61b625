"""`openafm data run --set render=true`: pages that scripts build, from the scripts and data in their WARC file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openafm.cli.main import run
from openafm.data.pipeline.parquet import read_documents
from openafm.data.rendering import RenderConfig
from openafm.data.rendering.renderer import RenderingUnavailableError, check_installation
from openafm.data.web.documents import Page, WebDocument
from openafm.data.web.warc import Capture, capture_bytes

TEXT = "The ferry to the island leaves at noon, and it returns in the evening when the tide is high again. " * 4
SHELL = '<html><body><div id="app"></div><script src="/app.js"></script></body></html>'
APP = """fetch('/api' + location.pathname).then(answer => answer.json()).then(data => {
  document.getElementById('app').innerHTML = '<article><h1>Ferry</h1><p>' + data.text + '</p></article>';
});"""


def write_warc(folder: Path) -> Path:
    def page(path: str, body: str, content_type: str) -> Page:
        return Page(url=f"https://ferry.example{path}", body=body.encode(), headers={"content-type": content_type})

    pages = [
        page("/static", f"<article><p>{TEXT}</p><p>A static page.</p></article>", "text/html"),
        page("/built", SHELL, "text/html"),
        page("/broken", SHELL.replace("/app.js", "/none.js"), "text/html"),
        page("/api/built", json.dumps({"text": TEXT + "A built page."}), "application/json"),
        page("/app.js", APP, "text/javascript"),
    ]
    path = folder / "crawl-1.warc.gz"
    path.write_bytes(b"".join(capture_bytes(Capture(page=each)) for each in pages))
    return path


def documents_of(corpus: Path) -> dict[str, WebDocument]:
    files = (corpus / "stages" / "extract").glob("*.documents.parquet")
    return {each.url.rpartition("/")[2]: each for file in files for each in read_documents(file)}


@pytest.mark.long
def test_pages_are_rendered_from_their_own_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        check_installation(RenderConfig())
    except RenderingUnavailableError as error:
        pytest.skip(str(error))
    out = tmp_path / "corpus"
    arguments = ["data", "run", "web.recipe", str(write_warc(tmp_path)), "-o", str(out), "--workers", "1", "--json"]
    assert run([*arguments, "--set", "render=true"]) == 0
    assert json.loads(capsys.readouterr().out)["stages"][0]["dropped"] == {"content_type": 2, "no_text": 1}
    documents = documents_of(out)
    assert set(documents) == {"static", "built"}
    assert "A built page." in documents["built"].text


@pytest.mark.long
def test_without_chromium_a_note_is_given_and_static_pages_are_extracted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    out = tmp_path / "corpus"
    arguments = ["data", "run", "web.recipe", str(write_warc(tmp_path)), "-o", str(out), "--workers", "1", "--json"]
    assert run([*arguments, "--set", "render=true"]) == 0
    assert "no page is rendered" in capsys.readouterr().err
    assert set(documents_of(out)) == {"static"}
    (note,) = json.loads((out / "corpus.json").read_text())["notes"]
    assert note.startswith("no page is rendered")
