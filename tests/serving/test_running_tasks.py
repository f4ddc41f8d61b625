"""Delivery of deltas from worker threads to the event loop."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable
from typing import cast

import pytest

from openafm.core.config import to_dict
from openafm.runtime.decoding.logits import TokenScore
from openafm.serving import server, service
from openafm.serving.checked_text import ScoredToken, TextDelta
from openafm.serving.config import ServerConfig
from openafm.serving.inference import Delta, Ended
from openafm.serving.inputs import EncodedInput
from openafm.serving.loop_waker import LoopWaker
from openafm.serving.models import ServedModel
from openafm.serving.service import RunningTask

ENDED = Ended(finish="stop", num_prompt=1, num_cached=0, num_generated=1, stop_text=None, first_token_s=0.0, seconds=0.0)


def batches_of(*puts: list[tuple[int, Delta]], num_choices: int = 1) -> list[list[tuple[int, Delta]]]:
    """Return the batches of an answer whose deltas arrive in these groups, each after the batch before it."""

    async def collected() -> list[list[tuple[int, Delta]]]:
        running = RunningTask(
            cast(ServedModel, None), cast(EncodedInput, None), deadline=time.monotonic() + 600, num_choices=num_choices
        )
        groups, found = list(puts), []
        for index, delta in groups.pop(0):
            running.put(index, delta)
        async with asyncio.timeout(60):
            async for batch in running.batches():
                found.append(batch)
                for index, delta in groups.pop(0) if groups else ():
                    running.put(index, delta)
        return found

    return asyncio.run(collected())


def test_texts_that_follow_an_event_at_once_are_one_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "EVENT_SECONDS", 0.05)
    later: list[tuple[int, Delta]] = [(0, TextDelta("b")), (0, TextDelta("c"))]
    assert batches_of([(0, TextDelta("a"))], later, [(0, ENDED)]) == [
        [(0, TextDelta("a"))],
        [(0, TextDelta("bc"))],
        [(0, ENDED)],
    ]


def test_events_that_are_set_together_wake_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[int]:
        loop, counts = asyncio.get_running_loop(), [0]
        wake = loop.call_soon_threadsafe

        def counted(callback: Callable[[], None]) -> None:
            counts[-1] += 1
            wake(callback)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        waker, events = LoopWaker(loop), [asyncio.Event() for _ in range(3)]
        async with asyncio.timeout(60):
            for group in (events, events[:1]):
                for event in group:
                    event.clear()
                    waker.set(event)
                await asyncio.gather(*(event.wait() for event in group))
                counts.append(0)
        return counts

    assert asyncio.run(run()) == [1, 1, 0]


def test_the_end_of_an_answer_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "EVENT_SECONDS", 600.0)  # longer than the timeout of the test
    found = batches_of([(0, TextDelta("a"))], [(0, TextDelta("b")), (0, ENDED)])
    assert found == [[(0, TextDelta("a"))], [(0, TextDelta("b")), (0, ENDED)]]


def test_texts_of_different_answers_are_not_joined_and_scores_are_kept() -> None:
    first, second = (ScoredToken(text, TokenScore(token, -1.0), ()) for token, text in enumerate((b"a", b"b")))
    group: list[tuple[int, Delta]] = [
        (0, TextDelta("a", (first,))),
        (1, TextDelta("x")),
        (0, TextDelta("b", (second,))),
        (0, ENDED),
        (1, ENDED),
    ]
    assert batches_of(group, num_choices=2) == [
        [(0, TextDelta("ab", (first, second))), (1, TextDelta("x")), (0, ENDED), (1, ENDED)]
    ]


def test_libraries_are_exempt_from_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    config = to_dict(ServerConfig(models=("nano",)))
    monkeypatch.setenv(server._CONFIG, json.dumps(config))
    try:
        server.worker_app()
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()
