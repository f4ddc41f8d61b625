from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from openafm.cli.main import run
from openafm.core.config import dump, from_dict, to_dict
from openafm.data.pipeline.config import PipelineConfig
from openafm.data.web.documents import Page
from openafm.data.web.warc import Capture, capture_bytes
from openafm.recipes.pipelines.web import PIPELINES, build_pipeline

GOLDEN = Path(__file__).parents[1] / "recipes" / "golden_pipelines"
SENTENCES = (
    "The council of the town met on Monday to discuss the new bridge. Nobody expected the long debate that followed. "
)


@pytest.fixture
def warc(tmp_path: Path) -> Path:
    bodies = [f"<html><body><article><p>{SENTENCES * 4} Number {i}.</p></article></body></html>" for i in range(4)]
    pages = [
        Page(url=f"https://a.example/{i}", body=body.encode(), headers={"content-type": "text/html"})
        for i, body in enumerate([*bodies, "<p>short</p>"])
    ]
    path = tmp_path / "crawl-1.warc.gz"
    path.write_bytes(b"".join(capture_bytes(Capture(page=page)) for page in pages))
    return path


def test_run_report_and_try(warc: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "corpus"
    arguments = ["data", "run", "web.recipe", "--input", str(tmp_path / "*.warc.gz"), "-o", str(corpus), "--workers", "1"]
    assert run([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["documents_in"] == 5
    assert result["documents_in"] == result["documents_kept"] + sum(sum(s["dropped"].values()) for s in result["stages"])
    assert run(["data", "report", str(corpus), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == result["digest"]
    assert run(["data", "report", str(corpus)]) == 0
    assert "<h1>" in (corpus / "report.html").read_text()
    assert run(["data", "try", str(warc), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])[0]["outcome"] == "kept"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "web.recpe", "--input", "x.warc"], "did you mean 'web.recipe'"),
        (["run", "web.recipe", "--input", "none.warc"], "none.warc does not exist"),
        (["run", "web.recipe", "--input", "x.warc", "--set", "stages.exract.max_page_mb=1"], "did you mean 'extract'"),
        (["run", "web.recipe", "--input", "x.warc", "--executor", "spark"], "use local or ray"),
        (["try", "none.html"], "none.html does not exist"),
    ],
)
def test_wrong_arguments_have_exit_code_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_pipeline_of_the_user_is_run_by_workers(warc: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from openafm.data.extraction.base import PageExtractor, PageExtractorConfig\n"
        "from openafm.data.pipeline.config import ExtractionStageConfig, PipelineConfig\n"
        "from openafm.data.web.documents import WebDocument\n"
        "class Raw(PageExtractor):\n"
        "    def extract(self, page):\n"
        "        return WebDocument(id=page.url, url=page.url, text=page.body.decode())\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class RawConfig(PageExtractorConfig):\n"
        "    def build(self):\n"
        "        return Raw()\n"
        "def raw() -> PipelineConfig:\n"
        "    return PipelineConfig(stages=(ExtractionStageConfig(extraction=RawConfig()),))\n"
    )
    out = tmp_path / "corpus"
    assert run(["data", "run", f"{file}:raw", str(warc), "-o", str(out), "--workers", "1"]) == 0
    assert json.loads((out / "corpus.json").read_text())["config"]["recipe"] == "mine.raw"


@pytest.mark.parametrize("name", PIPELINES)
def test_pipeline_equals_its_golden_dump(name: str) -> None:
    config = build_pipeline(name)
    assert from_dict(PipelineConfig, to_dict(config)) == config
    file = GOLDEN / f"{name}.json"
    if os.environ.get("OPENAFM_UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(dump(config), encoding="utf-8")
    assert file.read_text(encoding="utf-8") == dump(config)
