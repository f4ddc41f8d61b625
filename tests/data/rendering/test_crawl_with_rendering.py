"""`openafm data crawl --render`: records of rendered pages, the rules of the crawl, and a machine without Chromium."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openafm.cli.main import run
from openafm.data.rendering import RenderConfig
from openafm.data.rendering.renderer import RenderingUnavailableError, check_installation
from openafm.data.sites import SiteConfig, serve
from openafm.data.web.documents import Page
from openafm.data.web.warc import warc_files
from openafm.data.web.warc_reader import read_pages

SITE = SiteConfig(
    seed=1, num_pages=4, languages=("en",), scripts=("fetch", "load_more"), script_share=0.6, opt_out_share=0, traps=False
)
RULES = ["--set", "allow_private_addresses=true", "--set", "delay_s=0", "--set", "tdm_file=false"]


def pages_of(folder: Path) -> dict[str, Page]:
    found = [page for path in warc_files(folder) for page in read_pages(path) if isinstance(page, Page)]
    return {"/" + page.url.partition("//")[2].partition("/")[2]: page for page in found}


@pytest.mark.slow
def test_pages_that_need_it_are_rendered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        check_installation(RenderConfig())
    except RenderingUnavailableError as error:
        pytest.skip(str(error))
    site = SITE.build()
    with serve(site) as server:
        assert run(["data", "crawl", server.url, "--out", str(tmp_path), "--render", "--json", *RULES]) == 0
    report = json.loads(capsys.readouterr().out)
    pages = pages_of(tmp_path)
    assert report["done"] == len(pages)
    expected = {path: page.needs_script for path, page in site.pages.items() if page.text}
    assert {path: pages[path].rendered for path in expected} == expected
    assert True in expected.values()
    for path in (path for path, is_rendered in expected.items() if is_rendered):
        lines = site.pages[path].text.splitlines()
        assert any(line in pages[path].body.decode() for line in lines[len(lines) // 2 :])  # the part that takes a click
    content = b"".join(path.read_bytes() for path in warc_files(tmp_path))
    assert {request.user_agent.partition("/")[0] for request in server.requests} == {"OpenAFMBot"}
    requested = [request.path for request in server.requests]
    assert len(requested) == len(set(requested))  # rendering does not fetch a page again
    assert _num_screenshots(content) == sum(expected.values())


def _num_screenshots(warc: bytes) -> int:
    import io

    from fastwarc.warc import ArchiveIterator, WarcRecordType

    records = ArchiveIterator(io.BytesIO(warc), record_types=WarcRecordType.resource)
    return sum(record.reader.read(8) == b"\x89PNG\r\n\x1a\n" for record in records)


def test_without_chromium_pages_stay_static(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with serve(SITE.build()) as server:
        assert run(["data", "crawl", server.url, "--out", str(tmp_path), "--render", "--json", *RULES]) == 0
    captured = capsys.readouterr()
    assert "no page is rendered: rendering needs" in captured.err
    assert json.loads(captured.out)["done"] > 4
    assert not any(page.rendered for page in pages_of(tmp_path).values())


def test_values_of_rendering_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "crawl.toml"
    config.write_text("delay_s = 0.0\n[render]\nmax_click = 3\n")
    for arguments in (["--config", str(config)], ["--set", "render.max_click=3"]):
        assert run(["data", "crawl", "http://127.0.0.1:9/", "--out", str(tmp_path / "out"), *arguments]) == 2
        assert "did you mean 'max_clicks'" in capsys.readouterr().err
