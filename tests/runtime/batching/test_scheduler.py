"""What is computed at once, in which chunks, and what becomes of it when something fails, is given up or is interrupted."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from counting_engine import BAD_TOKEN, CONTEXT_LENGTH, BesideEngine, CountingEngine, OneByOneEngine, logits_after

from openafm.runtime.batching import scheduler
from openafm.runtime.batching.pending import Pending, PendingError
from openafm.runtime.decoding.prefill import prefill
from openafm.runtime.engines.base import ContextWindowError, SequenceError, TokenError

PATIENCE_S = 30  # so long may a thread take that does not hang


def in_threads(*calls: Callable[[], object]) -> list[object]:
    """Results of calls that run at the same time, or what they raised."""
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
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a thread hangs"
    return results


def sleepers(engine: CountingEngine, count: int) -> None:
    """Wait until so many threads do for the one that leads."""
    while len(engine._scheduler._sleepers) < count:
        time.sleep(0.001)


def assert_right(pending: Pending, tokens: list[int]) -> None:
    (logits_V,) = pending.result()
    assert np.array_equal(logits_V, logits_after(tokens))


def test_what_has_begun_is_computed_at_once() -> None:
    engine = CountingEngine()
    sequences = [engine.new_sequence() for _ in range(4)]
    begun = [engine.begin([(sequence, [place, 7])]) for place, sequence in enumerate(sequences)]
    assert engine.runs == []
    for place in (2, 0, 3, 1):
        assert_right(begun[place], [place, 7])
        assert list(sequences[place].tokens) == [place, 7]
    assert engine.runs == [{0: 2, 1: 2, 2: 2, 3: 2}]


def test_all_and_last_logits_stand_beside_each_other() -> None:
    engine = CountingEngine()
    a, b, c = (engine.new_sequence() for _ in range(3))
    last, every = engine.begin([(a, [1, 2, 3]), (b, [4])]), engine.begin([(c, [5, 6])], "all")
    found_NV = every.result()[0]
    assert np.array_equal(found_NV, [logits_after([5]), logits_after([5, 6])])
    assert [np.array_equal(x, logits_after(y)) for x, y in zip(last.result(), [[1, 2, 3], [4]], strict=True)] == [True] * 2
    assert len(engine.runs) == 1


def test_engines_that_do_not_combine_compute_each_caller_in_its_own_thread() -> None:
    engine = OneByOneEngine()
    sequences = [engine.new_sequence() for _ in range(4)]
    idents: dict[int, int] = {}
    barrier = threading.Barrier(4)

    def decode(place: int) -> None:
        idents[place] = threading.get_ident()
        barrier.wait(PATIENCE_S)
        for token in range(5):
            assert_right(engine.begin([(sequences[place], [token])]), list(range(token + 1)))
        prompt = [5] * 600
        assert np.array_equal(engine.step([(sequences[place], prompt)])[0], logits_after([0, 1, 2, 3, 4, *prompt]))

    assert in_threads(*(lambda place=place: decode(place) for place in range(4))) == [None] * 4
    assert sorted(map(str, engine.runs)) == sorted(str({place: n}) for place in range(4) for n in (1, 1, 1, 1, 1, 600))
    for run, ident in zip(engine.runs, engine.threads, strict=True):
        assert ident == idents[next(iter(run))]


def test_a_prompt_alone_is_prefilled_in_large_pieces() -> None:
    engine = CountingEngine()
    sequence = engine.new_sequence()
    prompt = [i % 60 for i in range(1200)]
    assert_right(engine.begin([(sequence, prompt)]), prompt)
    assert engine.runs == [{0: 512}, {0: 512}, {0: 176}]


def with_costs(engine: CountingEngine) -> CountingEngine:
    """One row takes 10 ms, each further one 1 ms."""
    for rows in range(1, 33):
        engine.costs.record(rows, 0.009 + 0.001 * rows)
    for _ in range(9):
        engine.costs.record(100, 0.109)
    return engine


def test_beside_a_prompt_others_decode_in_every_step_and_steps_stay_short() -> None:
    engine = with_costs(CountingEngine())
    costs = engine.costs
    decoding, prompted = engine.new_sequence(), engine.new_sequence()
    prompt, said = [i % 50 for i in range(400)], [1]
    begun = [engine.begin([(decoding, [1])])]
    lengths: list[int] = []

    def decode(run: int) -> None:
        """As a thread would that comes back before the next step."""
        if begun:
            assert begun[0]._request.is_over or run == len(engine.runs) - 1
        lengths.append(sum(engine.runs[run].values()))

    engine.beside = decode
    answer = engine.begin([(prompted, prompt)])
    while not answer._request.is_over:
        assert_right(begun.pop(), said)
        said.append(len(said) % 60)
        begun.append(engine.begin([(decoding, [said[-1]])]))
    assert_right(answer, prompt)
    assert all(run.get(0) == 1 for run in engine.runs), "the one that decodes waits for no step"
    assert len(engine.runs) > 400 / 30
    assert all(10 <= rows <= 32 for rows in lengths[:-1]), lengths
    assert max(costs.seconds(rows) or 0 for rows in lengths) <= 3 * 0.0101


def test_prompts_take_turns_beside_others() -> None:
    engine = with_costs(CountingEngine())
    decoding, *prompted = (engine.new_sequence() for _ in range(4))
    said, token = [2], engine.begin([(decoding, [2])])
    prompts = [[i] * 100 for i in range(3)]
    answers = [engine.begin([(sequence, prompt)]) for sequence, prompt in zip(prompted, prompts, strict=True)]
    while not all(answer._request.is_over for answer in answers):
        assert_right(token, said)
        said.append(3)
        token = engine.begin([(decoding, [3])])
    turns = [next(place for place in run if place) for run in engine.runs]
    assert turns[:6] == [1, 2, 3, 1, 2, 3]
    for answer, prompt in zip(answers, prompts, strict=True):
        assert_right(answer, prompt)


def test_a_sequence_that_decoded_lately_keeps_pieces_small_for_a_while() -> None:
    """One that is just about to come back does not find a step of half a thousand rows before it."""
    engine = with_costs(CountingEngine())
    decoding, prompted = engine.new_sequence(), engine.new_sequence()
    engine.step([(prompted, [1])])
    in_threads(lambda: engine.step([(decoding, [1])]))
    engine.step([(prompted, list(range(60)) * 20)])
    chunks = [run[1] for run in engine.runs[2:]]
    assert chunks[0] <= 32
    assert max(chunks) == 512
    assert len(chunks) > 5
    engine.close(decoding)
    engine.rollback(prompted, 1200)
    engine.step([(prompted, list(range(60)) * 10)])
    assert engine.runs[-1] == {1: 88}, "what is closed will not decode"


def test_who_fails_fails_alone() -> None:
    engine = CountingEngine()
    sequences = [engine.new_sequence() for _ in range(4)]
    begun = [engine.begin([(sequence, [place])]) for place, sequence in enumerate(sequences[:3])]
    bad = engine.begin([(sequences[3], [1, BAD_TOKEN])])
    for place in (1, 0, 2):
        assert_right(begun[place], [place])
    with pytest.raises(MemoryError):
        bad.result()
    assert sequences[3].length == 0
    assert np.array_equal(engine.step([(sequences[3], [5])])[0], logits_after([5]))


def test_wrong_requests_are_refused_at_once_and_disturb_nobody() -> None:
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
        for ask in (engine.begin, engine.step):
            with pytest.raises(error):
                ask(batch)
    assert_right(begun, [1])
    assert np.array_equal(engine.step([(wrong, [3])])[0], logits_after([3]))
    assert engine.runs == [{0: 1}, {1: 1}]


def test_a_prompt_that_fails_half_way_takes_nothing() -> None:
    engine = CountingEngine()
    sequence = engine.new_sequence()
    engine.step([(sequence, [1, 2])])
    with pytest.raises(MemoryError):
        engine.step([(sequence, [5] * 700 + [BAD_TOKEN])])
    assert list(sequence.tokens) == [1, 2]
    assert np.array_equal(engine.step([(sequence, [3])])[0], logits_after([1, 2, 3]))


def test_a_sequence_of_a_step_that_has_begun_is_nobody_elses() -> None:
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
        with pytest.raises(SequenceError, match="has begun"):
            call()
    assert_right(begun, [1])
    with pytest.raises(PendingError):
        begun.result()
    engine.rollback(sequence, 1)
    engine.close(sequence)


@pytest.mark.parametrize("how", ["abandon", "context", "lose", "raise"])
def test_what_is_abandoned_leaves_its_sequence_as_it_was(how: str) -> None:
    for engine in (CountingEngine(), OneByOneEngine(), BesideEngine()):
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


def test_what_is_abandoned_while_it_is_computed_is_free_when_that_is_over() -> None:
    engine = CountingEngine()
    sequence, other = engine.new_sequence(), engine.new_sequence()
    given_up, going_on = engine.begin([(sequence, [1])]), engine.begin([(other, [2])])
    engine.beside = lambda run: given_up.abandon()
    assert_right(going_on, [2])
    engine.beside = lambda run: None
    assert sequence.length == 0
    assert np.array_equal(engine.step([(sequence, [3])])[0], logits_after([3]))
    with pytest.raises(PendingError):
        given_up.result()


def test_a_leader_that_is_interrupted_takes_nobody_with_it() -> None:
    engine = CountingEngine()
    a, b = engine.new_sequence(), engine.new_sequence()
    first, second = engine.begin([(a, [1])]), engine.begin([(b, [2] * 40)])

    def interrupt(run: int) -> None:
        if run == 0:
            raise KeyboardInterrupt

    engine.beside = interrupt
    with pytest.raises(KeyboardInterrupt):
        first.result()
    assert (a.length, b.length) == (0, 0)
    engine.rollback(a, 0)
    assert_right(second, [2] * 40)
    assert np.array_equal(engine.step([(a, [7])])[0], logits_after([7]))


def test_threads_that_sleep_go_on_when_their_leader_dies() -> None:
    engine = CountingEngine()
    sequences = [engine.new_sequence() for _ in range(5)]

    def interrupt_once(run: int) -> None:
        if run == 0:
            sleepers(engine, 4)
            raise KeyboardInterrupt

    engine.beside = interrupt_once
    results = in_threads(*(lambda place=place: engine.step([(sequences[place], [place])]) for place in range(5)))
    died = [place for place, result in enumerate(results) if isinstance(result, KeyboardInterrupt)]
    assert len(died) == 1
    for place, result in enumerate(results):
        if place not in died:
            assert isinstance(result, list)
            assert np.array_equal(result[0], logits_after([place]))
        assert sequences[place].length == (place not in died)
    assert len(engine.runs) == 2, "all that slept are computed at once"


class InterruptedLock:
    """A lock at which an interrupt comes, once: when this thread is about to take it, or has just given it back."""

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
    """Use a sequence, interrupted at that place, and see that all go on. Whether there is such a place."""
    sequence, other = engine.new_sequence(), engine.new_sequence()
    engine.step([(sequence, [1])])
    begun = engine.begin([(other, [2] * 40)])
    mine = engine.begin([(sequence, [3, 4])]) if use == "result" else None
    lock = engine._scheduler.lock
    engine._scheduler.lock = InterruptedLock(lock, place)
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
        engine._scheduler.lock = lock
    tokens = list(sequence.tokens)
    assert tokens in ([1], [1, 3, 4])
    found, beside = in_threads(lambda: engine.step([(sequence, [7])]), begun.result)
    assert np.array_equal(found, [logits_after([*tokens, 7])])
    assert np.array_equal(beside, [logits_after([2] * 40)])
    return True


@pytest.mark.parametrize("use", ["step", "result", "fork", "snapshot"])
@pytest.mark.parametrize("make", [CountingEngine, OneByOneEngine, BesideEngine])
def test_an_interrupt_wherever_it_comes_leaves_nobody_waiting(make: type[CountingEngine], use: str) -> None:
    num_places = next(place for place in itertools.count() if not interrupted(make(), use, place))
    assert num_places >= 4


@pytest.mark.parametrize("make", [CountingEngine, OneByOneEngine])
def test_a_result_that_is_abandoned_while_it_is_waited_for_is_none(make: type[CountingEngine]) -> None:
    engine = make()
    sequence = engine.new_sequence()
    engine.step([(sequence, [1])])
    begun = engine.begin([(sequence, [2])])
    engine.beside = lambda run: begun.abandon()
    with pytest.raises(PendingError, match="abandoned"):
        begun.result()
    assert list(sequence.tokens) == [1]
    assert np.array_equal(engine.step([(sequence, [3])])[0], logits_after([1, 3]))


def test_sequences_that_take_no_part_are_not_held_up_by_a_step() -> None:
    engine = CountingEngine()
    stepping, others = engine.new_sequence(), [engine.new_sequence() for _ in range(4)]
    for other in others:
        engine.step([(other, [1, 2])])

    def use_others(run: int) -> None:
        results = in_threads(
            lambda: engine.rollback(others[0], 1),
            lambda: engine.fork(others[1]).length,
            lambda: engine.restore(engine.snapshot(others[2])).length,
            lambda: engine.close(others[3]),
        )
        assert results == [None, 2, 2, None]

    engine.beside = use_others
    engine.step([(stepping, [1])])
    engine.beside = lambda run: None
    assert np.array_equal(engine.step([(others[0], [3])])[0], logits_after([1, 3]))
    assert others[3].is_closed


def test_who_wants_a_sequence_that_is_waited_for_waits_as_well() -> None:
    engine = CountingEngine()
    sequence = engine.new_sequence()
    waiting = threading.Thread(target=lambda: engine.rollback(sequence, 1), daemon=True)

    def want_it(run: int) -> None:
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()

    engine.beside = want_it
    engine.step([(sequence, [1, 2])])
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert list(sequence.tokens) == [1]


def test_a_leader_waits_for_those_of_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_LINGER", 1e9)
    num_threads, num_steps = 4, 10
    engine = CountingEngine(beside=lambda run: sleepers(engine, num_threads - 1) if run == 0 else None)

    def decode() -> None:
        sequence = engine.new_sequence()
        for token in range(num_steps):
            (logits_V,) = engine.step([(sequence, [token])])
            assert np.array_equal(logits_V, logits_after(list(range(token + 1))))
        engine.close(sequence)

    assert in_threads(*[decode] * num_threads) == [None] * num_threads
    assert len(engine.runs) == num_steps + 1  # of the first, that one alone; of the last, the others
    assert sorted(len(run) for run in engine.runs) == [1, 3] + [4] * (num_steps - 1)


def test_one_thread_with_several_sequences_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_LINGER", 1e12)
    engine = CountingEngine()
    sequences = [engine.new_sequence() for _ in range(3)]
    for token in range(5):
        for sequence in sequences:
            engine.step([(sequence, [token])])
    assert len(engine.runs) == 15


def test_a_prefill_is_cancelled_between_its_steps() -> None:
    engine = CountingEngine()
    sequence, decoding = engine.new_sequence(), engine.new_sequence()
    engine.step([(sequence, [1])])
    begun = engine.begin([(decoding, [1])])
    assert prefill(engine, sequence, [2] * 1500, cancelled=lambda: len(engine.runs) > 2) is None
    assert list(sequence.tokens) == [1]
    assert_right(begun, [1])


def test_a_long_step_begins_before_it_is_waited_for() -> None:
    engine = BesideEngine()
    a, b = engine.new_sequence(), engine.new_sequence()
    engine.finishes.clear()
    begun = engine.begin([(a, [1])])
    assert engine.num_started == 1
    later = engine.begin([(b, [2])])
    assert engine.num_started == 1, "one at a time"
    engine.finishes.set()
    assert_right(later, [2])
    assert_right(begun, [1])
    assert engine.runs == [{0: 1}, {1: 1}]
    engine.step([(a, [2])])
    assert engine.num_started == 1, "who has nothing else to do computes himself"


def test_whoever_waits_finishes_a_step_that_another_thread_began() -> None:
    engine = BesideEngine()
    a, b = engine.new_sequence(), engine.new_sequence()
    begun = engine.begin([(a, [1])])  # and then does something else for long
    (result,) = in_threads(lambda: engine.step([(b, [2])]))
    assert isinstance(result, list)
    assert np.array_equal(result[0], logits_after([2]))
    assert_right(begun, [1])


def test_a_started_step_that_fails_or_is_given_up() -> None:
    engine = BesideEngine()
    sequence, other = engine.new_sequence(), engine.new_sequence()
    begun = engine.begin([(sequence, [BAD_TOKEN])])
    with pytest.raises(MemoryError):
        begun.result()
    engine.finishes.clear()
    begun = engine.begin([(sequence, [1])])
    begun.abandon()
    threading.Timer(0.05, engine.finishes.set).start()
    engine.rollback(sequence, 0)  # waits until nothing is written any more
    assert engine.finishes.is_set()
    assert np.array_equal(engine.step([(sequence, [2])])[0], logits_after([2]))
    assert np.array_equal(engine.step([(other, [3])])[0], logits_after([3]))
