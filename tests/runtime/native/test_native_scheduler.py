"""Threads that share a native engine get bit-identical results to a single thread."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, multiple, rule
from native_bundles import CONTEXT_LENGTH, compressed_bundle
from tiny_runs import exit_code, in_child
from tiny_tokenizer import TOKENIZER

from openafm.runtime.batching.pending import Pending
from openafm.runtime.batching.step_costs import StepCosts
from openafm.runtime.decoding.generation import generate
from openafm.runtime.decoding.grammar import GrammarCompiler
from openafm.runtime.decoding.sampling import RandomConfig
from openafm.runtime.engines.base import Sequence, SequenceError
from openafm.runtime.native.engine import NativeEngine

TIMEOUT_S = 120


@cache
def alone() -> NativeEngine:
    return NativeEngine(compressed_bundle(), num_threads=1)


def fresh(tokens: list[int]) -> np.ndarray:
    """Return logits after every token, [N, V], of a fresh sequence."""
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
        thread.join(TIMEOUT_S)
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
def test_concurrent_sessions_answer_as_a_single_one(num_threads: int) -> None:
    engine = NativeEngine(compressed_bundle(), num_threads=num_threads)
    num_sessions, found = 6, {}
    starts = threading.Barrier(num_sessions)

    def session(number: int) -> None:
        starts.wait(TIMEOUT_S)
        found[number] = [answer(engine, 10 * number + turn) for turn in range(3)]

    in_threads(*(lambda number=number: session(number) for number in range(num_sessions)))
    for number in range(num_sessions):
        assert found[number] == [answer(alone(), 10 * number + turn) for turn in range(3)]


class SlowSteps(StepCosts):
    """Estimates a second for each row, so that steps go to the worker thread and prompts into the smallest chunks."""

    def seconds(self, num_rows: int) -> float:
        return float(num_rows)


@pytest.fixture
def beside() -> NativeEngine:
    """An engine that computes every begun step in its worker thread."""
    engine = NativeEngine(compressed_bundle(), num_threads=2)
    engine.costs = SlowSteps()
    return engine


def test_batches_form_and_give_the_same_bits(beside: NativeEngine) -> None:
    prompts = [prompt_of(seed)[:32] for seed in range(5)]
    with beside.scheduler.lock:  # the worker starts when all requests are in the queue
        begun = [beside.begin([(beside.new_sequence(), prompt)], "all") for prompt in prompts]
    for pending, prompt in zip(reversed(begun), reversed(prompts), strict=True):
        assert np.array_equal(pending.result()[0], fresh(prompt))
    assert beside.scheduler.num_steps == 1


def test_prompt_chunks_give_the_bits_of_one_step(beside: NativeEngine) -> None:
    decoding, prompted = beside.new_sequence(), beside.new_sequence()
    prompt = [token % 300 for token in range(90)]
    in_threads(lambda: beside.step([(decoding, [7])]))  # a recent decode step keeps chunks small
    (logits_V,) = beside.step([(prompted, prompt)])
    assert beside.scheduler.num_steps > 5
    assert np.array_equal(logits_V, fresh(prompt)[-1])


def test_masks_computed_during_steps_change_no_token(beside: NativeEngine) -> None:
    grammar = GrammarCompiler(TOKENIZER).json_schema(
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": 20}, "b": {"type": "integer"}}}
    )
    for seed in range(4):
        options = {"sampling": RandomConfig(seed=seed), "stop_tokens": [], "max_tokens": 40, "grammar": grammar}
        answers = [
            list(generate(engine, engine.new_sequence(), prompt_of(seed)[:40], **options)) for engine in (beside, alone())
        ]
        assert answers[0] == answers[1]


def test_abandoned_steps_free_their_sequences(beside: NativeEngine) -> None:
    sequence = beside.new_sequence()
    for count in range(1, 20):
        beside.begin([(sequence, [count] * (CONTEXT_LENGTH - 2))]).abandon()
        fork = beside.fork(sequence) if count % 2 else sequence
        assert np.array_equal(beside.step([(fork, [count])])[0], fresh([count])[-1])
        beside.rollback(fork, 1)


def test_an_engine_may_be_collected_during_a_step() -> None:
    for _ in range(3):
        engine = NativeEngine(compressed_bundle(), num_threads=2)
        engine.costs = SlowSteps()
        pending = engine.begin([(engine.new_sequence(), prompt_of(3))])
        del engine, pending
        gc.collect()


def test_threads_fork_and_step_on_shared_pages(beside: NativeEngine) -> None:
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
    """Steps that are begun, finished by several threads in any order, or abandoned, between other operations."""

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
    def abandon(self, sequence: Sequence) -> None:
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
TestSteps.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


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


@pytest.mark.long
def test_a_process_may_end_during_a_step() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    subprocess.run([sys.executable, "-c", ENDING], check=True, env=environment, timeout=120)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_an_engine_raises_in_a_forked_process_which_can_open_its_own() -> None:
    engine = NativeEngine(compressed_bundle(), num_threads=2)
    sequence = engine.new_sequence()
    engine.step([(sequence, [1, 2, 3])])

    def work() -> None:
        signal.alarm(60)
        with pytest.raises(SequenceError, match="fork"):
            engine.step([(sequence, [4])])
        own = NativeEngine(compressed_bundle(), num_threads=2)
        own.step([(own.new_sequence(), [1, 2, 3, 4])])

    assert exit_code(in_child(work)) == 0
    engine.step([(sequence, [4])])
