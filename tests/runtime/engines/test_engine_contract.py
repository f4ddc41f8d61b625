"""The contract of all engines."""

from __future__ import annotations

import dataclasses
import gc
import struct
import sys
import threading
import weakref

import numpy as np
import pytest
from tiny_engines import CONTEXT_LENGTH, ONE_OF_EACH, TINY, Tiny, assert_close, random_tokens

from openafm.core.user_key import tag
from openafm.runtime.engines import snapshot
from openafm.runtime.engines.base import ContextWindowError, Engine, RollbackError, SequenceError, TokenError
from openafm.runtime.engines.snapshot import SnapshotCorruptedError, SnapshotMismatchError, read_snapshot, write_snapshot


@pytest.fixture(params=TINY)
def tiny(request: pytest.FixtureRequest) -> Tiny:
    return TINY[request.param]


@pytest.fixture(params=ONE_OF_EACH)
def one(request: pytest.FixtureRequest) -> Tiny:
    return TINY[request.param]


@pytest.fixture
def engine(one: Tiny) -> Engine:
    return one.open()


def test_decoding_token_by_token_equals_one_full_pass(tiny: Tiny) -> None:
    engine = tiny.open()
    tokens = random_tokens(CONTEXT_LENGTH)
    sequence = engine.new_sequence()
    logits = np.concatenate([engine.step([(sequence, [token])], "all")[0] for token in tokens])
    assert_close(logits, tiny.full_logits(tokens))
    assert sequence.length == CONTEXT_LENGTH


@pytest.mark.parametrize("cuts", [(40,), (7, 33), (1, 20, 1, 1, 17), (39, 1)])
def test_any_split_into_steps_equals_one_full_pass(tiny: Tiny, cuts: tuple[int, ...]) -> None:
    engine = tiny.open()
    tokens = random_tokens(40, seed=1)
    full = tiny.full_logits(tokens)
    with_all, with_last = engine.new_sequence(), engine.new_sequence()
    start = 0
    for count in cuts:
        chunk = tokens[start : start + count]
        start += count
        (logits_NV,) = engine.step([(with_all, chunk)], "all")
        assert_close(logits_NV, full[start - count : start])
        (logits_V,) = engine.step([(with_last, chunk)], "last")
        assert_close(logits_V, full[start - 1])


def test_a_ragged_batch_equals_its_sequences_alone(tiny: Tiny) -> None:
    engine = tiny.open()
    pasts = [random_tokens(count, seed=count) for count in (0, 5, 23, 1)]
    news = [random_tokens(count, seed=9 + count) for count in (6, 1, 12, 1)]
    for logits in ("last", "all"):
        sequences = [engine.new_sequence() for _ in pasts]
        for sequence, past in zip(sequences, pasts, strict=True):
            if past:
                engine.step([(sequence, past)])
        outputs = engine.step(list(zip(sequences, news, strict=True)), logits)
        for output, past, new in zip(outputs, pasts, news, strict=True):
            full = tiny.full_logits(past + new)
            assert_close(output, full[-1] if logits == "last" else full[len(past) :])


def test_tokens_after_a_rollback_equal_a_fresh_sequence(tiny: Tiny) -> None:
    engine = tiny.open()
    kept, dropped, other = random_tokens(9), random_tokens(20, seed=1), random_tokens(15, seed=2)
    sequence = engine.new_sequence()
    engine.step([(sequence, kept + dropped)])
    engine.rollback(sequence, len(dropped))
    assert sequence.length == len(kept)
    (logits_NV,) = engine.step([(sequence, other)], "all")
    assert_close(logits_NV, tiny.full_logits(kept + other)[len(kept) :])


def test_forks_are_independent(tiny: Tiny) -> None:
    engine = tiny.open()
    sequence = engine.new_sequence()
    held = {sequence: random_tokens(21)}
    engine.step([(sequence, held[sequence])])
    fork = engine.fork(sequence)
    held[fork] = list(held[sequence])
    for seed in range(4):  # alternating, so that shared memory would be overwritten
        for branch in (sequence, fork):
            new = random_tokens(3, seed=seed + 10 * (branch is fork))
            held[branch] += new
            (logits_NV,) = engine.step([(branch, new)], "all")
            assert_close(logits_NV, tiny.full_logits(held[branch])[-3:])
    engine.close(sequence)
    (logits_V,) = engine.step([(fork, [1])])
    assert_close(logits_V, tiny.full_logits([*held[fork], 1])[-1])


def test_a_restored_snapshot_continues_identically(tiny: Tiny) -> None:
    engine = tiny.open()
    for past in ([], random_tokens(30)):
        sequence = engine.new_sequence()
        if past:
            engine.step([(sequence, [*past, 1])])
            engine.rollback(sequence, 1)
        data = engine.snapshot(sequence)
        restored = engine.restore(data)
        assert restored.length == len(past)
        assert engine.snapshot(restored) == data
        (logits_V,) = engine.step([(restored, [5, 6])])
        assert_close(logits_V, tiny.full_logits([*past, 5, 6])[-1])


def test_a_damaged_snapshot_raises(engine: Engine) -> None:
    sequence = engine.new_sequence()
    engine.step([(sequence, random_tokens(4))])
    data = engine.snapshot(sequence)
    for at in range(0, len(data), 7):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises((SnapshotCorruptedError, SnapshotMismatchError)):
            engine.restore(damaged)
    for stop in (0, 3, 30, 60, len(data) - 1):
        with pytest.raises(SnapshotCorruptedError):
            engine.restore(data[:stop])


def test_a_snapshot_of_another_model_raises(engine: Engine) -> None:
    data = engine.snapshot(engine.new_sequence())
    engine.signature += " after one more step of training"
    with pytest.raises(SnapshotMismatchError, match="one more step"):
        engine.restore(data)


def test_a_snapshot_that_does_not_fit_raises(engine: Engine) -> None:
    sequence = engine.new_sequence()
    engine.step([(sequence, [1, 2, 3])])
    good = read_snapshot(engine.snapshot(sequence))
    some = next(iter(good.arrays))
    for arrays in (
        {name: array for name, array in good.arrays.items() if name != some},
        {**good.arrays, some: good.arrays[some][..., :1]},
        {**good.arrays, some: np.zeros(good.arrays[some].shape, np.float16)},
        {**good.arrays, "tokens": good.arrays["tokens"].astype(np.float32)},
        {**good.arrays, "tokens": good.arrays["tokens"][:, None]},
    ):
        with pytest.raises(SnapshotMismatchError):
            engine.restore(write_snapshot(dataclasses.replace(good, arrays=arrays)))
    with pytest.raises(SnapshotMismatchError):
        engine.restore(write_snapshot(dataclasses.replace(good, length=CONTEXT_LENGTH + 1)))
    with pytest.raises(SnapshotMismatchError, match="tokens"):  # before any memory is taken
        engine.restore(write_snapshot(dataclasses.replace(good, length=10**15)))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b'{"signature":"s","length":0}',
        b'{"signature":"s","length":-1,"arrays":[]}',
        b'{"signature":"s","length":true,"arrays":[]}',
        b'{"signature":"s","length":1.5,"arrays":[]}',
        b'{"signature":["s"],"length":0,"arrays":[]}',
        b'{"signature":"s","length":0,"arrays":7}',
        b'{"signature":"s","length":0,"arrays":["a"]}',
        b'{"signature":"s","length":0,"arrays":[{"name":"a","dtype":"object","shape":[0]}]}',
        b'{"signature":"s","length":0,"arrays":[{"name":"a","dtype":"float64","shape":[0]}]}',
        b'{"signature":"s","length":0,"arrays":[{"name":"a","dtype":["float32"],"shape":[0]}]}',
        b'{"signature":"s","length":0,"arrays":[{"name":"a","dtype":"uint8","shape":[-1]}]}',
        b'{"signature":"s","length":0,"arrays":[{"name":"a","dtype":"uint8","shape":[99999999999,99999999999]}]}',
        b'{"signature":"s","length":0,"arrays":[{"name":"a","dtype":"uint8","shape":[0,99999999999,99999999999]}]}',
        b'{"signature":"s","length":0,"arrays":[{"name":["a"],"dtype":"uint8","shape":[0]}]}',
    ],
)
@pytest.mark.parametrize("arrays", [b"", b"abc"])
def test_forged_bytes_with_a_valid_tag_raise(engine: Engine, header: bytes, arrays: bytes) -> None:
    body = struct.pack("<I", len(header)) + header + arrays
    for crafted in (body, body[:3]):
        with pytest.raises(SnapshotCorruptedError):
            engine.restore(b"OPENAFM-SEQUENCE-2\n" + tag(snapshot._key(), (crafted,)) + crafted)


def test_an_empty_sequence_is_restored(engine: Engine) -> None:
    assert engine.restore(engine.snapshot(engine.new_sequence())).length == 0


def test_tokens_beyond_the_context_window_raise_and_change_nothing(engine: Engine, one: Tiny) -> None:
    full, empty = engine.new_sequence(), engine.new_sequence()
    tokens = random_tokens(CONTEXT_LENGTH - 2)
    engine.step([(full, tokens)])
    with pytest.raises(ContextWindowError, match=f"{CONTEXT_LENGTH + 1} tokens") as caught:
        engine.step([(empty, [1]), (full, [1, 2, 3])])
    assert (caught.value.token_count, caught.value.context_length) == (CONTEXT_LENGTH + 1, CONTEXT_LENGTH)
    assert (full.length, empty.length) == (CONTEXT_LENGTH - 2, 0)
    (logits_V,) = engine.step([(full, [1, 2])])
    assert_close(logits_V, one.full_logits([*tokens, 1, 2])[-1])


def test_invalid_calls_raise_and_change_nothing(engine: Engine, one: Tiny) -> None:
    sequence, closed, foreign = engine.new_sequence(), engine.new_sequence(), one.open().new_sequence()
    engine.step([(sequence, [1, 2, 3])])
    engine.close(closed)
    for batch, error in (
        ([(sequence, [1]), (closed, [1])], SequenceError),
        ([(sequence, [1]), (foreign, [1])], SequenceError),
        ([(sequence, [1]), (sequence, [2])], SequenceError),
        ([(sequence, [])], TokenError),
        ([(sequence, [1, engine.vocab_size])], TokenError),
        ([(sequence, [-1])], TokenError),
    ):
        with pytest.raises(error):
            engine.step(batch)
    for num_tokens in (4, -1):
        with pytest.raises(RollbackError):
            engine.rollback(sequence, num_tokens)
    for call in (engine.fork, engine.snapshot, lambda s: engine.rollback(s, 0)):
        for wrong in (closed, foreign):
            with pytest.raises(SequenceError):
                call(wrong)
    with pytest.raises(SequenceError):
        engine.close(foreign)
    assert sequence.length == 3
    assert engine.step([]) == []


def test_closing_or_dropping_a_sequence_frees_its_memory(engine: Engine) -> None:
    for lose in (True, False):
        sequence = engine.new_sequence()
        engine.step([(sequence, [1, 2])])
        cache = weakref.ref(sequence.cache)
        if lose:
            del sequence
        else:
            engine.close(sequence)
            engine.close(sequence)
            assert sequence.is_closed
            assert sequence.length == 0
        gc.collect()
        assert cache() is None


def test_threads_get_the_results_of_a_single_thread(engine: Engine, one: Tiny) -> None:
    answers: dict[int, np.ndarray] = {}

    def decode(seed: int) -> None:
        sequence = engine.new_sequence()
        answers[seed] = np.concatenate([engine.step([(sequence, [t])], "all")[0] for t in random_tokens(25, seed)])

    threads = [threading.Thread(target=decode, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        assert_close(answers[seed], one.full_logits(random_tokens(25, seed)))


def test_concurrent_steps_of_one_sequence_are_serialized(engine: Engine, one: Tiny) -> None:
    sequence, num_threads, num_steps = engine.new_sequence(), 4, 20
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(target=lambda: [engine.step([(sequence, [7])]) for _ in range(num_steps)])
            for _ in range(num_threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch_interval)
    assert sequence.length == num_threads * num_steps
    (logits_V,) = engine.step([(sequence, [1])])
    assert_close(logits_V, one.full_logits([7] * num_threads * num_steps + [1])[-1])


def test_callers_may_modify_logits(engine: Engine, one: Tiny) -> None:
    a, b = engine.new_sequence(), engine.new_sequence()
    first, second = engine.step([(a, [1, 2]), (b, [1, 2])])
    first[:] = -np.inf
    assert_close(second, one.full_logits([1, 2])[-1])
    assert_close(engine.step([(a, [3])])[0], one.full_logits([1, 2, 3])[-1])
