"""The scheduler: batches and chunks, and that failures, interrupts and abandoned steps affect no other request."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from counting_engine import BAD_TOKEN, CONTEXT_LENGTH, CountingEngine, OneByOneEngine, logits_after

from openafm.runtime.batching import scheduler
from openafm.runtime.batching.pending import Pending, PendingError
from openafm.runtime.batching.step_costs import StepCosts
from openafm.runtime.decoding.prefill import prefill
from openafm.runtime.engines.base import ContextWindowError, Sequence, SequenceError, TokenError

TIMEOUT_S = 120


def in_threads(*calls: Callable[[], object]) -> list[object]:
    """Run calls in parallel threads and return their results or exceptions."""
    results: list[object] = [None] * len(calls)

    def run(place: int) -> None:
        try:
            results[place] = calls[place]()
        except BaseException as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive(), "a thread hangs"
    return results


@contextmanager
def busy(engine: CountingEngine) -> Iterator[Sequence]:
    """Keep the engine busy with a step of another thread during the block; yield that step's sequence."""
    sequence, started, ends = engine.new_sequence(), threading.Event(), threading.Event()

    def during(step: int) -> None:
        started.set()
        assert ends.wait(TIMEOUT_S)

    previous, engine.during = engine.during, during
    thread = threading.Thread(target=lambda: engine.step([(sequence, [9])]), daemon=True)
    thread.start()
    assert started.wait(TIMEOUT_S)
    engine.during = previous
    try:
        yield sequence
    finally:
        ends.set()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def queued(engine: CountingEngine, count: int) -> None:
    """Wait until `count` requests are in the queue."""
    deadline = time.monotonic() + TIMEOUT_S
    while len(engine.scheduler._queue) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def assert_right(pending: Pending, tokens: list[int]) -> None:
    (logits_V,) = pending.result()
    assert np.array_equal(logits_V, logits_after(tokens))


class GivenCosts(StepCosts):
    """One row takes 10 ms, each further row 1 ms, whatever is measured."""

    def seconds(self, num_rows: int) -> float:
        return 0.009 + 0.001 * num_rows


def with_costs(engine: CountingEngine) -> CountingEngine:
    engine.costs = GivenCosts()
    return engine


def test_requests_that_wait_are_computed_in_one_step() -> None:
    engine = CountingEngine()
    sequences = [engine.new_sequence() for _ in range(4)]
    with busy(engine):
        begun = [engine.begin([(sequence, [place, 7])]) for place, sequence in enumerate(sequences)]
        assert len(engine.steps) == 1
    for place in (2, 0, 3, 1):
        assert_right(begun[place], [place, 7])
        assert list(sequences[place].tokens) == [place, 7]
    assert engine.steps[1:] == [{0: 2, 1: 2, 2: 2, 3: 2}]


def test_last_and_all_logits_in_one_step() -> None:
    engine = CountingEngine()
    a, b, c = (engine.new_sequence() for _ in range(3))
    with busy(engine):
        last, every = engine.begin([(a, [1, 2, 3]), (b, [4])]), engine.begin([(c, [5, 6])], "all")
    assert np.array_equal(every.result()[0], [logits_after([5]), logits_after([5, 6])])
    assert [np.array_equal(x, logits_after(y)) for x, y in zip(last.result(), [[1, 2, 3], [4]], strict=True)] == [True] * 2
    assert len(engine.steps) == 2


def test_a_lone_caller_computes_in_its_own_thread() -> None:
    engine = CountingEngine()
    sequence = engine.new_sequence()
    for token in range(3):
        engine.step([(sequence, [token])])
    assert_right(engine.begin([(sequence, [5])]), [0, 1, 2, 5])
    assert set(engine.threads) == {threading.get_ident()}


def test_a_long_step_is_computed_by_the_worker_while_its_caller_works() -> None:
    engine = with_costs(CountingEngine())
    sequence, computed = engine.new_sequence(), threading.Event()
    engine.during = lambda step: computed.set()
    begun = engine.begin([(sequence, [1])])
    assert computed.wait(TIMEOUT_S), "the step was not computed within the timeout"
    assert sequence.length == 0
    assert_right(begun, [1])
    assert engine.threads != [threading.get_ident()]


def test_engines_that_do_not_combine_compute_each_request_in_its_callers_thread() -> None:
    engine = OneByOneEngine()
    sequences = [engine.new_sequence() for _ in range(4)]
    idents: dict[int, int] = {}
    barrier = threading.Barrier(4)

    def decode(place: int) -> None:
        idents[place] = threading.get_ident()
        barrier.wait(TIMEOUT_S)
        for token in range(5):
            assert_right(engine.begin([(sequences[place], [token])]), list(range(token + 1)))
        prompt = [5] * 600
        assert np.array_equal(engine.step([(sequences[place], prompt)])[0], logits_after([0, 1, 2, 3, 4, *prompt]))

    assert in_threads(*(lambda place=place: decode(place) for place in range(4))) == [None] * 4
    expected = sorted(str({place: n}) for place in range(4) for n in (1, 1, 1, 1, 1, 600))
    assert sorted(map(str, engine.steps)) == expected
    for step, ident in zip(engine.steps, engine.threads, strict=True):
        assert ident == idents[next(iter(step))]


def test_a_prompt_alone_is_prefilled_in_large_chunks() -> None:
    engine = CountingEngine()
    sequence = engine.new_sequence()
    prompt = [i % 60 for i in range(1200)]
    assert_right(engine.begin([(sequence, prompt)]), prompt)
    assert engine.steps == [{0: 512}, {0: 512}, {0: 176}]


@pytest.mark.parametrize("num_prompts", [1, 3])
def test_beside_prompts_every_step_decodes_and_stays_short(num_prompts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are prefilled in small chunks and take turns."""
    monkeypatch.setattr(scheduler, "_GATHER_SHARE", 1e3)
    engine = with_costs(CountingEngine())
    decoding, *prompted = (engine.new_sequence() for _ in range(1 + num_prompts))
    prompts = [[i] * 200 for i in range(num_prompts)]
    found: dict[int, object] = {}

    def prefill_one(place: int) -> None:
        found[place] = engine.step([(prompted[place], prompts[place])])

    threads = [threading.Thread(target=prefill_one, args=(place,), daemon=True) for place in range(num_prompts)]
    tokens = [2]
    with busy(engine) as first:
        for count, thread in enumerate(threads, start=1):
            thread.start()
            queued(engine, count)
        token = engine.begin([(decoding, [2])])
    engine.close(first)
    while len(found) < num_prompts:
        assert_right(token, tokens)
        tokens.append(3)
        token = engine.begin([(decoding, [3])])
    for thread in threads:
        thread.join(TIMEOUT_S)
    steps = [step for step in engine.steps[1:] if set(step) - {0}]
    assert all(step.get(0) == 1 for step in steps), "the decoding sequence is in every step"
    rows = [sum(step.values()) for step in steps]
    assert max(rows[: -2 * num_prompts]) <= 21, "three times the 10 ms of a step without a prompt"
    turns = [next(place for place in step if place) for step in steps]
    assert turns[:6] == ([1, 2, 3] * 2 if num_prompts == 3 else [1] * 6)
    for place, prompt in enumerate(prompts):
        assert np.array_equal(found[place], [logits_after(prompt)])


def test_chunks_stay_small_for_some_steps_after_another_sequence_decoded() -> None:
    engine = with_costs(CountingEngine())
    decoding, prompted = engine.new_sequence(), engine.new_sequence()
    in_threads(lambda: engine.step([(decoding, [1])]))
    engine.step([(prompted, list(range(60)) * 20)])
    chunks = [step[1] for step in engine.steps[1:]]
    assert chunks[0] <= 32
    assert max(chunks) == 512
    assert len(chunks) > 5
    in_threads(lambda: engine.step([(decoding, [1])]))
    engine.close(decoding)
    engine.step([(prompted, list(range(60)) * 10)])
    assert engine.steps[-2:] == [{1: 512}, {1: 88}], "a closed sequence will not decode"


def test_only_the_request_that_causes_an_error_fails() -> None:
    engine = CountingEngine()
    sequences = [engine.new_sequence() for _ in range(4)]
    with busy(engine):
        begun = [engine.begin([(sequence, [place])]) for place, sequence in enumerate(sequences[:3])]
        bad = engine.begin([(sequences[3], [1, BAD_TOKEN])])
    for place in (1, 0, 2):
        assert_right(begun[place], [place])
    with pytest.raises(MemoryError):
        bad.result()
    assert sequences[3].length == 0
    assert np.array_equal(engine.step([(sequences[3], [5])])[0], logits_after([5]))


def test_invalid_requests_raise_immediately_and_affect_no_other() -> None:
    engine = CountingEngine()
    good, wrong, closed = (engine.new_sequence() for _ in range(3))
    engine.close(closed)
    begun = engine.begin([(good, [1])])
    for batch, error in (
        ([(wrong, [0] * (CONTEXT_LENGTH + 1))], ContextWindowError),
        ([(wrong, [999])], TokenError),
        ([(wrong, [])], TokenError),
        ([(wrong, [1]), (closed, [1])], SequenceError),
        ([(wrong, [1]), (wrong, [1])], SequenceError),
        ([(wrong, [1]), (good, [1])], SequenceError),
    ):
        for call in (engine.begin, engine.step):
            with pytest.raises(error):
                call(batch)
    assert_right(begun, [1])
    assert np.array_equal(engine.step([(wrong, [3])])[0], logits_after([3]))
    assert engine.steps == [{0: 1}, {1: 1}]


@pytest.mark.parametrize("make", [CountingEngine, OneByOneEngine])
def test_a_prompt_that_fails_half_way_restores_the_sequence(make: type[CountingEngine]) -> None:
    engine = make()
    sequence = engine.new_sequence()
    engine.step([(sequence, [1, 2])])
    with pytest.raises(MemoryError):
        engine.step([(sequence, [5] * 700 + [BAD_TOKEN])])
    assert list(sequence.tokens) == [1, 2]
    assert np.array_equal(engine.step([(sequence, [3])])[0], logits_after([1, 2, 3]))


def test_a_sequence_in_a_pending_step_cannot_be_used_otherwise() -> None:
    engine = CountingEngine()
    sequence = engine.new_sequence()
    begun = engine.begin([(sequence, [1])])
    for call in (
        lambda: engine.step([(sequence, [2])]),
        lambda: engine.begin([(sequence, [2])]),
        lambda: engine.rollback(sequence, 0),
        lambda: engine.fork(sequence),
        lambda: engine.snapshot(sequence),
        lambda: engine.memory(sequence),
        lambda: engine.close(sequence),
    ):
        with pytest.raises(SequenceError, match="pending"):
            call()
    assert_right(begun, [1])
    with pytest.raises(PendingError):
        begun.result()
    engine.rollback(sequence, 1)
    engine.close(sequence)


@pytest.mark.parametrize("how", ["abandon", "context", "lose", "raise"])
@pytest.mark.parametrize("make", [CountingEngine, OneByOneEngine, lambda: with_costs(CountingEngine())])
def test_an_abandoned_step_restores_its_sequence(make: Callable[[], CountingEngine], how: str) -> None:
    engine = make()
    sequence, other = engine.new_sequence(), engine.new_sequence()
    engine.step([(sequence, [1])])
    begun, beside = engine.begin([(sequence, [2] * 600)]), engine.begin([(other, [3])])
    if how == "abandon":
        begun.abandon()
        begun.abandon()
    elif how == "context":
        with begun:
            pass
    elif how == "lose":
        del begun
        gc.collect()
    else:
        with pytest.raises(ZeroDivisionError), begun:
            raise ZeroDivisionError
    assert list(sequence.tokens) == [1]
    assert np.array_equal(engine.step([(sequence, [4])])[0], logits_after([1, 4]))
    assert_right(beside, [3])
    engine.rollback(sequence, 2)


def test_a_step_abandoned_while_it_is_computed_frees_its_sequence_afterwards() -> None:
    engine = CountingEngine()
    sequence, other = engine.new_sequence(), engine.new_sequence()
    with busy(engine):
        abandoned, kept = engine.begin([(sequence, [1])]), engine.begin([(other, [2])])
        engine.during = lambda step: abandoned.abandon()
    assert_right(kept, [2])
    engine.during = lambda step: None
    assert sequence.length == 0
    assert np.array_equal(engine.step([(sequence, [3])])[0], logits_after([3]))
    with pytest.raises(PendingError):
        abandoned.result()


@pytest.mark.parametrize("make", [CountingEngine, OneByOneEngine])
def test_a_result_abandoned_while_it_is_waited_for_raises(make: type[CountingEngine]) -> None:
    engine = make()
    sequence = engine.new_sequence()
    engine.step([(sequence, [1])])
    begun = engine.begin([(sequence, [2])])
    engine.during = lambda step: begun.abandon()
    with pytest.raises(PendingError, match="abandoned"):
        begun.result()
    assert list(sequence.tokens) == [1]
    assert np.array_equal(engine.step([(sequence, [3])])[0], logits_after([1, 3]))


def test_an_interrupted_caller_fails_alone() -> None:
    engine = CountingEngine()
    a, b = engine.new_sequence(), engine.new_sequence()

    def interrupt(step: int) -> None:
        raise KeyboardInterrupt

    first, second = engine.begin([(a, [1])]), engine.begin([(b, [2] * 40)])
    engine.during = interrupt
    with pytest.raises(KeyboardInterrupt):
        first.result()
    engine.during = lambda step: None
    assert (a.length, b.length) == (0, 0)
    engine.rollback(a, 0)
    assert_right(second, [2] * 40)
    assert np.array_equal(engine.step([(a, [7])])[0], logits_after([7]))


class InterruptedLock:
    """A lock that raises KeyboardInterrupt once in this thread: before it is acquired or after it is released."""

    def __init__(self, lock: threading.RLock, place: int) -> None:
        self._lock, self._num_left, self._thread = lock, place, threading.get_ident()

    def __enter__(self) -> None:
        self._pass()
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
        self._pass()

    def _pass(self) -> None:
        if threading.get_ident() == self._thread:
            self._num_left -= 1
            if self._num_left == -1:
                raise KeyboardInterrupt


def interrupted(engine: CountingEngine, use: str, place: int) -> bool:
    """Use a sequence, interrupted at that place, and check that everything still works. False if there is no such place."""
    sequence, other = engine.new_sequence(), engine.new_sequence()
    engine.step([(sequence, [1])])
    begun = engine.begin([(other, [2] * 40)])
    mine = engine.begin([(sequence, [3, 4])]) if use == "result" else None
    lock = engine.scheduler.lock
    engine.scheduler.lock = InterruptedLock(lock, place)
    try:
        if mine is not None:
            mine.result()
        elif use == "step":
            engine.step([(sequence, [3, 4])])
        else:
            getattr(engine, use)(sequence)
        return False
    except KeyboardInterrupt:
        pass
    finally:
        engine.scheduler.lock = lock
    tokens = list(sequence.tokens)
    assert tokens in ([1], [1, 3, 4])
    found, beside = in_threads(lambda: engine.step([(sequence, [7])]), begun.result)
    assert np.array_equal(found, [logits_after([*tokens, 7])])
    assert np.array_equal(beside, [logits_after([2] * 40)])
    return True


@pytest.mark.parametrize("use", ["step", "result", "fork", "snapshot"])
@pytest.mark.parametrize("make", [CountingEngine, OneByOneEngine, lambda: with_costs(CountingEngine())])
def test_an_interrupt_at_any_place_blocks_nobody(make: Callable[[], CountingEngine], use: str) -> None:
    num_places = next(place for place in itertools.count() if not interrupted(make(), use, place))
    assert num_places >= 4


def test_a_step_does_not_block_other_sequences() -> None:
    engine = CountingEngine()
    others = [engine.new_sequence() for _ in range(4)]
    for other in others:
        engine.step([(other, [1, 2])])
    with busy(engine):
        results = in_threads(
            lambda: engine.rollback(others[0], 1),
            lambda: engine.fork(others[1]).length,
            lambda: engine.restore(engine.snapshot(others[2])).length,
            lambda: engine.close(others[3]),
        )
    assert results == [None, 2, 2, None]
    assert np.array_equal(engine.step([(others[0], [3])])[0], logits_after([1, 3]))
    assert others[3].is_closed


def test_another_use_of_a_sequence_waits_for_its_step() -> None:
    engine = CountingEngine()
    with busy(engine) as sequence:
        waiting = threading.Thread(target=lambda: engine.rollback(sequence, 1), daemon=True)
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
    waiting.join(TIMEOUT_S)
    assert not waiting.is_alive()
    assert sequence.length == 0


def test_a_step_waits_for_the_callers_of_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_GATHER_SHARE", 1e9)
    num_threads, num_steps = 4, 10
    engine = CountingEngine()
    ready = threading.Barrier(num_threads + 1)

    def decode() -> None:
        sequence = engine.new_sequence()
        ready.wait(TIMEOUT_S)
        for token in range(num_steps):
            (logits_V,) = engine.step([(sequence, [token])])
            assert np.array_equal(logits_V, logits_after(list(range(token + 1))))
        engine.close(sequence)

    threads = [threading.Thread(target=decode, daemon=True) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    with busy(engine) as first:
        ready.wait(TIMEOUT_S)
        queued(engine, num_threads)
    engine.close(first)
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    assert [len(step) for step in engine.steps] == [1] + [num_threads] * num_steps


def test_one_thread_with_several_sequences_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_GATHER_SHARE", 1e12)
    engine = CountingEngine()
    sequences = [engine.new_sequence() for _ in range(3)]
    for token in range(5):
        for sequence in sequences:
            engine.step([(sequence, [token])])
    assert len(engine.steps) == 15


def test_a_prefill_is_cancelled_between_its_steps() -> None:
    engine = CountingEngine()
    sequence, decoding = engine.new_sequence(), engine.new_sequence()
    engine.step([(sequence, [1])])
    begun = engine.begin([(decoding, [1])])
    assert prefill(engine, sequence, [2] * 1500, cancelled=lambda: len(engine.steps) > 2) is None
    assert list(sequence.tokens) == [1]
    assert_right(begun, [1])


def test_the_worker_thread_ends_with_its_engine() -> None:
    engine = with_costs(CountingEngine())
    engine.begin([(engine.new_sequence(), [1])]).result()
    worker = engine.scheduler._worker
    assert worker is not None
    engine._caches.clear()
    del engine
    gc.collect()
    worker.join(TIMEOUT_S)
    assert not worker.is_alive()
