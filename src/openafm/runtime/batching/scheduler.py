"""Many threads, one engine: what they ask for at the same time is computed at once, and each gets what it would get alone.

A monitor without a thread of its own. Who asks puts a request into the queue; who waits and finds the engine idle leads:
takes from the queue what makes the next step, computes it without the lock, and hands out what came of it, until its own
request is over. Then the next who waits leads. So a lone caller computes its own steps in its own thread.

Requests stay in the queue until they are over, and a cache counts a chunk only when all of it stands: a leader that dies,
at whatever place, leaves nothing that the next one cannot compute again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openafm.runtime.batching.admission import MOST_DECODED, PREFILL_CHUNK, next_chunks
from openafm.runtime.batching.pending import PendingError, Request, TokenChunk
from openafm.runtime.batching.step_costs import MOST_COUNTED

if TYPE_CHECKING:
    from openafm.runtime.engines.base import Engine, Sequence

# Logits [num_wanted, V] of each chunk, and how many seconds computing them took.
Computed: TypeAlias = tuple[list[NDArray[np.float32]], float]
_LINGER = 1 / 8  # of the last step: so long it may be waited for those who took part in it
_WORTH_A_THREAD_S = 0.002  # a step of so long may be handed to another thread
_REMEMBERED = 8  # steps after which a sequence that comes no more is none that decodes


@dataclass(slots=True)
class _Run:
    """Pieces that are being computed. `compute` may be called again where it was interrupted."""

    chunks: list[TokenChunk]
    compute: Callable[[], Computed]
    is_beside: bool = False  # it goes on in another thread, whoever waits for it

    def concerns(self, request: Request) -> bool:
        return any(chunk.request is request for chunk in self.chunks)


@dataclass(slots=True, eq=False)
class _Waiter:
    """A thread that waits for the end of a request: it leads, or sleeps on `wake` until it shall or the end has come."""

    request: Request
    wake: threading.Lock

    def rouse(self) -> None:
        if self.wake.locked():
            self.wake.release()


@dataclass(slots=True)
class _Companion:
    """A sequence that took part in a step not long ago, and the thread that asked for it."""

    thread: int
    decodes: bool
    last: int  # the number of that step


class Scheduler:
    """The queue of one engine.

    Args:
        combines: whether requests may be computed beside each other and in chunks, without a difference to their results.
            Else they are computed one by one, each in the thread that waits for it.
    """

    def __init__(self, *, combines: bool) -> None:
        self.lock = threading.RLock()  # again by one thread: a collected generation takes its tokens back anywhere
        self.num_runs = 0
        self._combines = combines
        self._queue: list[Request] = []
        self._run: _Run | None = None
        self._leader: _Waiter | None = None
        self._sleepers: list[_Waiter] = []  # who has slept longest first
        self._released = threading.Condition(self.lock)
        self._companions: dict[int, _Companion] = {}  # by id of the sequence
        self._gate: threading.Lock | None = None  # the leader waits here for those who are missing
        self._last_s = 0.0

    def add(self, request: Request, *, may_start: bool) -> None:
        """Put a request into the queue; with the lock held and its sequences free.

        `may_start`: its caller has something to do before it waits, so that computing may start beside that.
        """
        self._queue.append(request)
        self._hold(request)
        if not self._combines:
            return
        self._open_gate()
        if may_start and self._leader is None and self._run is None and not self._is_anybody_missing():
            self._start(request)

    def hold(self, request: Request) -> None:
        """Its sequences are its own until it is dropped, and nothing is computed; with the lock held and them free."""
        request.is_over = True
        self._hold(request)

    def finish(self, request: Request) -> None:
        """Wait until it is over; then its sequences have their tokens and are free.

        Raises:
            PendingError: it was taken or abandoned before, or is abandoned meanwhile.
        """
        try:
            with self.lock:
                if request.is_taken or request.is_dropped:
                    raise PendingError("the result of this step was taken or abandoned before; begin another")
                request.is_taken = request.is_awaited = True
            self._wait(request)
            if request.error is not None:
                raise request.error
            with self.lock:
                if request.is_dropped:
                    raise PendingError("this step was abandoned while its result was waited for; begin another")
                for job in request.jobs:
                    job.sequence._tokens.extend(job.tokens)
                self._release(request)
        except PendingError:
            raise
        except BaseException:
            self.drop(request)
            raise

    def drop(self, request: Request) -> None:
        """Nobody wants it any more: its sequences are as they were, and free once no step computes them."""
        request.is_dropped = True  # interrupted from here on, whoever wants its sequences does the rest
        with self.lock:
            self._sweep()
            if request.is_over:
                self._release(request)

    def wait_for_release(self, request: Request) -> None:
        """Until its sequences are free: it is awaited or dropped, so that they will be."""
        if request.is_dropped:
            self.drop(request)
        self._wait(request)
        with self.lock:
            while request.is_holding:
                if request.is_dropped:
                    self._release(request)
                else:
                    self._released.wait()

    def forget(self, sequence: Sequence) -> None:
        """It takes part in no step any more; with the lock held."""
        self._companions.pop(id(sequence), None)
        self._open_gate()

    def _wait(self, request: Request) -> None:
        """Until the request is over: sleep while another thread leads, else lead."""
        waiter = _Waiter(request, threading.Lock())
        try:
            with self.lock:
                if request.is_over:
                    return
                if self._leader is None:
                    self._leader = waiter
                else:
                    waiter.wake.acquire()
                    self._sleepers.append(waiter)
            waiter.wake.acquire()  # at once for who leads
            if self._leader is waiter:
                self._lead(request)
        finally:
            try:
                self._leave(waiter)
            except BaseException:
                self._leave(waiter)  # whatever interrupts it: were the leader's place not given up, all would sleep on
                raise

    def _lead(self, request: Request) -> None:
        """Compute what waits, step by step, until the request is over."""
        while not self._is_over(request):
            if self._combines:
                self._gather()
            with self.lock:
                if request.is_over:  # it was abandoned just now
                    return
                if self._run is None:
                    chunks = self._next_chunks(request)
                    self._run = _Run(chunks, partial(_compute, request.engine, chunks))
                run = self._run
            try:
                outputs, seconds = run.compute()
            except Exception as error:
                with self.lock:
                    self._run = None
                    _fail(run, error)
                continue
            except BaseException:
                with self.lock:
                    self._run = run if run.is_beside else None
                raise
            with self.lock:
                for chunk, logits_NV in zip(run.chunks, outputs, strict=True):
                    chunk.job.keep(chunk, logits_NV)
                self._run = None
                self._note(request.engine, run.chunks, seconds)

    def _is_over(self, request: Request) -> bool:
        with self.lock:
            self._sweep()
            return request.is_over

    def _leave(self, waiter: _Waiter) -> None:
        """It waits no more. Did it lead, then who has slept longest does. Twice is no error."""
        with self.lock:
            if waiter in self._sleepers:
                self._sleepers.remove(waiter)
            if self._leader is waiter:
                self._leader = next((sleeper for sleeper in self._sleepers if not sleeper.request.is_over), None)
            if self._leader is not None:
                self._leader.rouse()

    def _sweep(self) -> None:
        """End those of the queue that are computed, have failed or are dropped, unless a step computes them."""
        for request in tuple(self._queue):
            if self._run is not None and self._run.concerns(request):
                continue
            if request.is_over or request.is_dropped or request.error is not None or request.is_computed:
                self._end(request)

    def _end(self, request: Request) -> None:
        request.is_over = True
        if request.is_dropped:
            self._release(request)
        elif self._combines:
            for job in request.jobs:
                decodes = len(job.tokens) <= MOST_DECODED
                self._companions[id(job.sequence)] = _Companion(request.thread, decodes, self.num_runs)
        for sleeper in self._sleepers:
            if sleeper.request is request:
                sleeper.rouse()
        if request in self._queue:  # looked for at the end: interrupted before, the next one does all this again
            self._queue.remove(request)

    def _hold(self, request: Request) -> None:
        request.is_holding = True
        for job in request.jobs:
            job.sequence._holder = request

    def _release(self, request: Request) -> None:
        if request.is_holding:
            for job in request.jobs:
                job.take_back()
                job.sequence._holder = None
            request.is_holding = False
            self._released.notify_all()

    def _next_chunks(self, request: Request) -> list[TokenChunk]:
        if not self._combines:
            behind = [job for job in request.jobs if job.is_behind]
            return [job.chunk(request, PREFILL_CHUNK if behind else job.num_left) for job in behind or request.jobs]
        return next_chunks(self._queue, request.engine.costs, self._do_others_decode)

    def _do_others_decode(self) -> bool:
        """Whether some decoded not long ago that are not in the queue: other threads, with other sequences."""
        return any(companion.decodes for companion in self._absent(self.num_runs - _REMEMBERED))

    def _start(self, request: Request) -> None:
        """Begin to compute in another thread, if that is worth it."""
        self._sweep()
        chunks = self._next_chunks(request)
        expected_s = request.engine.costs.seconds(sum(len(chunk.tokens) for chunk in chunks))
        if expected_s is not None and expected_s >= _WORTH_A_THREAD_S:
            compute = request.engine._start(chunks)
            if compute is not None:
                self._run = _Run(chunks, compute, is_beside=True)

    def _note(self, engine: Engine, chunks: list[TokenChunk], seconds: float) -> None:
        self.num_runs += 1
        self._last_s = seconds
        num_rows = num_wanted = 0
        for chunk in chunks:
            num_rows += len(chunk.tokens)
            num_wanted += chunk.num_wanted
        # A row that gives no logits is cheaper, so a short prefill would spoil the estimate of a verification.
        if num_wanted == num_rows or num_rows > MOST_COUNTED:
            engine.costs.record(num_rows, seconds)
        if len(self._companions) > len(self._queue):
            before = self.num_runs - _REMEMBERED
            for key in [key for key, companion in self._companions.items() if companion.last < before]:
                del self._companions[key]

    def _is_anybody_missing(self) -> bool:
        """Whether some who took part in the last step have not come back."""
        return bool(self._absent(self.num_runs))

    def _absent(self, since: int) -> list[_Companion]:
        """Who took part in a step since that number and has nothing in the queue, neither the sequence nor the thread."""
        absent = {key: companion for key, companion in self._companions.items() if companion.last >= since}
        for request in self._queue:
            for job in request.jobs:
                absent.pop(id(job.sequence), None)
        return [c for c in absent.values() if all(c.thread != request.thread for request in self._queue)]

    def _gather(self) -> None:
        """Wait a little for those who are missing, so that many who decode stay one batch."""
        with self.lock:
            if self._run is not None or not self._is_anybody_missing():
                return
            gate = threading.Lock()
            gate.acquire()
            self._gate = gate
        gate.acquire(timeout=_LINGER * self._last_s)
        with self.lock:
            self._gate = None

    def _open_gate(self) -> None:
        if self._gate is not None and not self._is_anybody_missing():
            gate, self._gate = self._gate, None
            gate.release()


def _compute(engine: Engine, chunks: list[TokenChunk]) -> Computed:
    started = time.perf_counter()
    outputs = engine._forward(chunks)
    return outputs, time.perf_counter() - started


def _fail(run: _Run, error: Exception) -> None:
    """Of several requests each runs alone next: whose fault it was fails then, and no other."""
    first = run.chunks[0].request
    if all(chunk.request is first for chunk in run.chunks):
        first.error = error
    for chunk in run.chunks:
        chunk.request.runs_alone = True
