"""Digests of shards: compared before a file is first read, once per machine while the file does not change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from openafm.core import verified_files
from openafm.data.shards import files as shard_files
from openafm.data.shards.manifest import ShardDigestError
from openafm.data.shards.token_shards import open_shards
from openafm.data.shards.writer import write_shards


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENAFM_CACHE", str(tmp_path / "cache"))
    with write_shards(tmp_path / "corpus", tokenizer_digest="d", vocab_size=100, tokens_per_shard=10) as writer:
        for _ in range(4):
            writer.add([1] * 10)
    return tmp_path / "corpus"


def change(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_a_changed_shard_is_refused_when_it_is_first_read(corpus: Path) -> None:
    change(corpus / "00002.tokens.npy")
    shards = open_shards(corpus, verification="first_use")
    assert np.array_equal(shards.tokens(1, 0, 10), np.ones(10))
    with pytest.raises(ShardDigestError, match=r"00002\.tokens\.npy was changed"):
        shards.tokens(2, 0, 10)


def test_another_process_does_not_read_a_verified_file_again(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    whole_digest = shard_files.file_digest

    def counted(path: Path) -> str:
        read.append(path.name)
        return whole_digest(path)

    monkeypatch.setattr(shard_files, "file_digest", counted)
    monkeypatch.setattr(verified_files, "RECENT_SECONDS", 0.0)
    for _ in range(2):  # each has the memory of a process of its own
        open_shards(corpus, verification="first_use").tokens(0, 0, 10)
    assert read == ["00000.tokens.npy"]
    change(corpus / "00000.tokens.npy")
    with pytest.raises(ShardDigestError):
        open_shards(corpus, verification="first_use").tokens(0, 0, 10)
    assert read == ["00000.tokens.npy"] * 2


def test_a_file_that_changed_just_now_gets_no_marker(corpus: Path) -> None:
    open_shards(corpus, verification="first_use").tokens(0, 0, 10)
    assert not (corpus.parent / "cache" / "verified").exists()


def test_a_cache_folder_that_cannot_be_written_is_not_used(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (corpus.parent / "file").write_text("")
    monkeypatch.setenv("OPENAFM_CACHE", str(corpus.parent / "file"))
    monkeypatch.setattr(verified_files, "RECENT_SECONDS", 0.0)
    assert open_shards(corpus, verification="first_use").tokens(0, 0, 1).tolist() == [1]
