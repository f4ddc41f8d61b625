"""Forks at any length, and sequences in files: no recomputation, no second copy, no partial files."""

from __future__ import annotations

import gc
import stat
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from native_bundles import CONFIG, compressed_bundle, write_compressed, write_random_adapter
from tiny_engines import CONTEXT_LENGTH, ONE_OF_EACH, TINY, Tiny, assert_close, random_tokens

from openafm.runtime.engines import base as engine_module
from openafm.runtime.engines.base import Engine, RollbackError, Sequence, SequenceError
from openafm.runtime.engines.snapshot import SnapshotCorruptedError, SnapshotMismatchError
from openafm.runtime.native import engine as native_module
from openafm.runtime.native.engine import NativeEngine


@pytest.fixture(params=ONE_OF_EACH)
def one(request: pytest.FixtureRequest) -> Tiny:
    return TINY[request.param]


def filled(engine: Engine, tokens: list[int]) -> Sequence:
    sequence = engine.new_sequence()
    engine.step([(sequence, tokens)])
    return sequence


@pytest.mark.parametrize("name", TINY)
def test_a_fork_at_any_length_equals_a_fresh_sequence(name: str) -> None:
    tiny = TINY[name]
    engine, tokens = tiny.open(), random_tokens(CONTEXT_LENGTH - 2)
    sequence = filled(engine, tokens)
    for length in (0, 1, 17, 63, 64, 65, len(tokens)):
        fork = engine.fork(sequence, length)
        assert list(fork.tokens) == tokens[:length]
        assert fork.num_computed in ((0, length) if "torch" in name else (length,))
        (logits_NV,) = engine.step([(fork, [7, 8])], "all")
        assert_close(logits_NV, tiny.full_logits([*tokens[:length], 7, 8])[-2:])
        assert fork.num_computed == fork.length == length + 2
    (logits_V,) = engine.step([(sequence, [3])])
    assert_close(logits_V, tiny.full_logits([*tokens, 3])[-1])


def test_forks_beyond_the_sequence_raise(one: Tiny) -> None:
    engine = one.open()
    sequence = filled(engine, [1, 2, 3])
    for length in (-1, 4):
        with pytest.raises(RollbackError, match=f"{length} tokens of a sequence of 3"):
            engine.fork(sequence, length)
    engine.close(sequence)
    for call in (engine.fork, engine.memory):
        with pytest.raises(SequenceError):
            call(sequence)
    assert sequence.num_computed == 0


def test_forks_report_shared_memory() -> None:
    engine = TINY["native"].open()
    sequence = filled(engine, random_tokens(80))
    fork = engine.fork(sequence, 70)
    assert engine.memory(fork) == engine.memory(sequence)
    assert len(engine.memory(engine.fork(sequence, 64))) == 1
    engine.step([(fork, [1])])
    assert len(engine.memory(fork) | engine.memory(sequence)) == 3
    assert len(set((engine.memory(fork) | engine.memory(sequence)).values())) == 1


def test_copies_share_no_memory() -> None:
    engine = TINY["torch, shared"].open()
    sequence = filled(engine, random_tokens(64))
    assert not engine.memory(engine.fork(sequence)).keys() & engine.memory(sequence).keys()
    size = 64 * 2 * 2 * 8 * 4  # positions, keys and values, heads, head dim, fp32
    assert sorted(engine.memory(engine.fork(sequence)).values()) == [size // 2] * 4


def test_a_saved_sequence_continues_in_another_engine(one: Tiny, tmp_path: Path) -> None:
    engine, tokens = one.open(), random_tokens(80)
    sequence = filled(engine, tokens)
    engine.save(sequence, tmp_path / "deep" / "sequence")
    assert (tmp_path / "deep" / "sequence").read_bytes() == engine.snapshot(sequence)
    other = one.open()
    loaded = other.load(tmp_path / "deep" / "sequence")
    assert list(loaded.tokens) == tokens
    assert loaded.num_computed == len(tokens)
    (logits_V,) = other.step([(loaded, [4])])
    np.testing.assert_array_equal(logits_V, engine.step([(sequence, [4])])[0])


def test_damaged_files_raise(one: Tiny, tmp_path: Path) -> None:
    engine, path = one.open(), tmp_path / "sequence"
    with pytest.raises(FileNotFoundError):
        engine.load(path)
    engine.save(filled(engine, random_tokens(10)), path)
    data = path.read_bytes()
    for content in (b"", data[:-1], data[: len(data) // 2], data + b"\x00", data[:-9] + bytes([data[-9] ^ 4]) + data[-8:]):
        path.write_bytes(content)
        with pytest.raises(SnapshotCorruptedError):
            engine.load(path)
    path.write_bytes(data.replace(b"SEQUENCE-2", b"SEQUENCE-9"))
    with pytest.raises(SnapshotMismatchError, match="another version"):
        engine.load(path)


def test_a_file_is_private_and_of_one_user(one: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, path = one.open(), tmp_path / "sequence"
    path.write_bytes(b"")
    engine.save(filled(engine, [1, 2, 3]), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "another_user"))
    with pytest.raises(SnapshotCorruptedError, match="of another user"):
        engine.load(path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "file"))  # no key can be stored
    assert engine.restore(engine.snapshot(filled(engine, [1, 2, 3]))).length == 3


def test_files_of_another_adapter_or_page_layout_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, path = compressed_bundle(), tmp_path / "sequence"
    engine = NativeEngine(bundle, num_threads=1)
    engine.save(filled(engine, [1, 2, 3]), path)
    adapted = NativeEngine(bundle, write_random_adapter(tmp_path / "adapter", bundle, 1), num_threads=1)
    with pytest.raises(SnapshotMismatchError, match="prefill the tokens again"):
        adapted.load(path)
    monkeypatch.setattr(native_module, "VERSION", native_module.VERSION + 1)
    with pytest.raises(SnapshotMismatchError, match="prefill the tokens again"):
        NativeEngine(bundle, num_threads=1).load(path)
    assert engine.load(path).length == 3


def test_an_interrupted_save_leaves_the_old_file(one: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, path = one.open(), tmp_path / "sequence"
    engine.save(filled(engine, [1, 2, 3]), path)
    before = path.read_bytes()

    def failing(snapshot: object) -> object:
        yield b"OPENAFM-"
        raise OSError("the disk is gone")

    monkeypatch.setattr(engine_module, "snapshot_parts", failing)
    with pytest.raises(OSError, match="gone"):
        engine.save(filled(engine, [4, 5]), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_saving_needs_memory_for_one_copy(tmp_path: Path) -> None:
    bundle = write_compressed(tmp_path / "long", config=replace(CONFIG, context_length=4096))
    engine = NativeEngine(bundle, num_threads=1)
    path = tmp_path / "sequence"
    sequence = filled(engine, random_tokens(4096))

    def peak(work: str) -> float:
        """Return the peak of Python's memory during a block, as a share of the file, without the runtime's pages."""
        gc.collect()
        tracemalloc.start()
        loaded = engine.save(sequence, path) if work == "save" else engine.load(path)
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        del loaded
        return held / path.stat().st_size

    assert peak("save") < 1.3
    assert peak("load") < 1.3
    assert path.stat().st_size < 1.1 * sum(engine.memory(sequence).values())
