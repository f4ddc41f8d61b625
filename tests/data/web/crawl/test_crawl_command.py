"""`openafm data crawl` and `openafm data why`."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from crawl_site import TEXT, Answer, Site, page, serve, tree

from openafm.cli.main import run
from openafm.core.config import from_dict
from openafm.data.web.crawl.config import CrawlConfig
from openafm.data.web.documents import Page
from openafm.data.web.permissions.opt_out import read_exceptions
from openafm.data.web.warc import warc_files
from openafm.data.web.warc_reader import read_pages

CONFIG = "delay_s = 0.0\nallow_private_addresses = true\n[priority]\nlanguages = {en = 1.0}\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "crawl.toml"
    path.write_text(CONFIG)
    return path


def test_crawl_and_why(tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "crawl"
    with serve(tree(5)) as site:
        assert run(["data", "crawl", site.url, "--config", str(config), "--out", str(out), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["done"] == 5
        assert run(["data", "crawl", site.url, "--config", str(config), "--out", str(out)]) == 0
        assert capsys.readouterr().out.startswith("fetched now            0\n")
    assert len(list(read_pages(warc_files(out)[0]))) == 5

    def why(path: str) -> dict[str, str]:
        assert run(["data", "why", site.url + path, "--crawl", str(out), "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    fetched = why("/page/3")
    assert fetched["state"] == "was fetched"
    assert fetched["discovered"] == f"link on {site.url}/page/1, 2 links from a seed"
    assert "language" in fetched["priority"]
    assert fetched["training"] == "allowed"
    assert why("/private/secret")["state"] == "must not be fetched: robots.txt line 2: Disallow: /private/"
    assert why("/private/secret")["robots"].startswith("disallowed by the group of all agents")
    assert why("/unknown")["state"].startswith("was not discovered")
    assert why("/calendar/2093/01/")["state"] == "is left out: a calendar page of the year 2093"
    assert run(["data", "why", site.url, "--crawl", str(out)]) == 0
    assert "was fetched" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["crawl", "ftp://x/"], 2, "not a web address"),
        (["crawl", "http://127.0.0.1:9/", "--set", "delay=1"], 2, "did you mean 'delay_s'"),
        (["crawl", "http://127.0.0.1:9/", "--config", "missing.toml"], 2, "not a config of a crawl"),
        (["crawl", "http://127.0.0.1:9/", "--set", "max_host_failures=1"], 1, "no page was fetched"),
    ],
)
def test_wrong_input(
    tmp_path: Path, arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["data", *arguments, "--out", str(tmp_path / "crawl")]) == code
    assert message in capsys.readouterr().err


@pytest.mark.skipif(not shutil.which("chromium-headless-shell"), reason="needs Chromium")
def test_pages_built_by_scripts_are_rendered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("playwright")
    config = tmp_path / "crawl.toml"
    config.write_text("delay_s = 0.05\nallow_private_addresses = true\n[render]\nscreenshot = true\n")
    script = (
        "<div id=root></div><script src=/app.js></script><script>fetch('/data.json').then(r => r.json()).then(d => "
        "{ document.getElementById('root').innerHTML = '<p>' + d.text + '</p><a href=/found>more</a>'; })</script>"
    )
    site = Site({"/": Answer(f"<html><body>{script}</body></html>".encode()), "/found": page()})
    site.robots = "User-agent: *\nDisallow: /app.js\n"
    site.answers["/data.json"] = Answer(
        json.dumps({"text": TEXT * 5}).encode(), headers={"Content-Type": "application/json"}
    )
    with serve(site):
        assert (
            run(["data", "crawl", site.url, "--config", str(config), "--out", str(tmp_path / "out"), "--render", "--json"])
            == 0
        )
    assert json.loads(capsys.readouterr().out)["done"] == 2
    assert "/app.js" not in site.paths(), "disallowed for scripts of a page too"
    pages = {each.url.removeprefix(site.url): each for each in read_pages(warc_files(tmp_path / "out")[0])}
    assert isinstance(rendered := pages["/"], Page)
    assert rendered.rendered
    assert TEXT.encode() in rendered.body
    assert "/found" in pages


def test_why_without_a_crawl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "why", "http://e.com/", "--crawl", str(tmp_path)]) == 1
    assert "holds no crawl" in capsys.readouterr().err


def test_the_files_of_the_page_are_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "data.md").read_text(encoding="utf-8")
    config, exceptions = re.findall(r"```toml\n(.*?)```", page.partition("## The crawler")[2], re.DOTALL)
    assert from_dict(CrawlConfig, tomllib.loads(config)).priority.languages == {"de": 0.5, "fr": 0.5}
    (tmp_path / "exceptions.toml").write_text(exceptions)
    assert read_exceptions(tmp_path / "exceptions.toml")[0].train is True
