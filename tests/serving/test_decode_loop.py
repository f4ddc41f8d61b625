"""Answers that one thread continues together."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

import pytest
from counting_engine import BAD_TOKEN, CountingEngine, OneByOneEngine
from endpoints import wait_until

from openafm.runtime.decoding.generation import generate
from openafm.runtime.decoding.logits import LogitBias
from openafm.runtime.decoding.sampling import GreedyConfig
from openafm.runtime.decoding.steps import Step, compute
from openafm.runtime.engines.base import Engine
from openafm.serving import decode_loop
from openafm.serving.decode_loop import DecodeLoop, DecodeLoops
from openafm.serving.keys import ANONYMOUS
from openafm.serving.service import _RunningAnswer

NUM_TOKENS = 12


class Collected:
    """An answer whose tokens are collected."""

    def __init__(self, engine: Engine, prompt: list[int], **settings: Any) -> None:
        self.generation = generate(
            engine,
            engine.new_sequence(),
            prompt,
            sampling=GreedyConfig(),
            stop_tokens=(),
            processors=[LogitBias({BAD_TOKEN: -100.0})],
            **{"max_tokens": NUM_TOKENS} | settings,
        )
        self.tokens: list[int] = []
        self.error: BaseException | None = None
        self.ended = threading.Event()

    def advance(self) -> Step | None:
        try:
            for event in self.generation.with_steps():
                if isinstance(event, Step):
                    return event
                self.tokens.append(event.token)
        except MemoryError as error:
            self.error = error
        self.ended.set()
        return None


def run_together(answers: list[Collected]) -> None:
    """Prefill the answers, then add them to a loop at once, and wait for their ends."""
    loop, steps = DecodeLoop(), [answer.advance() for answer in answers]
    with loop._changed:  # the thread starts with all of them
        for answer, step in zip(answers, steps, strict=True):
            assert step is not None
            loop.add(answer, step)
    assert all(answer.ended.wait(60) for answer in answers)


def alone(prompt: list[int]) -> list[int]:
    answer = Collected(CountingEngine(), prompt)
    return [event.token for event in answer.generation]


def test_answers_together_equal_answers_alone_and_share_steps() -> None:
    engine, prompts = CountingEngine(), [[number + 1, 5, 7] for number in range(6)]
    answers = [Collected(engine, prompt) for prompt in prompts]
    run_together(answers)
    assert [answer.tokens for answer in answers] == [alone(prompt) for prompt in prompts]
    decoding = engine.steps[len(prompts) :]
    assert [len(step) for step in decoding] == [len(prompts)] * NUM_TOKENS
    assert len(set(engine.threads[len(prompts) + 1 :])) == 1  # the first step still expected the thread of the prompts


def test_answers_of_different_lengths_leave_the_steps() -> None:
    engine = CountingEngine()
    answers = [Collected(engine, [number + 1, 9], max_tokens=2 * number + 1) for number in range(4)]
    run_together(answers)
    assert [len(answer.tokens) for answer in answers] == [1, 3, 5, 7]
    sizes = [len(step) for step in engine.steps[4:]]
    assert sizes == sorted(sizes, reverse=True)


def test_a_step_that_fails_ends_its_answer_only() -> None:
    engine = CountingEngine()
    answers = [Collected(engine, [number + 1, 5, 7]) for number in range(3)]
    steps = [answer.advance() for answer in answers]
    assert all(step is not None for step in steps)
    waiting = [step for step in steps if step is not None]
    waiting[1].tokens = [BAD_TOKEN]
    compute(waiting)
    assert answers[1].advance() is None
    assert isinstance(answers[1].error, MemoryError)
    assert all(isinstance(answers[number].advance(), Step) for number in (0, 2))
    assert answers[1].generation._loop._options.sequence.length == 0  # restored


def test_a_generation_computes_its_own_steps_without_a_loop() -> None:
    answer = Collected(OneByOneEngine(), [1, 5, 7])
    assert [event.token for event in answer.generation] == alone([1, 5, 7])


def test_work_beside_a_step_runs_once_for_each_step() -> None:
    engine, calls = CountingEngine(), list[int]()
    sequences = [engine.new_sequence() for _ in range(2)]
    steps = [
        Step(engine, sequence, [number + 1], "last", None if number else lambda: calls.append(1))
        for number, sequence in enumerate(sequences)
    ]
    compute(steps)
    assert calls == [1]
    assert engine.steps == [{0: 1, 1: 1}]


def test_steps_of_one_kind_are_one_step_in_any_order() -> None:
    engine = CountingEngine()
    sequences = [engine.new_sequence() for _ in range(4)]
    compute(
        [
            Step(engine, sequence, [number + 1], "all" if number % 2 else "last", None)
            for number, sequence in enumerate(sequences)
        ]
    )
    assert engine.steps == [{0: 1, 2: 1}, {1: 1, 3: 1}]


def test_the_thread_ends_without_answers_and_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_loop, "IDLE_SECONDS", 0.01)
    engine, loops = CountingEngine(), DecodeLoops()
    for _ in range(2):
        answer = Collected(engine, [3, 5, 7])
        step = answer.advance()
        assert step is not None
        loops.add(answer, step)
        assert answer.ended.wait(60)
        assert answer.tokens == alone([3, 5, 7])
        wait_until(lambda: not any(thread.name == "openafm-decode" for thread in threading.enumerate()))


class _PanicError(BaseException):
    """As the panics of Rust libraries, which are not exceptions of type `Exception`."""


class _PanickingAnswer:
    num_computed = 3

    def parts(self) -> Generator[Step]:
        yield Step(engine := CountingEngine(), engine.new_sequence(), [1], "last", None)
        raise _PanicError("index out of bounds")


class _Delivered:
    """What a task receives."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.ended: list[int] = []

    def put(self, index: int, delta: Exception) -> None:
        self.errors.append(delta)

    def end(self, index: int) -> None:
        self.ended.append(index)


def test_a_panic_ends_its_answer_and_not_the_thread() -> None:
    delivered: Any = _Delivered()
    panicking: Any = _PanickingAnswer()
    answer = _RunningAnswer(panicking, delivered, 4, lambda ended: None, ANONYMOUS)
    assert isinstance(answer.advance(), Step)
    assert answer.advance() is None
    assert [str(error) for error in delivered.errors] == ["_PanicError('index out of bounds')"]
    assert delivered.ended == [4]


def test_a_thread_that_cannot_start_is_started_by_the_next_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, loop = CountingEngine(), DecodeLoop()
    answers = [Collected(engine, [number + 1, 5]) for number in range(2)]
    steps = [answer.advance() for answer in answers]
    assert steps[0] is not None
    assert steps[1] is not None

    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start"):
            loop.add(answers[0], steps[0])
    loop.add(answers[1], steps[1])
    assert all(answer.ended.wait(60) for answer in answers)


def test_wait_returns_after_the_last_answer() -> None:
    may_go, seen = threading.Event(), threading.Event()

    def during(step: int) -> None:
        if step == 3:
            seen.set()
            may_go.wait(60)

    loops, answer, engine = DecodeLoops(), Collected(CountingEngine(during), [1, 5]), CountingEngine()
    loops.wait()  # there is none
    step, other = answer.advance(), Collected(engine, [2, 6])
    other_step = other.advance()
    assert step is not None
    assert other_step is not None
    loops.add(answer, step)
    loops.add(other, other_step)
    assert seen.wait(60)
    waiting = threading.Thread(target=loops.wait)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    may_go.set()
    waiting.join(60)
    assert not waiting.is_alive()
    assert answer.ended.is_set()
    assert other.ended.is_set()


def test_answers_that_arrive_later_join_the_steps() -> None:
    may_go, seen = threading.Event(), threading.Event()

    def during(step: int) -> None:
        if step == 3:  # in the middle of the first answer
            seen.set()
            may_go.wait(60)

    engine = CountingEngine(during)
    loop, first, second = DecodeLoop(), Collected(engine, [1, 5]), Collected(engine, [2, 6])
    second_step = second.advance()
    first_step = first.advance()
    assert first_step is not None
    assert second_step is not None
    loop.add(first, first_step)
    assert seen.wait(60)
    loop.add(second, second_step)
    may_go.set()
    assert first.ended.wait(60)
    assert second.ended.wait(60)
    assert (first.tokens, second.tokens) == (alone([1, 5]), alone([2, 6]))
    assert any(len(step) == 2 for step in engine.steps)
