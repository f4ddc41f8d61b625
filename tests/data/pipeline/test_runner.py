from __future__ import annotations

import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import page
from hypothesis import given, settings
from hypothesis import strategies as st
from simple_kinds import MinLengthConfig

from openafm.core.config import ConfigError, UnknownKeyError, dump, override
from openafm.core.executors import LocalConfig, RayConfig
from openafm.core.files import OutOfSpaceError, room_for
from openafm.data.filtering import WordListConfig
from openafm.data.pipeline.config import ExtractionStageConfig, FilterStageConfig, PipelineConfig
from openafm.data.pipeline.inputs import PipelineInputError, split_points
from openafm.data.pipeline.parquet import (
    ParquetSchemaError,
    RowWriter,
    document_row,
    document_schema,
    read_documents,
    read_drops,
)
from openafm.data.pipeline.runner import CorpusFolderError, QuarantineError, run_pipeline
from openafm.data.pipeline.store import CorpusError, config_key, key_of, read_manifest
from openafm.data.web.documents import Page, WebDocument
from openafm.data.web.warc import Capture, capture_bytes

Write = Callable[[str, Iterable[Page]], Path]
HAS_RAY = importlib.util.find_spec("ray") is not None


def texts(corpus: Path) -> list[str]:
    return [d.text for path in sorted((corpus / "documents").iterdir()) for d in read_documents(path)]


def reasons(corpus: Path) -> dict[str, str]:
    """The reason of each dropped URL."""
    return {
        drop.url.rpartition("/")[2]: drop.reason
        for stage in read_manifest(corpus).stages
        for shard in stage.shards
        for drop in read_drops(corpus / shard.drops.path)
    }


def result_bytes(corpus: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in corpus.rglob("*.parquet") if "signatures" not in path.name}


def test_every_page_is_kept_or_dropped_with_a_reason(config: PipelineConfig, tmp_path: Path, write_warc: Write) -> None:
    pages = [
        page("one", "the first text"),
        page("same", "the first text"),
        page("short", "hm"),
        page("empty", ""),
        page("missing", "not found", status=404),
        page("pdf", "text", headers={"content-type": "application/pdf"}),
        page("private", "the private text", opt_out="meta robots: noai"),
        page("two", "der zweite Text"),
    ]
    manifest = run_pipeline(config, [write_warc("a.warc.gz", pages)], tmp_path / "corpus")
    assert texts(tmp_path / "corpus") == ["THE FIRST TEXT", "DER ZWEITE TEXT"]
    assert reasons(tmp_path / "corpus") == {
        "same": "duplicate",
        "short": "too_short",
        "empty": "empty",
        "missing": "status",
        "pdf": "content_type",
        "private": "training_opt_out",
    }
    assert (manifest.num_in, manifest.num_kept) == (8, 2)
    extract, deduplicate = manifest.stages
    assert extract.num_in == extract.num_kept + sum(extract.dropped.values())
    assert (deduplicate.num_in, deduplicate.dropped) == (3, {"duplicate": 1})
    assert extract.languages == {"de": 1, "en": 2}
    samples = json.loads((tmp_path / "corpus" / "counters.json").read_text())["samples"]
    dropped = {s["labels"]["reason"]: s["value"] for s in samples if s["name"] == "openafm_documents_dropped_total"}
    assert dropped == extract.dropped | deduplicate.dropped


def test_documents_come_back_as_they_were_written(config: PipelineConfig, tmp_path: Path, write_warc: Write) -> None:
    config = override(config, {"stages.extract.opt_outs": "keep"})
    run_pipeline(config, [write_warc("a.warc.gz", [page("x", "a text", opt_out="noai")])], tmp_path / "corpus")
    (document,) = read_documents(tmp_path / "corpus" / "documents" / "00000.parquet")
    assert (document.opt_out, document.metadata, document.media[0].alt) == ("noai", {"status": "200"}, "Bild")


@pytest.mark.long
@settings(max_examples=2)
@given(data=st.data())
def test_output_is_identical_for_any_number_of_workers_order_and_file_names(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    config = _config()
    files = [[page(f"{f}-{i}", f"text number {i % 7} of {f % 2}") for i in range(12)] for f in range(2)]
    contents = [b"".join(_pinned(each) for each in pages) for pages in files]
    found = []
    for run in ("one", "two"):
        order = data.draw(st.permutations(range(2)))
        paths = []
        for index in order:
            path = folder / f"{run}-{data.draw(st.integers(0, 10**6))}-{index}.warc.gz"
            path.write_bytes(contents[index])
            paths.append(path)
        changed = replace(config, executor=LocalConfig(num_workers=data.draw(st.integers(1, 3))))
        found.append((run_pipeline(changed, paths, folder / run).digest, result_bytes(folder / run)))
    assert found[0] == found[1]


def _config() -> PipelineConfig:
    return PipelineConfig(stages=(_extract(),), shard_mb=1)


def _extract() -> ExtractionStageConfig:
    from simple_kinds import TagsConfig

    return ExtractionStageConfig(extraction=TagsConfig(), filters=(MinLengthConfig(),))


_PINNED: dict[str, bytes] = {}


def _pinned(made: Page) -> bytes:
    """The records of a page; record identifiers are random, so they are made once."""
    return _PINNED.setdefault(made.url, capture_bytes(Capture(page=made)))


@pytest.mark.long
def test_poison_documents_cost_themselves_only(config: PipelineConfig, tmp_path: Path, write_warc: Write) -> None:
    good = [page(f"good{i}", f"good text {i}") for i in range(4)]
    poison = {
        "hang": "cpu_time",
        "segfault": "crashed",
        "allocate": "memory",
        "recurse": "error",
        "surrogate": "invalid_text",
    }
    bad = [page(name, name.upper()) for name in poison]
    pages = [good[0], bad[0], bad[1], good[1], *bad[2:], *good[2:]]
    manifest = run_pipeline(config, [write_warc("a.warc.gz", pages)], tmp_path / "corpus")
    assert reasons(tmp_path / "corpus") == poison
    assert manifest.num_kept == 4


@pytest.mark.long
def test_a_stage_that_fails_on_most_documents_is_reported(config: PipelineConfig, tmp_path: Path, write_warc: Write) -> None:
    pages = [page(f"bad{i}", "RECURSE") for i in range(30)]
    with pytest.raises(QuarantineError, match=r"failed on 30 of 30 documents \(error 30\)"):
        run_pipeline(config, [write_warc("a.warc.gz", pages)], tmp_path / "corpus")


@pytest.mark.long
def test_large_files_are_divided_into_shards_without_loss(config: PipelineConfig, tmp_path: Path, write_warc: Write) -> None:
    blobs = [os.urandom(60_000).hex() for _ in range(24)]
    path = write_warc("a.warc.gz", [page(f"p{i}", f"text {i} {blob}") for i, blob in enumerate(blobs)])
    assert len(list(split_points(path, 1 << 20))) >= 1
    whole = run_pipeline(replace(config, shard_mb=1000), [path], tmp_path / "whole")
    parts = run_pipeline(replace(config, shard_mb=1), [path], tmp_path / "parts")
    assert len(parts.stages[0].shards) >= 2
    assert texts(tmp_path / "parts") == texts(tmp_path / "whole")
    assert parts.num_in == whole.num_in == 24


@pytest.mark.long
def test_finished_shards_are_not_computed_again(config: PipelineConfig, tmp_path: Path, write_warc: Write) -> None:
    one, two = write_warc("1.warc.gz", [page("1", "text one")]), write_warc("2.warc.gz", [page("2", "text two")])
    corpus = tmp_path / "corpus"
    run_pipeline(config, [one], corpus)
    before = {path: path.stat().st_mtime_ns for path in (corpus / "stages").rglob("*.documents.parquet")}
    run_pipeline(config, [one, two], corpus)
    after = {path: path.stat().st_mtime_ns for path in (corpus / "stages" / "extract").rglob("*.documents.parquet")}
    assert len(after) == 2
    assert sum(before.get(path) == changed for path, changed in after.items()) == 1
    changed = override(config, {"stages.extract.filters.0.min_characters": "100"})
    assert run_pipeline(changed, [one, two], corpus).num_kept == 0  # another config has other keys


@pytest.mark.long
def test_a_killed_run_continues(tmp_path: Path, write_warc: Write, config: PipelineConfig) -> None:
    paths = [write_warc(f"{f}.warc.gz", [page(f"{f}-{i}", f"text {f} {i}") for i in range(100)]) for f in range(4)]
    expected = run_pipeline(config, paths, tmp_path / "expected")
    corpus = tmp_path / "corpus"
    code = (
        "import sys; from pathlib import Path; from openafm.core.config import from_dict; import json\n"
        "from openafm.core.registry import load_plugin; load_plugin('simple_kinds')\n"
        "from openafm.data.pipeline.config import PipelineConfig; from openafm.data.pipeline.runner import run_pipeline\n"
        "config = from_dict(PipelineConfig, json.loads(sys.argv[1]))\n"
        "run_pipeline(config, [Path(p) for p in sys.argv[3:]], Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, dump(config), str(corpus), *map(str, paths)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as run:
        while not list((corpus / "stages" / "extract").glob("*.json")):
            assert run.poll() is None
            time.sleep(0.005)
        run.kill()
    finished = {path: path.stat().st_mtime_ns for path in (corpus / "stages" / "extract").glob("*.json")}
    assert len(finished) < 4
    assert not (corpus / "corpus.json").exists()
    manifest = run_pipeline(config, paths, corpus)
    assert manifest.digest == expected.digest
    assert all(path.stat().st_mtime_ns == changed for path, changed in finished.items() if path.name != "manifest.json")


@pytest.mark.long
def test_a_warc_that_is_cut_keeps_what_is_before(config: PipelineConfig, tmp_path: Path, write_warc: Write) -> None:
    path = write_warc("a.warc.gz", [page(f"p{i}", f"some text {i} {os.urandom(300).hex()}") for i in range(5)])
    path.write_bytes(path.read_bytes()[:-200])
    manifest = run_pipeline(config, [path], tmp_path / "corpus")
    assert manifest.num_kept == 4
    assert manifest.stages[0].dropped == {"warc_cut": 1}


def test_wrong_input_is_refused_before_anything_is_written(
    config: PipelineConfig, tmp_path: Path, write_warc: Write
) -> None:
    corpus = tmp_path / "corpus"
    (tmp_path / "a.txt").write_text("text")
    for wrong, message in ((tmp_path / "none.warc", "does not exist"), (tmp_path / "a.txt", "another kind")):
        with pytest.raises(PipelineInputError, match=message):
            run_pipeline(config, [wrong], corpus)
    with pytest.raises(PipelineInputError, match="no input"):
        run_pipeline(config, [], corpus)
    assert not corpus.exists()
    corpus.mkdir()
    (corpus / "thesis.txt").write_text("text")
    with pytest.raises(CorpusFolderError, match=r"thesis\.txt"):
        run_pipeline(config, [write_warc("a.warc.gz", [page("x", "text")])], corpus)
    with pytest.raises(CorpusError, match="openafm data run"):
        read_manifest(corpus)


@pytest.mark.long
def test_parquet_with_another_schema_is_refused(config: PipelineConfig, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from openafm.data.pipeline.config import FilterStageConfig

    documents = PipelineConfig(stages=(FilterStageConfig(filters=(MinLengthConfig(),)),))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["text"]}), path)
    with pytest.raises(ParquetSchemaError, match="'text' of strings is missing; columns: body"):
        run_pipeline(documents, [path], tmp_path / "corpus")
    pq.write_table(pa.table({"text": ["a long text"], "language": ["en"]}), path)  # of another program
    assert run_pipeline(documents, [path], tmp_path / "corpus").num_kept == 1
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ParquetSchemaError, match="not a whole Parquet file"):
        run_pipeline(documents, [path], tmp_path / "corpus")


@pytest.mark.long
def test_a_full_disk_is_reported_and_leaves_no_half_result(
    config: PipelineConfig, tmp_path: Path, write_warc: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_warc("a.warc.gz", [page("x", "text " + os.urandom(50_000).hex())])
    monkeypatch.setenv("SIMPLE_KINDS_FILE_LIMIT", "10000")
    with pytest.raises(OutOfSpaceError, match="no space left"):
        run_pipeline(config, [path], tmp_path / "corpus")
    assert not list((tmp_path / "corpus").rglob("*.parquet"))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    monkeypatch.delenv("SIMPLE_KINDS_FILE_LIMIT")
    assert run_pipeline(config, [path], tmp_path / "corpus").num_kept == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_parquet_on_a_full_disk_is_an_error_of_space() -> None:
    document = WebDocument(id="1", url="https://a.example/", text=os.urandom(100_000).hex())
    with (
        pytest.raises(OutOfSpaceError),
        room_for(Path("corpus")),
        Path("/dev/full").open("wb", buffering=0) as full,
        RowWriter(full, document_schema()) as writer,
    ):
        writer.write(document_row(document))


def test_changes_of_stages_are_addressed_by_their_names(config: PipelineConfig) -> None:
    assert override(config, {"stages.extract.max_page_mb": "3"}).stages[0].max_page_mb == 3  # type: ignore[attr-defined]
    with pytest.raises(UnknownKeyError, match=r"'stages.exract'; did you mean 'extract'"):
        override(config, {"stages.exract.max_page_mb": "3"})
    with pytest.raises(ConfigError, match="different names"):
        replace(config, stages=(config.stages[0], config.stages[0]))


@pytest.mark.slow
@pytest.mark.skipif(not HAS_RAY, reason="ray is not installed (extra `ray`)")
def test_ray_gives_the_same_corpus(config: PipelineConfig, tmp_path: Path, write_warc: Write) -> None:
    poison = [page("hang", "HANG"), page("segfault", "SEGFAULT")]
    paths = [
        write_warc(f"{f}.warc.gz", [*poison, *(page(f"{f}-{i}", f"text {i % 9}") for i in range(30))]) for f in range(3)
    ]
    local = run_pipeline(config, paths, tmp_path / "local")
    ray = run_pipeline(replace(config, executor=RayConfig(num_workers=2)), paths, tmp_path / "ray")
    assert ray.digest == local.digest
    assert result_bytes(tmp_path / "ray") == result_bytes(tmp_path / "local")


def test_a_changed_file_of_a_filter_changes_its_key(tmp_path: Path) -> None:
    lists = tmp_path / "lists.toml"
    stage = FilterStageConfig(filters=(WordListConfig(files=(str(lists),)),))
    keys = []
    for term in ("one", "two", "two"):
        lists.write_text(f'[toxicity]\nen = ["{term}"]\n')
        keys.append(key_of(config_key(stage)))
    assert keys[0] != keys[1] == keys[2]
    lists.unlink()
    assert key_of(config_key(stage)) not in keys  # the filter reports the missing file
