"""Options of `web.recipe` from the command line: quality, decontamination, votes of domains, and a model as extractor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from endpoints import says, serving

from openafm.cli.main import run
from openafm.core.config import ConfigError, UnknownKeyError
from openafm.data.filtering import QualityConfig
from openafm.data.filtering.quality import QualityTrainingConfig, train_quality
from openafm.data.pipeline.config import DeduplicationStageConfig, FilterStageConfig
from openafm.data.web.documents import Page
from openafm.data.web.warc import Capture, capture_bytes
from openafm.recipes.pipelines.web import build_pipeline

GOOD = "The harbor was rebuilt in {n} after a storm, and the council paid for the new lighthouse from its own funds."
BAD = "Click here {n} to win a free prize today, limited offer, buy now, best price, free shipping, click now."
TEST_SET = "A farmer counts the sheep on his hill and finds that he has three times as many as his brother has goats today."


def write_warc(folder: Path, texts: list[str]) -> Path:
    path = folder / "crawl-1.warc.gz"
    html = "<html><head><title>Page {n}</title></head><body><article><p>{text}</p></article></body></html>"
    pages = [
        Page(
            url=f"https://site.example/{n}",
            body=html.format(n=n, text=text).encode(),
            headers={"content-type": "text/html"},
        )
        for n, text in enumerate(texts)
    ]
    path.write_bytes(b"".join(capture_bytes(Capture(page=page)) for page in pages))
    return path


def data_run(warc: Path, out: Path, capsys: pytest.CaptureFixture[str], *changes: str) -> dict[str, Any]:
    options = [part for change in changes for part in ("--set", change)]
    assert run(["data", "run", "web.recipe", str(warc), "-o", str(out), "--workers", "1", "--json", *options]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_options_change_the_stages() -> None:
    default = [stage.name for stage in build_pipeline("web.recipe").stages]
    config = build_pipeline(
        "web.recipe",
        {
            "quality": '["de.filter", "fr.filter"]',
            "keep_rate": "0.4",
            "decontaminate": "tests/",
            "domain_language": "true",
            "stages.filter.filters.0.min_letters": "100",
        },
    )
    added = [stage.name for stage in config.stages if stage.name not in default]
    assert added == ["language", "domain_language", "decontaminate"]
    (filters,) = (
        stage.filters for stage in config.stages if isinstance(stage, FilterStageConfig) and stage.name == "filter"
    )
    assert [each.file for each in filters if isinstance(each, QualityConfig)] == ["de.filter", "fr.filter"]
    last = config.stages[-1]
    assert isinstance(last, DeduplicationStageConfig)
    assert getattr(last.deduplication, "evaluation", None) == ("tests/",)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"qualty": "x"}, UnknownKeyError, "did you mean 'quality'"),
        ({"keep_rate": "0.5"}, ConfigError, "needs a quality filter"),
        ({"endpoint": "http://127.0.0.1"}, ConfigError, "needs the name of a model"),
    ],
)
def test_wrong_options_are_refused(changes: dict[str, str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build_pipeline("web.recipe", changes)


@pytest.mark.slow
def test_quality_decontamination_and_votes_of_domains_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = ([text.format(n=n) * 3 for n in range(1800, 1850)] for text in (GOOD, BAD))
    classifier, _ = train_quality(good, bad, QualityTrainingConfig(language="en"))
    classifier.save(tmp_path / "en.filter")
    (tmp_path / "set.txt").write_text(TEST_SET)
    texts = [
        "Visitors come for the old harbor. " * 2 + GOOD.format(n=1901) * 3,
        BAD.format(n=5) * 4,
        f"{GOOD.format(n=1902) * 2} {TEST_SET} The lighthouse keeper told this story to every visitor of the island.",
    ]
    warc = write_warc(tmp_path, texts)
    changes = (
        f"quality={tmp_path / 'en.filter'}",
        "keep_rate=0.4",
        f"decontaminate={tmp_path / 'set.txt'}",
        "domain_language=true",
    )
    result = data_run(warc, tmp_path / "corpus", capsys, *changes)
    dropped = {stage["name"]: stage["dropped"] for stage in result["stages"]}
    assert dropped["filter"] == {"low_quality": 1}
    assert dropped["decontaminate"] == {"contaminated": 1}
    assert result["documents_kept"] == 1


@pytest.mark.slow
def test_a_model_at_an_endpoint_extracts_and_its_agreement_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warc = write_warc(tmp_path, [f"{GOOD.format(n=1903) * 3}</p><p>{GOOD.format(n=1904) * 3}"])
    out = tmp_path / "corpus"
    with serving(says('{"blocks": [0]}')) as endpoint:
        data_run(warc, out, capsys, "model=scripted", f"endpoint={endpoint.url}", "model_below=1.0")
    assert run(["data", "report", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["extractors"] == {"model": 1}
    assert report["agreement"] == pytest.approx(0.5, abs=0.1)
