"""Corpora in object storage: the same batches as from a folder, a bounded cache, damage named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.data.shards.manifest import ManifestError, ShardDigestError, ShardError, TruncatedShardError
from openafm.data.shards.stored_files import CacheSizeError, ObjectStorageError
from openafm.data.shards.token_shards import open_shards, read_manifest
from openafm.data.shards.writer import write_shards

ADDRESS = "memory://bucket/corpus"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENAFM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shards"


@pytest.fixture
def corpus(tmp_path: Path, cache: Path) -> Iterator[Path]:
    """A corpus in a folder and at `ADDRESS`."""
    with write_shards(tmp_path / "corpus", tokenizer_digest="d", vocab_size=1000, tokens_per_shard=200) as writer:
        for n in range(40):
            writer.add(range(n, n + 50), loss_mask=[t % 3 > 0 for t in range(50)])
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "corpus"), "/bucket/corpus", recursive=True)
    yield tmp_path / "corpus"
    memory.rm("/bucket", recursive=True)


def batches(location: str) -> list[np.ndarray]:
    loader = LoaderConfig(sources=(SourceConfig(name="a", path=location),), rows_per_step=4, row_tokens=64)
    return [loader.build(verification="first_use").batch(step).tokens_BS for step in range(5)]


def test_batches_equal_those_of_a_folder(corpus: Path, cache: Path) -> None:
    expected = np.stack(batches(str(corpus)))
    for address in (ADDRESS, f"file://{corpus}", f"{ADDRESS}/"):
        assert np.array_equal(np.stack(batches(address)), expected)
    cached = list(cache.iterdir())
    assert cached
    assert all(len(file.stem) == 64 for file in cached)


def test_a_link_to_an_address_stands_for_it(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(ADDRESS)
    assert read_manifest(tmp_path / "link").digest == read_manifest(corpus).digest
    assert open_shards(tmp_path / "link").tokens(0, 0, 3).tolist() == [0, 1, 2]


def test_the_cache_keeps_what_was_read_last(corpus: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = open_shards(ADDRESS, verification="first_use")
    records = shards.manifest.shards
    monkeypatch.setenv("OPENAFM_CACHE_GB", str(3.5 * records[0].tokens.num_bytes / 1e9))
    files = open_shards(ADDRESS, verification="first_use").files
    for number in range(3):
        files.array(records[number].tokens)
        os.utime(cache / f"{records[number].tokens.sha256}.npy", (number, number))
    files.array(records[0].tokens)
    files.array(records[3].tokens)
    kept = {file.stem for file in cache.iterdir()}
    assert kept == {records[number].tokens.sha256 for number in (0, 2, 3)}


def test_a_removed_file_is_fetched_again_and_stays_readable(corpus: Path, cache: Path) -> None:
    record = read_manifest(corpus).shards[0].tokens
    files = open_shards(ADDRESS, verification="first_use").files
    mapped = files.array(record)
    (cache / f"{record.sha256}.npy").unlink()
    assert files.array(record).tolist() == mapped.tolist()


def test_damage_in_the_storage_is_named(corpus: Path) -> None:
    memory = fsspec.filesystem("memory")
    name = "/bucket/corpus/00003.tokens.npy"
    content = memory.cat(name)
    memory.pipe(name, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ShardDigestError, match=r"00003\.tokens\.npy was changed"):
        open_shards(ADDRESS)
    with pytest.raises(ShardDigestError, match=r"00003\.tokens\.npy was changed"):
        open_shards(ADDRESS, verification="first_use").tokens(3, 0, 1)
    memory.pipe(name, content[:-1])
    with pytest.raises(TruncatedShardError, match=r"00003\.tokens\.npy has"):
        open_shards(ADDRESS, verification="sizes")
    memory.rm(name)
    with pytest.raises(TruncatedShardError, match=r"00003\.tokens\.npy is missing"):
        open_shards(ADDRESS, verification="sizes")


def test_addresses_that_cannot_be_read_are_typed_errors(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ManifestError, match="no token shards are at this address"):
        open_shards("memory://nowhere/corpus")
    with pytest.raises(ObjectStorageError, match="install openafm"):
        open_shards("unknown-storage://bucket/corpus")
    with pytest.raises(ShardError, match="copy the corpus to a disk"):
        _ = open_shards(ADDRESS).path
    monkeypatch.setenv("OPENAFM_CACHE_GB", "0.0000001")
    with pytest.raises(CacheSizeError, match="raise OPENAFM_CACHE_GB"):
        open_shards(ADDRESS, verification="first_use").tokens(0, 0, 1)
    monkeypatch.setenv("OPENAFM_CACHE_GB", "much")
    with pytest.raises(CacheSizeError, match="'much'"):
        open_shards(ADDRESS)
