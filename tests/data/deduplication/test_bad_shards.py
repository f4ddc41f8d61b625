from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from shard_runs import document, write_signatures

from openafm.core.files import OutOfSpaceError
from openafm.data.deduplication import DecontaminationConfig, ExactConfig, MinHashConfig, ParagraphsConfig
from openafm.data.deduplication.base import DeduplicationConfig, SignaturesError
from openafm.data.deduplication.sorting import ExternalSort

CONFIGS = [
    ExactConfig(),
    MinHashConfig(),
    ParagraphsConfig(),
    DecontaminationConfig(evaluation=(str(Path(__file__).with_name("evaluation.txt")),)),
]
EACH = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
SHARDS = [[document("a", "text"), document("b", "text")], [document("c", "other")]]


@EACH
def test_a_missing_or_damaged_shard_is_reported_and_nothing_is_written(config: DeduplicationConfig, tmp_path: Path) -> None:
    method = config.build()
    paths = write_signatures(method, SHARDS, tmp_path)
    whole = paths[1].read_bytes()
    for content in (None, whole[: len(whole) // 2], b""):
        paths[1].unlink()
        if content is not None:
            paths[1].write_bytes(content)
        with pytest.raises(SignaturesError, match=r"1\.parquet"):
            method.decide(paths, tmp_path / "decisions.parquet")
        paths[1].write_bytes(whole)
    with pytest.raises(SignaturesError, match="does not exist"):
        method.read_decisions(tmp_path / "decisions.parquet", 0)
    with pytest.raises(SignaturesError, match="no column"):
        method.read_decisions(paths[0], 0)
    assert sorted(tmp_path.iterdir()) == paths


def test_signatures_of_another_method_are_refused(tmp_path: Path) -> None:
    paths = write_signatures(ExactConfig(by=("text",)).build(), SHARDS, tmp_path)
    with pytest.raises(SignaturesError, match="no column 'url_high'"):
        ExactConfig(by=("url",)).build().decide(paths, tmp_path / "decisions.parquet")


@pytest.mark.parametrize("place", ["sort", "write"])
@EACH
def test_a_full_disk_is_an_error_and_leaves_nothing(
    config: DeduplicationConfig, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    method = config.build()
    paths = write_signatures(method, SHARDS, tmp_path)
    if place == "write" or isinstance(config, DecontaminationConfig):  # which does not sort
        monkeypatch.setattr(pq, "ParquetWriter", full)
    else:
        monkeypatch.setattr(ExternalSort, "merged", full)
    with pytest.raises(OutOfSpaceError):
        method.decide(paths, tmp_path / "decisions.parquet")
    assert sorted(tmp_path.iterdir()) == paths
