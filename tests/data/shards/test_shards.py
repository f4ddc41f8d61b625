"""Token shards: round trip, refusals that name the file, and writers that die."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openafm.core.files import ForeignFilesError, OutOfSpaceError
from openafm.data.shards import writer as shard_writer
from openafm.data.shards.files import map_array
from openafm.data.shards.manifest import (
    EmptyCorpusError,
    ForeignTokenizerError,
    ManifestError,
    ShardDigestError,
    TruncatedShardError,
)
from openafm.data.shards.token_shards import Shards, open_shards, read_manifest
from openafm.data.shards.writer import DocumentError, OutputFolderError, write_shards

SMALL: dict[str, Any] = {"tokenizer_digest": "a" * 64, "vocab_size": 1000}


def write_small(path: Path, num_documents: int = 20, **changes: Any) -> None:
    with write_shards(path, tokens_per_shard=50, **SMALL | changes) as writer:
        for n in range(num_documents):
            writer.add(range(n, 2 * n + 1), language="en", source="numbers", loss_mask=[t % 3 > 0 for t in range(n + 1)])


def all_documents(shards: Shards) -> list[tuple[list[int], list[bool], str, str]]:
    documents = [
        shards.document(shard, index)
        for shard, record in enumerate(shards.manifest.shards)
        for index in range(record.num_documents)
    ]
    return [(d.tokens.tolist(), d.loss_mask.tolist(), d.language, d.source) for d in documents]


documents = st.lists(
    st.integers(1, 40).flatmap(
        lambda n: st.tuples(
            st.lists(st.integers(0, 99_999), min_size=n, max_size=n),
            st.none() | st.lists(st.booleans(), min_size=n, max_size=n),
            st.sampled_from(["", "en", "de", "日本"]),
            st.sampled_from(["web", "books"]),
        )
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=40, deadline=None)
@given(documents=documents, vocab_size=st.sampled_from([1 << 16, 100_000]), tokens_per_shard=st.integers(1, 200))
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, documents: list[Any], vocab_size: int, tokens_per_shard: int
) -> None:
    path = tmp_path_factory.mktemp("shards") / "corpus"
    written = []
    with write_shards(path, tokenizer_digest="d" * 64, vocab_size=vocab_size, tokens_per_shard=tokens_per_shard) as writer:
        for tokens, loss_mask, language, source in documents:
            ids = [token % vocab_size for token in tokens]
            writer.add(ids, language=language, source=source, loss_mask=loss_mask)
            written.append((ids, loss_mask or [True] * len(ids), language, source))
    shards = open_shards(path, tokenizer_digest="d" * 64)
    assert all_documents(shards) == written
    assert shards.manifest.num_tokens == sum(len(tokens) for tokens, *_ in written)
    for record in shards.manifest.shards:
        assert record.num_tokens <= tokens_per_shard or record.num_documents == 1
        assert sum(record.languages.values()) == sum(record.sources.values()) == record.num_documents
    assert shards.tokens(0, 0, 1).dtype == (np.uint16 if vocab_size == 1 << 16 else np.uint32)


def test_same_documents_give_the_same_bytes_and_other_ones_another_digest(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_small(tmp_path / name)
    assert read_manifest(tmp_path / "one").digest == read_manifest(tmp_path / "two").digest
    write_small(tmp_path / "three", num_documents=21)
    assert read_manifest(tmp_path / "three").digest != read_manifest(tmp_path / "one").digest


def test_plain_numpy_reads_the_files(tmp_path: Path) -> None:
    write_small(tmp_path / "corpus")
    tokens = np.load(tmp_path / "corpus" / "00000.tokens.npy")
    offsets = np.load(tmp_path / "corpus" / "00000.offsets.npy")
    assert tokens[offsets[3] : offsets[4]].tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize("kind", ["tokens", "offsets", "tags", "loss_mask"])
@pytest.mark.parametrize("damage", ["truncated", "missing", "tampered"])
def test_damaged_file_is_named(tmp_path: Path, kind: str, damage: str) -> None:
    write_small(tmp_path / "corpus")
    file = tmp_path / "corpus" / f"00001.{kind}.npy"
    data = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(data[:-1] if damage == "truncated" else data[:-1] + bytes([data[-1] ^ 1]))
    # sizes are checked in any case
    with pytest.raises(ShardDigestError if damage == "tampered" else TruncatedShardError, match=str(file)):
        open_shards(tmp_path / "corpus", verification="all" if damage == "tampered" else "sizes")


def test_foreign_tokenizer_is_refused(tmp_path: Path) -> None:
    write_small(tmp_path / "corpus")
    with pytest.raises(ForeignTokenizerError, match="aaaaaaaaaaaa, in use is bbbbbbbbbbbb"):
        open_shards(tmp_path / "corpus", tokenizer_digest="b" * 64)


def change_manifest(path: Path, **changes: Any) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | changes))


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"version": 2}, "another release"), ({"format": "zip"}, "format"), ({"vocab_size": "x"}, "expected int")],
)
def test_foreign_manifest_is_refused(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    write_small(tmp_path / "corpus")
    change_manifest(tmp_path / "corpus", **changes)
    with pytest.raises(ManifestError, match=text):
        open_shards(tmp_path / "corpus")


def test_manifest_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    write_small(tmp_path / "corpus")
    manifest = (tmp_path / "corpus" / "manifest.json").read_text()
    (tmp_path / "corpus" / "manifest.json").write_text(manifest.replace("00000.tokens.npy", "../00000.tokens.npy"))
    with pytest.raises(ManifestError, match="leaves the folder"):
        open_shards(tmp_path / "corpus")


def test_folder_without_manifest_and_empty_corpus_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="is not a folder of token shards"):
        open_shards(tmp_path)
    write_small(tmp_path / "corpus")
    change_manifest(tmp_path / "corpus", shards=[])
    with pytest.raises(EmptyCorpusError):
        open_shards(tmp_path / "corpus")
    with pytest.raises(EmptyCorpusError):
        write_small(tmp_path / "none", num_documents=0)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


@pytest.mark.parametrize(
    ("tokens", "loss_mask", "text"),
    [([], None, "at least one"), ([1000], None, "vocabulary"), ([-1], None, "vocabulary"), ([1, 2], [True], "loss mask")],
)
def test_impossible_documents_are_refused(tmp_path: Path, tokens: list[int], loss_mask: Any, text: str) -> None:
    with pytest.raises(DocumentError, match=text), write_shards(tmp_path / "corpus", **SMALL) as writer:
        writer.add(tokens, loss_mask=loss_mask)
    assert list(tmp_path.iterdir()) == []


def test_writer_replaces_a_corpus_but_nothing_else(tmp_path: Path) -> None:
    write_small(tmp_path / "corpus", num_documents=3)
    write_small(tmp_path / "corpus", num_documents=5)
    assert read_manifest(tmp_path / "corpus").num_documents == 5
    thesis = tmp_path / "documents" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    for path in (thesis.parent, thesis):
        with pytest.raises(OutputFolderError, match="not a corpus"):
            write_small(path)
    assert thesis.read_text() == "years of work"
    notes = tmp_path / "corpus" / "notes.npy"
    notes.write_text("mine")
    with pytest.raises(ForeignFilesError, match=r"notes\.npy"):
        write_small(tmp_path / "corpus")
    assert notes.read_text() == "mine"


def test_killed_writer_leaves_the_old_corpus_whole(tmp_path: Path) -> None:
    write_small(tmp_path / "corpus", num_documents=3)
    program = f"""
from pathlib import Path
from openafm.data.shards.writer import write_shards
with write_shards(Path({str(tmp_path / "corpus")!r}), tokenizer_digest="b", vocab_size=9, tokens_per_shard=100) as writer:
    for n in range(10_000_000):
        writer.add([1] * 30)
        if n == 30:
            print("half-way", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half-way\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert open_shards(tmp_path / "corpus").manifest.num_documents == 3
    half_written = [path for path in tmp_path.iterdir() if path.name != "corpus"]
    assert half_written, "the writer had written shards when it died"
    assert all(path.name.startswith(".") for path in half_written)
    write_small(tmp_path / "corpus", num_documents=4)
    assert open_shards(tmp_path / "corpus").manifest.num_documents == 4


def test_memory_is_bounded_by_a_shard(tmp_path: Path) -> None:
    def peak_bytes(num_documents: int) -> int:
        tracemalloc.start()
        with write_shards(tmp_path / "corpus", tokenizer_digest="b", vocab_size=9, tokens_per_shard=20_000) as writer:
            for _ in range(num_documents):
                writer.add(document)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    document = np.ones(500, dtype=np.int64)
    peak_bytes(40)  # imports and caches
    assert peak_bytes(1600) < 1.5 * peak_bytes(160)


def test_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    """A file-size limit of the system makes a write fail in the middle of a shard."""
    program = f"""
import resource, signal
from pathlib import Path
from openafm.data.shards.writer import write_shards
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
with write_shards(Path({str(tmp_path / "corpus")!r}), tokenizer_digest="b", vocab_size=9) as writer:
    writer.add([1] * 20_000)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "OSError" in result.stderr
    assert os.strerror(errno.EFBIG) in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_full_disk_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Path("/dev/full")  # every write to it fails with ENOSPC
    if not device.exists():
        pytest.skip("this system has no /dev/full")
    save = shard_writer.ShardWriter._save

    def save_on_full_disk(self: shard_writer.ShardWriter, name: str, array: Any) -> Any:
        (self._folder / name).symlink_to(device)
        return save(self, name, array)

    write_small(tmp_path / "corpus", num_documents=3)
    monkeypatch.setattr(shard_writer.ShardWriter, "_save", save_on_full_disk)
    with pytest.raises(OutOfSpaceError, match="no space left"):
        write_small(tmp_path / "corpus")
    assert open_shards(tmp_path / "corpus").manifest.num_documents == 3
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_an_array_of_another_type_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(3, dtype=np.float32))
    assert map_array(tmp_path / "a.npy", np.dtype(np.float32)).tolist() == [1, 1, 1]
    for dtype, name in ((np.dtype(np.float64), "float64"), (None, "integers")):
        with pytest.raises(TruncatedShardError, match=f"not an array of {name}"):
            map_array(tmp_path / "a.npy", dtype)


def test_image_slots_reach_from_the_first_to_the_last_token_of_a_document() -> None:
    slots_I = np.array([(0, 3), (3, 5)], dtype=[("start", np.int64), ("num_tokens", np.int64)])
    shard_writer._check_slots(slots_I, 8)
    for start, num_tokens, total in ((-1, 3, 8), (1, 3, 8), (0, 0, 8), (0, 3, 7)):
        slots_I[0] = (start, num_tokens)
        with pytest.raises(DocumentError, match="image slots must be disjoint"):
            shard_writer._check_slots(slots_I, total)
