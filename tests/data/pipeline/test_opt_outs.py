"""A later opt-out removes documents of earlier records; decisions are applied to columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import page
from simple_kinds import EqualTextsConfig, TagsConfig

from openafm.core.config import ConfigError
from openafm.core.executors import LocalConfig
from openafm.data.pipeline.config import (
    DeduplicationStageConfig,
    ExtractionStageConfig,
    OptOutStageConfig,
    PipelineConfig,
)
from openafm.data.pipeline.parquet import ROWS_PER_GROUP, read_documents
from openafm.data.pipeline.runner import run_pipeline
from openafm.data.web.documents import Page

Write = Callable[[str, Iterable[Page]], Path]
EXTRACT = ExtractionStageConfig(extraction=TagsConfig())
EARLIER, LATER, LAST = "2026-01-02T03:04:05Z", "2026-02-02T03:04:05.5Z", "2026-03-02T00:00:00Z"


def pipeline(*stages: OptOutStageConfig | DeduplicationStageConfig) -> PipelineConfig:
    return PipelineConfig(stages=(EXTRACT, *stages), executor=LocalConfig(num_workers=1))


def kept(corpus: Path) -> dict[str, str]:
    files = sorted((corpus / "documents").glob("*.parquet"))
    return {each.url.rpartition("/")[2]: each.opt_out for file in files for each in read_documents(file)}


def test_the_newest_record_of_a_url_decides(tmp_path: Path, write_warc: Write) -> None:
    denied = {"opt_out": "meta robots: noai", "fetched_at": LATER}
    files = [
        write_warc(
            "1.warc.gz", [page(name, f"text of {name}", fetched_at=EARLIER) for name in ("changed", "back", "plain")]
        ),
        write_warc("2.warc.gz", [page("changed", "other text", **denied), page("back", "other text", **denied)]),
        write_warc("3.warc.gz", [page("back", "text as it was at last", fetched_at=LAST)]),
    ]
    manifest = run_pipeline(pipeline(OptOutStageConfig()), files, tmp_path / "corpus")
    assert kept(tmp_path / "corpus") == {"back": "", "plain": ""}
    assert manifest.stages[0].dropped == {"training_opt_out": 2}
    assert manifest.stages[1].dropped == {"training_opt_out": 1}
    assert manifest.num_kept == 3


def test_a_shard_may_lose_all_documents(tmp_path: Path, write_warc: Write) -> None:
    first = write_warc("1.warc.gz", [page("x", "a text", fetched_at=EARLIER)])
    second = write_warc("2.warc.gz", [page("x", "", opt_out="noai", fetched_at=LATER), page("y", "other")])
    manifest = run_pipeline(pipeline(OptOutStageConfig()), [first, second], tmp_path / "corpus")
    assert kept(tmp_path / "corpus") == {"y": ""}
    assert sorted(shard.num_kept for shard in manifest.stages[1].shards) == [0, 1]


def test_a_newest_robots_file_in_the_input_decides_for_its_origin(tmp_path: Path, write_warc: Write) -> None:
    text = {"headers": {"content-type": "text/plain"}}
    old = b"User-agent: Applebot-Extended\nDisallow: /\n"
    new = b"User-agent: Applebot-Extended\nDisallow: /private/\n"
    pages = [
        page("private/1", "a private text"),
        page("public", "a public text"),
        page("robots.txt", "", body=new, fetched_at=LATER, **text),
        page("robots.txt", "", body=old, fetched_at=EARLIER, **text),
        replace(page("", "of another origin"), url="https://b.example/private/2"),
    ]
    warc = write_warc("1.warc.gz", pages)
    run_pipeline(pipeline(OptOutStageConfig()), [warc], tmp_path / "corpus")
    assert kept(tmp_path / "corpus") == {"public": "", "2": ""}
    run_pipeline(pipeline(OptOutStageConfig(opt_outs="keep")), [warc], tmp_path / "marked")
    marked = kept(tmp_path / "marked")
    assert {name for name, reason in marked.items() if reason} == {"1"}
    assert marked["1"].startswith("Applebot-Extended")


def test_a_stage_of_opt_outs_follows_the_extraction() -> None:
    with pytest.raises(ConfigError, match="must follow the extraction"):
        pipeline(DeduplicationStageConfig(deduplication=EqualTextsConfig()), OptOutStageConfig())


@pytest.mark.slow
def test_copied_columns_keep_order_and_rows_of_several_groups(tmp_path: Path, write_warc: Write) -> None:
    count = 2 * ROWS_PER_GROUP + 10
    pages = [page(f"{n:05d}", f"text {n}", fetched_at=EARLIER) for n in range(count)]
    gone = {5, ROWS_PER_GROUP - 1, ROWS_PER_GROUP, count - 1}
    pages += [page(f"{n:05d}", "", opt_out="noai", fetched_at=LATER) for n in gone]
    manifest = run_pipeline(pipeline(OptOutStageConfig()), [write_warc("1.warc.gz", pages)], tmp_path / "corpus")
    assert list(kept(tmp_path / "corpus")) == [f"{n:05d}" for n in range(count) if n not in gone]
    (record,) = manifest.stages[1].shards
    assert record.characters == manifest.stages[0].characters - sum(len(f"TEXT {n}") for n in gone)
    assert record.languages == {"en": count - len(gone)}
