"""One thread for all answers of an engine: it computes their next steps together and continues each of them.

A thread for each answer would wake up for each token and compete for the interpreter with the others.
"""

from __future__ import annotations

import threading
from typing import Protocol
from weakref import WeakKeyDictionary

from openafm.runtime.batching.scheduler import Scheduler
from openafm.runtime.decoding.steps import Step, compute

IDLE_SECONDS = 5.0
"""A thread without answers ends after this time, so that it does not outlive its model for long."""


class SteppedAnswer(Protocol):
    """An answer that waits for a step between calls of `advance`."""

    def advance(self) -> Step | None:
        """Continue up to the next step. Return None at the end, also if the answer failed. Does not raise."""


class DecodeLoop:
    """Continue the answers of engines with one scheduler. Safe to share between threads."""

    def __init__(self) -> None:
        self._arrived: list[tuple[SteppedAnswer, Step]] = []
        self._changed = threading.Condition()
        self._has_thread = False
        self._is_idle = True

    def add(self, answer: SteppedAnswer, step: Step) -> None:
        """Continue an answer from its next step on."""
        with self._changed:
            self._arrived.append((answer, step))
            self._is_idle = False
            if self._has_thread:
                self._changed.notify_all()
            else:
                threading.Thread(target=self._run, name="openafm-decode", daemon=True).start()
                self._has_thread = True  # not before: if the system has no thread left, the next answer starts one

    def wait(self) -> None:
        """Wait until all answers have ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_idle or not self._has_thread)

    def _run(self) -> None:
        waiting: list[tuple[SteppedAnswer, Step]] = []
        while True:
            if self._arrived or not waiting:
                with self._changed:
                    if not waiting and not self._arrived:
                        self._is_idle = True
                        self._changed.notify_all()
                        if not self._changed.wait_for(lambda: self._arrived, IDLE_SECONDS):
                            self._has_thread = False
                            return
                    waiting += self._arrived
                    self._arrived.clear()
            compute([step for _, step in waiting])
            waiting = [(answer, step) for answer, _ in waiting if (step := answer.advance()) is not None]


class DecodeLoops:
    """The loops of a server's models, by scheduler."""

    def __init__(self) -> None:
        self._loops: WeakKeyDictionary[Scheduler, DecodeLoop] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def add(self, answer: SteppedAnswer, step: Step) -> None:
        """Continue an answer together with those of engines that share its steps."""
        with self._lock:
            loop = self._loops.setdefault(step.engine.scheduler, DecodeLoop())
        loop.add(answer, step)

    def wait(self) -> None:
        """Wait until all answers have ended."""
        with self._lock:
            loops = list(self._loops.values())
        for loop in loops:
            loop.wait()
