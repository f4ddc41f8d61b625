from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import page

from openafm.data.pipeline.config import PipelineConfig
from openafm.data.pipeline.report import corpus_report, html
from openafm.data.pipeline.runner import run_pipeline
from openafm.data.pipeline.trial import TrialPageError, open_page, try_steps
from openafm.data.web.documents import Page

Write = Callable[[str, Iterable[Page]], Path]


def test_report_adds_up_by_reason_language_domain_and_length(
    config: PipelineConfig, tmp_path: Path, write_warc: Write
) -> None:
    pages = [
        page("1", "der lange Text " * 30),
        page("2", "a text"),
        page("3", "der"),
        page("4", "", url="https://<b>.example/"),
        replace(page("5", "a second text"), url="https://b.example/5"),
    ]
    run_pipeline(config, [write_warc("a.warc.gz", pages)], tmp_path / "corpus")
    report = corpus_report(tmp_path / "corpus")
    extract = report.stages[0]
    assert extract.num_in == 5 == extract.num_kept + sum(extract.dropped.values())
    assert (extract.dropped, extract.dropped_by_language) == ({"empty": 1, "too_short": 1}, {"de": 1, "unknown": 1})
    assert report.languages == {"en": 2, "de": 1}
    assert report.domains == {"a.example": 2, "b.example": 1}
    assert {name: count for name, count in report.lengths.items() if count} == {"below 200": 2, "from 200": 1}
    assert sum(report.characters_by_language.values()) == report.characters
    text = html(report)
    assert "too_short" in text
    assert "<b>" not in text


def test_every_step_shows_its_result(config: PipelineConfig, tmp_path: Path, write_warc: Write) -> None:
    path = write_warc("a.warc.gz", [page("1", "a long text"), page("2", "hm")])
    results = list(try_steps(config, open_page(str(path))))
    assert [(result.step, result.outcome) for result in results] == [
        ("page", "kept"),
        ("TagsConfig", "changed"),
        ("MinLengthConfig", "changed"),
        ("EqualTextsConfig", "not tried: compares all documents"),
    ]
    assert "+ A LONG TEXT" in results[2].changes
    last = list(try_steps(config, open_page(str(path), "https://a.example/2")))[-1]
    assert (last.outcome, last.changes) == ("dropped: too_short", ("2",))
    html_file = tmp_path / "page.html"
    html_file.write_text("<meta name=robots content=noai><p>text")
    assert next(try_steps(config, open_page(str(html_file)))).outcome == "dropped: training_opt_out"
    wrong = (
        (tmp_path / "none.html", "", "does not exist"),
        (tmp_path, "", "is a folder"),
        (path, "https://a.example/9", ""),
    )
    for place, url, message in wrong:
        with pytest.raises(TrialPageError, match=message):
            open_page(str(place), url)
