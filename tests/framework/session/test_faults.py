"""Sessions under faults: dropped, garbage-collected, cancelled, edited, concurrent. Nothing leaks or mixes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_models import ScriptedModel, calls
from tiny_bundles import tiny_recovery, write_tiny_bundle

import openafm as fm
from openafm.adapters.package import AdapterAbout, write_adapter
from openafm.bundle import open_bundle
from openafm.framework.backends import loaded_model
from openafm.framework.backends.local_executor import LocalExecutor
from openafm.runtime.engines.base import Sequence
from openafm.runtime.engines.kv_cache import TorchCache
from openafm.runtime.engines.prefix_cache import PrefixCache, prefix_cache_bytes
from openafm.tokenizer.chat_template import opened

SHORT = fm.GenerationOptions(maximum_response_tokens=12)
FEW = fm.GenerationOptions(maximum_response_tokens=4)
LONG = fm.GenerationOptions(maximum_response_tokens=300)


@pytest.fixture(autouse=True)
def _nothing_leaks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check after each test that no threads, sequences or caches remain."""
    made: list[weakref.ref[Any]] = []

    def remembering(kind: type) -> Callable[..., None]:
        initialize = kind.__init__

        def remember(self: Any, *arguments: Any, **keywords: Any) -> None:
            made.append(weakref.ref(self))
            initialize(self, *arguments, **keywords)

        return remember

    for kind in (Sequence, TorchCache):
        monkeypatch.setattr(kind, "__init__", remembering(kind))
    threads = threading.active_count()
    yield
    wait_until(lambda: threading.active_count() <= threads)
    for loaded in loaded_model._loaded.values():  # cached prefixes are not leaks
        loaded.prefixes = PrefixCache(loaded.engine, prefix_cache_bytes())
    wait_until(lambda: all_gone(made))


def all_gone(references: list[weakref.ref[Any]]) -> bool:
    if any(reference() is not None for reference in references):
        gc.collect()
    return all(reference() is None for reference in references)


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


@fm.generable
class Long:
    numbers: list[int] = fm.guide(count=30, element=fm.GenerationGuide.range((10, 99)))


def sequence_of(session: fm.LanguageModelSession) -> Sequence:
    executor = session._responder._executor
    assert isinstance(executor, LocalExecutor)
    return executor._sequence


def assert_cache_is_transcript(session: fm.LanguageModelSession, model: fm.SystemLanguageModel) -> None:
    """Check that cached and pending tokens are those of the transcript."""
    executor, loaded = session._responder._executor, model.load()
    assert isinstance(executor, LocalExecutor)
    tokens = loaded.template.encode(loaded.tokenizer, opened(session.transcript.turns)).tokens
    assert [*executor._sequence.tokens, *executor._pending.tokens] == tokens


# Dropped early


def test_sessions_and_streams_dropped_early_stop_and_are_freed(slow_model: fm.SystemLanguageModel) -> None:
    async def drop(how: str) -> weakref.ref[Any]:
        session = fm.LanguageModelSession(model=slow_model)
        stream = session.stream_response("the cat", options=LONG)
        await anext(stream)
        reference = weakref.ref(sequence_of(session))
        if how == "session first":
            del session
            await anext(stream)  # the stream keeps the session alive
            del stream
        elif how == "stream first":
            del stream
            await asyncio.sleep(0)
        else:
            await stream.aclose()
        return reference

    async def run() -> None:
        for how in ("session first", "stream first", "closed"):
            reference = await drop(how)
            while reference() is not None:
                gc.collect()
                await asyncio.sleep(0.01)

    asyncio.run(run())
    assert slow_model.load().engine.num_steps < 100  # type: ignore[attr-defined]


def test_a_blocking_stream_is_freed_with_its_session(slow_model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession(model=slow_model)
    stream = session.stream_blocking("the cat", options=LONG)
    next(stream)
    reference = weakref.ref(sequence_of(session))
    del session
    next(stream)
    del stream
    wait_until(lambda: reference() is None)


def test_an_abandoned_blocking_stream_blocks_no_request(model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession(model=model)
    stream = session.stream_blocking("the cat", options=LONG)
    next(stream)
    session.cancel()
    with pytest.raises(fm.ConcurrentRequestsError):  # waiting would deadlock: only this thread can end the stream
        session.respond_blocking("the dog", options=SHORT)
    with pytest.raises(fm.GenerationCancelledError):
        list(stream)
    assert isinstance(session.respond_blocking("the dog", options=SHORT), str)


def test_a_loop_that_ends_during_a_stream(slow_model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession("Be brief.", slow_model)

    async def leave_it_open() -> None:
        stream = session.stream_response("the cat", options=LONG)
        await anext(stream)
        kept.append(stream)

    kept: list[Any] = []
    asyncio.run(leave_it_open())  # closes the stream
    assert len(session.transcript) == 1
    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave_it_open())
    loop.close()  # without cancelling its tasks
    kept.clear()
    gc.collect()
    wait_until(lambda: not session.is_responding)
    assert session.respond_blocking("the dog", options=SHORT)
    assert_cache_is_transcript(session, slow_model)


def test_a_loop_that_stops_while_tools_run() -> None:
    started = threading.Event()

    @fm.tool
    async def wait() -> str:
        "Wait."
        started.set()
        await asyncio.sleep(60)
        return "never"

    session = fm.LanguageModelSession(model=ScriptedModel(calls(("wait", {})), "ok"), tools=[wait])

    async def begin() -> Any:
        task = asyncio.ensure_future(session.respond("x"))
        while not started.is_set():
            await asyncio.sleep(0.01)
        return task

    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(begin())  # the loop does not run any more
    session.cancel()
    wait_until(lambda: not session.is_responding)
    assert [type(entry).__name__ for entry in session.transcript] == ["InstructionsEntry"]
    with pytest.raises(fm.GenerationCancelledError):
        loop.run_until_complete(task)
    loop.run_until_complete(asyncio.sleep(0.1))  # running tools are cancelled
    loop.close()


@pytest.mark.parametrize("when", ["at once", "while it generates", "while it waits"])
def test_cancelled_tasks(slow_model: fm.SystemLanguageModel, when: str) -> None:
    session = fm.LanguageModelSession("Be brief.", slow_model, when_busy="wait")

    async def run() -> None:
        first = asyncio.create_task(session.respond("the cat", options=SHORT))
        task = asyncio.create_task(session.respond("the mat", options=LONG))
        if when != "at once":
            await asyncio.sleep(0.05 if when == "while it waits" else 0)
        if when == "while it generates":
            await first
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await first
        await session.respond("the dog", options=SHORT)

    asyncio.run(run())
    prompts = [entry.turn.text for entry in session.transcript][1::2]
    assert prompts == ["the cat", "the dog"]
    assert_cache_is_transcript(session, slow_model)


def test_repeated_cancelling_changes_nothing(slow_model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession("Be brief.", slow_model)
    dice = random.Random(0)

    async def run() -> None:
        for number in range(15):
            task = asyncio.create_task(session.respond(f"the cat {number}", options=LONG))
            await asyncio.sleep(dice.choice((0, 0.001, 0.01, 0.06)))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert len(session.transcript) == 1
    answer = session.respond_blocking("the dog", options=SHORT)
    assert answer == fm.LanguageModelSession("Be brief.", slow_model).respond_blocking("the dog", options=SHORT)
    assert_cache_is_transcript(session, slow_model)


def test_an_interrupt_stops_running_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    started, stopped = threading.Event(), threading.Event()

    @fm.tool
    async def wait() -> str:
        "Wait."
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        return "never"

    session = fm.LanguageModelSession(model=ScriptedModel(calls(("wait", {})), "ok"), tools=[wait])
    run_tools = session._responder._runner.run

    def run_aside(made: Any, cancelled: Any) -> None:
        with contextlib.suppress(fm.GenerationCancelledError):
            run_tools(made, cancelled, None, len)

    class Interrupted:
        """Raise KeyboardInterrupt while the runner waits for the result."""

        def run(self, made: Any, cancelled: Any, *_: Any) -> Any:
            threading.Thread(target=run_aside, args=(made, cancelled)).start()
            assert started.wait(60)
            raise KeyboardInterrupt

    monkeypatch.setattr(session._responder, "_runner", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        session.respond_blocking("x")
    assert stopped.wait(60)
    assert not session.is_responding
    assert [type(entry).__name__ for entry in session.transcript] == ["InstructionsEntry"]


# Shared transcripts


def test_a_transcript_edited_by_hand(model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession("Be brief.", model)
    for prompt in ("the cat", "the mat"):
        session.respond_blocking(prompt, options=SHORT)
    wire = session.transcript.as_dict()
    entries = wire["transcript"]["entries"]
    entries[0]["contents"][0]["text"] = "Be long."
    del entries[3:]
    edited = fm.Transcript.parse(wire)
    again = fm.LanguageModelSession.from_transcript(edited, model)
    fresh = fm.LanguageModelSession.from_transcript(fm.Transcript.parse(edited.as_dict()), model)
    assert again.respond_blocking("the dog", options=SHORT) == fresh.respond_blocking("the dog", options=SHORT)
    assert again.usage.prompt_tokens == asyncio.run(model.token_count(edited)) - answer_tokens(again, model)
    assert_cache_is_transcript(again, model)
    assert len(session.transcript) == 5
    session.respond_blocking("the log", options=SHORT)
    assert_cache_is_transcript(session, model)


def answer_tokens(session: fm.LanguageModelSession, model: fm.SystemLanguageModel) -> int:
    """Return the number of tokens of the last response."""
    loaded = model.load()
    opening = len(loaded.template.generation_prompt(loaded.tokenizer))
    return len(loaded.template.encode_turn(loaded.tokenizer, session.transcript[-1].turn)) - opening


def test_sessions_that_take_turns_on_one_transcript(model: fm.SystemLanguageModel) -> None:
    first = fm.LanguageModelSession("Be brief.", model)
    first.respond_blocking("the cat", options=SHORT)
    second = fm.LanguageModelSession.from_transcript(first.transcript, model)
    for number, session in enumerate([second, first, first, second]):
        session.respond_blocking(f"the dog {number}", options=SHORT)
        assert_cache_is_transcript(session, model)
    assert len(first.transcript) == 11
    assert first.transcript is second.transcript


def test_sessions_that_write_to_one_transcript_concurrently(slow_model: fm.SystemLanguageModel) -> None:
    first = fm.LanguageModelSession("Be brief.", slow_model)
    sessions = [first, *(fm.LanguageModelSession.from_transcript(first.transcript, slow_model) for _ in range(2))]

    async def run() -> list[Any]:
        return await asyncio.gather(
            *(each.respond(f"the cat {number}", options=SHORT) for number, each in enumerate(sessions)),
            return_exceptions=True,
        )

    for num_before in (1, 3):
        outcomes = asyncio.run(run())
        assert sum(isinstance(each, str) for each in outcomes) == 1
        assert sum(isinstance(each, fm.TranscriptMutationError) for each in outcomes) == 2
        assert len(first.transcript) == num_before + 2
    for session in sessions:
        session.respond_blocking("the dog", options=SHORT)
        assert_cache_is_transcript(session, slow_model)


def test_a_transcript_that_changes_just_before_the_append(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sessions check the transcript before either appends: one of them raises."""
    barrier = threading.Barrier(2, timeout=60)

    class Late(ScriptedModel):
        def executor(self, turns: Any) -> Any:
            executor = super().executor(turns)
            answer = executor.answer

            def late(request: Any) -> Any:
                result = yield from answer(request)
                barrier.wait()
                return result

            executor.answer = late  # type: ignore[method-assign]
            return executor

    for _ in range(20):
        transcript = fm.Transcript()
        outcomes: list[str] = []

        def respond(transcript: fm.Transcript = transcript, outcomes: list[str] = outcomes) -> None:
            session = fm.LanguageModelSession.from_transcript(transcript, Late("ok"))
            try:
                outcomes.append(session.respond_blocking("x"))
            except fm.TranscriptMutationError:
                outcomes.append("refused")

        threads = [threading.Thread(target=respond) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["ok", "refused"]
        assert len(transcript) == 2


# Files that change during a session


def write_tags(path: Path, signature: str, scale: float) -> None:
    recovery = tiny_recovery()
    weights = {key: scale * weight for key, weight in recovery.weights.items()}
    shutil.rmtree(path, ignore_errors=True)
    write_adapter(path, weights=weights, config=recovery.config, base_signature=signature, name="tags", about=AdapterAbout())


def test_an_adapter_swapped_under_a_running_session(bundle_path: Path, tmp_path: Path) -> None:
    signature, path = open_bundle(bundle_path).signature, tmp_path / "tags.fmadapter"

    def model() -> fm.SystemLanguageModel:
        return fm.SystemLanguageModel(bundle=bundle_path, adapter=path)

    def answers(session: fm.LanguageModelSession, *prompts: str) -> list[str]:
        return [session.respond_blocking(prompt, options=SHORT) for prompt in prompts]

    expected = {}
    for scale in (0.5, -2.0):
        write_tags(path, signature, scale)
        expected[scale] = answers(fm.LanguageModelSession(model=model()), "the cat", "the dog")
    assert expected[0.5] != expected[-2.0]
    write_tags(path, signature, 0.5)
    running = fm.LanguageModelSession(model=model())
    assert answers(running, "the cat") == expected[0.5][:1]
    write_tags(path, signature, -2.0)
    assert answers(running, "the dog") == expected[0.5][1:]
    assert answers(fm.LanguageModelSession(model=model()), "the cat", "the dog") == expected[-2.0]
    (path / "adapter_weights.safetensors").write_bytes(b"half")
    assert len(answers(running, "the mat")) == 1
    with pytest.raises(fm.FoundationModelsError):
        fm.LanguageModelSession(model=model()).respond_blocking("the cat")
    shutil.rmtree(path)
    assert len(answers(running, "the log")) == 1


def test_a_bundle_deleted_under_a_running_session(tmp_path: Path) -> None:
    path = write_tiny_bundle(tmp_path / "gone", seed=3).path
    session = fm.LanguageModelSession(model=fm.SystemLanguageModel(bundle=path))
    session.respond_blocking("the cat", options=SHORT)
    shutil.rmtree(path)
    assert isinstance(session.respond_blocking("the dog", options=SHORT), str)
    with pytest.raises(fm.AssetsUnavailableError):
        fm.LanguageModelSession(model=fm.SystemLanguageModel(bundle=path)).respond_blocking("the cat")


# Concurrency


def test_many_threads_each_with_its_loop(model: fm.SystemLanguageModel) -> None:
    prompts = [f"the {noun} {number}" for number in range(4) for noun in ("cat", "dog", "mat", "log", "red")]
    alone = {}
    for prompt in prompts:
        session = fm.LanguageModelSession(model=model)
        alone[prompt] = [session.respond_blocking(each, options=FEW) for each in (prompt, "the end")]
    together: dict[str, list[str]] = {}
    problems: list[BaseException] = []

    async def talk(prompt: str) -> list[str]:
        session = fm.LanguageModelSession(model=model)
        answers = []
        for each in (prompt, "the end"):
            answers.append((await session.stream_response(each, options=FEW).collect()).content)
            assert answers[-1] == session.transcript[-1].turn.text
        assert_cache_is_transcript(session, model)
        return answers

    def work(prompt: str) -> None:
        try:
            together[prompt] = asyncio.run(talk(prompt))
        except BaseException as error:  # raised in the main thread
            problems.append(error)

    threads = [threading.Thread(target=work, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 200
    for thread in threads:
        thread.join(timeout=max(0.0, deadline - time.monotonic()))
    assert problems == []
    assert together == alone


def test_one_session_from_many_threads(model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession("Be brief.", model, when_busy="wait")
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda: answers.append(session.respond_blocking("the cat", options=SHORT)))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(answers) == 12
    assert [entry.turn.text for entry in session.transcript][2::2] == answers
    assert_cache_is_transcript(session, model)


def test_many_sessions_leave_no_objects(model: fm.SystemLanguageModel) -> None:
    def some(count: int) -> int:
        async def each(number: int) -> None:
            session = fm.LanguageModelSession(model=model)
            if number % 3 == 0:
                await session.respond("the cat", options=FEW)
            elif number % 3 == 1:
                async for _ in session.stream_response("the cat", options=LONG):
                    break
            else:
                with pytest.raises(fm.DecodingFailureError):
                    await session.respond("a list", Long, options=FEW)

        for number in range(count):
            asyncio.run(each(number))
        return settled_objects()

    def settled_objects() -> int:
        # A canceled answer ends in its own thread, shortly after the session.
        counts = [-1]
        for _ in range(50):
            gc.collect()
            counts.append(len(gc.get_objects()))
            if counts[-1] == counts[-2]:
                break
            time.sleep(0.1)
        return counts[-1]

    some(6)
    before = some(3)
    assert some(12) - before < 12 * 10  # a leak would keep at least ten objects per session
