"""Many threads on one native engine: whatever they do beside each other, each gets the bits that it would get alone."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, multiple, rule
from native_bundles import CONTEXT_LENGTH, compressed_bundle
from tiny_tokenizer import TOKENIZER

from openafm.runtime.batching import scheduler
from openafm.runtime.batching.pending import Job, Pending, Request
from openafm.runtime.decoding.generation import generate
from openafm.runtime.decoding.grammar import GrammarCompiler
from openafm.runtime.decoding.sampling import RandomConfig
from openafm.runtime.engines.base import Sequence, SequenceError
from openafm.runtime.native.engine import NativeEngine

PATIENCE_S = 30


@cache
def alone() -> NativeEngine:
    return NativeEngine(compressed_bundle(), num_threads=1)


def fresh(tokens: list[int]) -> np.ndarray:
    """Logits after every token, [N, V]."""
    sequence = alone().new_sequence()
    return alone().step([(sequence, tokens)], "all")[0]


def in_threads(*calls: Callable[[], object]) -> None:
    errors: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def prompt_of(seed: int) -> list[int]:
    generator = np.random.default_rng(seed)
    return generator.integers(alone().vocab_size, size=int(generator.integers(1, 60))).tolist()


def answer(engine: NativeEngine, seed: int) -> list[int]:
    sequence = engine.new_sequence()
    sampling = RandomConfig(temperature=0.8, top_k=20, seed=seed)
    events = generate(engine, sequence, prompt_of(seed), sampling=sampling, stop_tokens=[], max_tokens=20)
    tokens = [event.token for event in events]
    engine.close(sequence)
    return tokens


@pytest.mark.parametrize("num_threads", [1, 2])
def test_sessions_beside_each_other_answer_as_they_do_alone(num_threads: int) -> None:
    engine = NativeEngine(compressed_bundle(), num_threads=num_threads)
    num_sessions, found = 6, {}
    starts = threading.Barrier(num_sessions)

    def session(number: int) -> None:
        starts.wait(PATIENCE_S)
        found[number] = [answer(engine, 10 * number + turn) for turn in range(3)]

    in_threads(*(lambda number=number: session(number) for number in range(num_sessions)))
    for number in range(num_sessions):
        assert found[number] == [answer(alone(), 10 * number + turn) for turn in range(3)]


def test_batches_form_and_give_the_same_bits() -> None:
    engine = NativeEngine(compressed_bundle(), num_threads=1)
    prompts = [prompt_of(seed)[:32] for seed in range(5)]
    begun = [engine.begin([(engine.new_sequence(), prompt)], "all") for prompt in prompts]
    for pending, prompt in zip(reversed(begun), reversed(prompts), strict=True):
        assert np.array_equal(pending.result()[0], fresh(prompt))
    assert engine._scheduler.num_runs == 1


def test_pieces_without_logits_give_the_bits_of_one_step() -> None:
    engine = NativeEngine(compressed_bundle(), num_threads=1)
    for rows in range(1, 33):  # so slow that a prompt is cut into the least chunks
        engine.costs.record(rows, float(rows))
    decoding, prompted = engine.new_sequence(), engine.new_sequence()
    prompt = [token % 300 for token in range(90)]
    in_threads(lambda: engine.step([(decoding, [7])]))  # and will be back, for all that is known
    (logits_V,) = engine.step([(prompted, prompt)])
    assert engine._scheduler.num_runs > 5
    assert np.array_equal(logits_V, fresh(prompt)[-1])


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> NativeEngine:
    """An engine that hands every step to its other thread."""
    monkeypatch.setattr(scheduler, "_WORTH_A_THREAD_S", 0.0)
    engine = NativeEngine(compressed_bundle(), num_threads=2)
    engine.costs.record(1, 1.0)
    return engine


def test_a_step_in_another_thread_gives_the_same_bits(beside: NativeEngine) -> None:
    sequence, tokens = beside.new_sequence(), prompt_of(1)
    for count in range(1, len(tokens) + 1):
        begun = beside.begin([(sequence, tokens[count - 1 : count])])
        assert beside._scheduler._run is not None
        if count % 3 == 0:
            time.sleep(0.001)  # the thread has gone to sleep, or the step is over
        assert np.array_equal(begun.result()[0], fresh(tokens[:count])[-1])


def test_masks_beside_steps_change_no_token(beside: NativeEngine) -> None:
    grammar = GrammarCompiler(TOKENIZER).json_schema(
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": 20}, "b": {"type": "integer"}}}
    )
    num_beside = 0
    for seed in range(4):
        answers = []
        for engine in (beside, alone()):
            options = {"sampling": RandomConfig(seed=seed), "stop_tokens": [], "max_tokens": 40, "grammar": grammar}
            events = []
            for event in generate(engine, engine.new_sequence(), prompt_of(seed)[:40], **options):
                events.append(event)
                num_beside += engine._driver is not None
            answers.append(events)
        assert answers[0] == answers[1]
    assert num_beside


def test_what_is_given_up_in_another_thread_is_let_go_safely(beside: NativeEngine) -> None:
    sequence = beside.new_sequence()
    for count in range(1, 40):
        beside.begin([(sequence, [count] * (CONTEXT_LENGTH - 2))]).abandon()
        fork = beside.fork(sequence) if count % 2 else sequence
        assert np.array_equal(beside.step([(fork, [count])])[0], fresh([count])[-1])
        beside.rollback(fork, 1)


def test_an_engine_may_go_while_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_WORTH_A_THREAD_S", 0.0)
    for _ in range(20):
        engine = NativeEngine(compressed_bundle(), num_threads=2)
        engine.costs.record(1, 1.0)
        pending = engine.begin([(engine.new_sequence(), prompt_of(3))])
        del engine, pending
        gc.collect()  # they know each other; which of them goes first is not for us to say


def test_forks_of_a_sequence_that_others_step_on(beside: NativeEngine) -> None:
    """Pages are shared between threads: some fork and free what others write to."""
    base = prompt_of(2) * 2
    origin = beside.new_sequence()
    beside.step([(origin, base[:70])])

    def branch(seed: int) -> None:
        for turn in range(15):
            sequence = beside.fork(origin, 70 - turn % 7)
            tokens = [seed, turn, 5]
            begun = beside.begin([(sequence, tokens)])
            assert np.array_equal(begun.result()[0], fresh([*base[: 70 - turn % 7], *tokens])[-1])
            beside.close(sequence)

    in_threads(*(lambda seed=seed: branch(seed) for seed in range(4)))


class Steps(RuleBasedStateMachine):
    """Steps that begin, end in several threads at once and in any order, or are given up, between other operations."""

    sequences: Bundle[Sequence] = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.engine = NativeEngine(compressed_bundle(), num_threads=1)
        self.held: dict[Sequence, list[int]] = {}
        self.begun: dict[Sequence, tuple[Pending, list[int], bool]] = {}

    @rule(target=sequences)
    def make(self) -> Sequence:
        sequence = self.engine.new_sequence()
        self.held[sequence] = []
        return sequence

    @rule(sequence=sequences, tokens=st.lists(st.integers(0, 200), min_size=1, max_size=40), every=st.booleans())
    def begin(self, sequence: Sequence, tokens: list[int], every: bool) -> None:
        if len(self.held[sequence]) + len(tokens) > CONTEXT_LENGTH:
            return
        if sequence in self.begun:
            with pytest.raises(SequenceError):
                self.engine.begin([(sequence, tokens)])
        else:
            pending = self.engine.begin([(sequence, tokens)], "all" if every else "last")
            self.begun[sequence] = (pending, tokens, every)

    def finish(self, sequence: Sequence, pending: Pending, tokens: list[int], every: bool) -> None:
        (found,) = pending.result()
        expected = fresh(self.held[sequence] + tokens)
        assert np.array_equal(found, expected[-len(tokens) :] if every else expected[-1])
        self.held[sequence] = self.held[sequence] + tokens

    @rule(data=st.data())
    def end_some(self, data: st.DataObject) -> None:
        if self.begun:
            chosen = data.draw(st.lists(st.sampled_from(sorted(self.begun, key=id)), unique=True, max_size=4))
            in_threads(*[partial(self.finish, sequence, *self.begun.pop(sequence)) for sequence in chosen])

    @rule(sequence=sequences)
    def give_up(self, sequence: Sequence) -> None:
        if sequence in self.begun:
            self.begun.pop(sequence)[0].abandon()

    @rule(sequence=sequences, share=st.floats(0, 1))
    def roll_back(self, sequence: Sequence, share: float) -> None:
        count = int(share * len(self.held[sequence]))
        if sequence in self.begun:
            with pytest.raises(SequenceError):
                self.engine.rollback(sequence, count)
        else:
            self.engine.rollback(sequence, count)
            self.held[sequence] = self.held[sequence][: len(self.held[sequence]) - count]

    @rule(target=sequences, sequence=sequences)
    def fork(self, sequence: Sequence) -> object:
        if sequence in self.begun:
            return multiple()
        fork = self.engine.fork(sequence)
        self.held[fork] = list(self.held[sequence])
        return fork

    @rule(sequence=consumes(sequences))
    def close(self, sequence: Sequence) -> None:
        if sequence in self.begun:
            self.begun.pop(sequence)[0].abandon()
        self.engine.close(sequence)
        del self.held[sequence]

    def teardown(self) -> None:
        for sequence, (pending, tokens, every) in self.begun.items():
            self.finish(sequence, pending, tokens, every)
        for sequence, tokens in self.held.items():
            assert list(sequence.tokens) == tokens


TestSteps = Steps.TestCase
TestSteps.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


ENDING = """
import threading
from native_bundles import compressed_bundle
from openafm.runtime.batching import scheduler
from openafm.runtime.native.engine import NativeEngine

scheduler._WORTH_A_THREAD_S = 0.0
engine, other = (NativeEngine(compressed_bundle(), num_threads=2) for _ in range(2))
engine.costs.record(1, 1.0)
begun = engine.begin([(engine.new_sequence(), [1] * 90)])
stepped = threading.Event()

def steps():
    while True:
        other.step([(other.new_sequence(), [1] * 90)])
        stepped.set()

threading.Thread(target=steps, daemon=True).start()
stepped.wait()
"""


def test_a_process_may_end_while_it_computes() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([sys.executable, "-c", ENDING], check=True, env=environment, timeout=120)


def test_a_step_that_nobody_knows_of_is_over_before_the_next() -> None:
    """As when its caller is interrupted just behind its beginning."""
    tokens, engine = [1, 2, 3], NativeEngine(compressed_bundle(), num_threads=1)
    other = engine.new_sequence()
    job = Job(other, engine._cache_of(other), array("i", [5] * 90), wants_all=False)
    wait = engine._start([job.chunk(Request(engine, is_awaited=False), 90)])
    assert wait is not None
    (logits_V,) = engine.step([(engine.new_sequence(), tokens)])
    assert (logits_V == fresh(tokens)[-1]).all()
    assert engine._driver is not None
    assert not engine._driver._used
