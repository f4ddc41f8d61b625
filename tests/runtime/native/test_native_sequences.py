"""Logits of native sequences are bit-identical to those of a fresh sequence after any history."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_bundles import CONTEXT_LENGTH, compressed_bundle, write_compressed
from tiny_engines import random_tokens
from tiny_tokenizer import TOKENIZER

from openafm.models.sizes import shared_kv_decoder
from openafm.runtime.engines.base import Engine, Sequence
from openafm.runtime.engines.snapshot import SnapshotMismatchError, read_snapshot, write_snapshot
from openafm.runtime.native.engine import NativeEngine
from openafm.runtime.native.library import kernel_names, native_library

OPERATIONS = ("step", "step", "step", "rollback", "fork", "restore", "close")


@cache
def engine(num_threads: int = 1) -> Engine:
    return NativeEngine(compressed_bundle(), num_threads=num_threads)


def fresh(tokens: list[int]) -> np.ndarray:
    """Return logits after every token, [N, V]."""
    return engine().step([(engine().new_sequence(), tokens)], "all")[0]


@given(data=st.data(), num_threads=st.sampled_from([1, 2, 3]))
@settings(max_examples=40)
def test_any_history_equals_a_fresh_sequence(data: st.DataObject, num_threads: int) -> None:
    runner = engine(num_threads)
    held: list[tuple[Sequence, list[int]]] = [(runner.new_sequence(), [])]
    tokens = st.integers(0, runner.vocab_size - 1)
    for _ in range(data.draw(st.integers(1, 12))):
        operation = data.draw(st.sampled_from(OPERATIONS))
        index = data.draw(st.integers(0, len(held) - 1))
        sequence, past = held[index]
        if operation == "step":
            batch, news = [], []
            for other in sorted({index, data.draw(st.integers(0, len(held) - 1))}):
                room = CONTEXT_LENGTH - len(held[other][1])
                if room:
                    new = data.draw(
                        st.lists(tokens, min_size=1, max_size=min(room, data.draw(st.sampled_from([1, 3, 40, 96]))))
                    )
                    batch.append((held[other][0], new))
                    news.append((other, new))
            wanted = data.draw(st.sampled_from(["last", "all"]))
            for (other, new), output in zip(news, runner.step(batch, wanted), strict=True):
                held[other] = (held[other][0], held[other][1] + new)
                expected = fresh(held[other][1])
                assert np.array_equal(output, expected[-1] if wanted == "last" else expected[-len(new) :])
        elif operation == "rollback":
            count = data.draw(st.integers(0, len(past)))
            runner.rollback(sequence, count)
            held[index] = (sequence, past[: len(past) - count])
        elif operation == "fork":
            held.append((runner.fork(sequence), list(past)))
        elif operation == "restore":
            data_of = runner.snapshot(sequence)
            restored = runner.restore(data_of)
            assert runner.snapshot(restored) == data_of
            held.append((restored, list(past)))
        elif len(held) > 1:
            runner.close(sequence)
            del held[index]
    for sequence, past in held:
        assert list(sequence.tokens) == past
        if len(past) < CONTEXT_LENGTH:
            assert np.array_equal(runner.step([(sequence, [5])])[0], fresh([*past, 5])[-1])


LONG = shared_kv_decoder(
    vocab_size=TOKENIZER.vocab_size,
    dim=64,
    num_own_layers=1,
    num_shared_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=64,
    hidden_dim=96,
    context_length=1050,
)


def test_a_long_sequence_may_be_split_anywhere(tmp_path: Path) -> None:
    """Also at the length where attention changes to fewer digits."""
    bundle = write_compressed(tmp_path / "long", config=LONG)
    tokens = random_tokens(LONG.context_length)
    for kernels in kernel_names(native_library()):
        runner = NativeEngine(bundle, num_threads=1, kernels=kernels)
        whole_NV = runner.step([(runner.new_sequence(), tokens)], "all")[0]
        sequence, chunks = runner.new_sequence(), []
        for count in (1020, 1, 2, 3, 1, 1, 5, 17):
            start = sequence.length
            chunks.append(runner.step([(sequence, tokens[start : start + count])], "all")[0])
        assert sequence.length == len(tokens)
        assert np.array_equal(np.concatenate(chunks), whole_NV)


@given(data=st.data())
@settings(max_examples=100)
def test_forged_snapshots_raise_or_are_harmless(data: st.DataObject) -> None:
    """With a valid digest: the header is checked before C code reads the data."""
    runner = engine()
    sequence = runner.new_sequence()
    runner.step([(sequence, [1, 2, 3])])
    good = read_snapshot(runner.snapshot(sequence))
    length = data.draw(st.sampled_from([0, 1, 2, 3, 4, 64, 96, 97, 1 << 40]))
    size = data.draw(st.sampled_from([0, 1, good.arrays["pages"].size - 1, good.arrays["pages"].size, 100_000]))
    kind = data.draw(st.sampled_from([np.uint8, np.int8, np.float32]))
    pages = np.frombuffer(data.draw(st.binary(min_size=16, max_size=16)) * (size // 4 + 1), kind)[:size]
    ids = data.draw(st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 5), max_size=5))
    count = data.draw(st.sampled_from([len(ids), length if length < 1000 else 0]))
    tokens = np.resize(np.array(ids or [1], np.int32), count)
    forged = dataclasses.replace(good, length=length, arrays={"pages": pages, "tokens": tokens})
    try:
        restored = runner.restore(write_snapshot(forged))
    except SnapshotMismatchError:
        return
    assert restored.length == length
    if length < CONTEXT_LENGTH:
        assert len(runner.step([(restored, [1])])[0]) == runner.vocab_size


def test_pages_with_arbitrary_bytes_are_harmless() -> None:
    """Such as infinite scales or NaN, which no engine writes."""
    runner = engine()
    sequence = runner.new_sequence()
    runner.step([(sequence, list(range(70)))])
    good = read_snapshot(runner.snapshot(sequence))
    for byte in (0x00, 0x7C, 0x7E, 0xFF):
        pages = np.full_like(good.arrays["pages"], byte)
        forged = write_snapshot(dataclasses.replace(good, arrays={**good.arrays, "pages": pages}))
        runner.step([(runner.restore(forged), [1, 2])], "all")


@pytest.mark.parametrize("kernels", ["portable", "avx2", "avx512-vnni"])
def test_snapshots_continue_with_any_kernel_set(kernels: str) -> None:
    """A snapshot of one kernel set is restored by another."""
    if kernels not in kernel_names(native_library()):
        pytest.skip(f"this processor does not run {kernels}")
    other = NativeEngine(compressed_bundle(), num_threads=1, kernels=kernels)
    sequence = other.new_sequence()
    other.step([(sequence, list(range(70)))])
    restored = engine().restore(other.snapshot(sequence))
    found, expected = engine().step([(restored, [1])])[0], fresh([*range(70), 1])[-1]
    assert np.abs(found - expected).mean() < 0.02 * np.abs(expected).mean()
