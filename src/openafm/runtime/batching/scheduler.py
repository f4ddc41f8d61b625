"""The queue of an engine: requests of many threads are computed together, and each gets the same result as alone.

An engine that combines requests has a worker thread, started on first use. Callers append requests to the queue and wait;
the worker takes the next step from the queue, computes it without the lock and stores the results. Interrupting a waiting
caller therefore cannot damage a step. A request that finds the engine idle is computed in the thread of its caller, which
saves two thread switches a token. Engines that do not combine compute every request so, one at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from openafm.runtime.batching.admission import PREFILL_CHUNK, next_chunks
from openafm.runtime.batching.pending import PendingError, StepRequest, TokenChunk
from openafm.runtime.batching.step_costs import MAX_DECODE_TOKENS

if TYPE_CHECKING:
    from openafm.runtime.engines.base import Sequence

_GATHER_SHARE = 1 / 8  # of the latest step's time: limit of the wait for callers that took part in it
_RECENT_STEPS = 8  # a sequence without a request in this many steps is not expected
_WORTH_A_THREAD_S = 0.002  # shorter steps do not pay for the switch to the worker and back


class _Participant(NamedTuple):
    """A sequence in a recent step. One is made for each row of a step.

    Attributes:
        thread: the thread that made the request.
        is_decoding: the request was a decode step or a verification.
        step: number of the step.
    """

    thread: int
    is_decoding: bool
    step: int


class Scheduler:
    """The queue, the worker thread and the lock of one engine, or of several that differ in their adapters.

    Args:
        combines: compute the requests of several callers in one step and prompts in chunks. Needs an engine whose results
            do not depend on what else is in a step.

    Attributes:
        lock: guards the queue and the sequences' tokens. Reentrant, because the garbage collector may close a generation,
            which rolls back its sequence, while the thread holds it.
        computing: held during a step.
        num_steps: steps computed so far.
    """

    def __init__(self, *, combines: bool) -> None:
        self.lock = threading.RLock()
        self.num_steps = 0
        self._combines = combines
        self._queue: list[StepRequest] = []
        self._current: list[TokenChunk] = []  # the step that is being computed
        self._changed = threading.Condition(self.lock)  # the queue or the expected requests, for the worker
        self._released = threading.Condition(self.lock)
        self.computing = threading.Lock()
        self._worker: threading.Thread | None = None
        self._num_engines = 0
        self._is_stopped = False
        self._participants: dict[int, _Participant] = {}  # by id of the sequence
        self._last_seconds = 0.0
        self._gathered: dict[int, _Participant] = {}  # those that the worker waits for, by id of the sequence

    def add(self, request: StepRequest) -> None:
        """Accept a request. The caller holds the lock, and no other request holds the sequences."""
        request.hold()
        request.is_inline = not self._combines or self._is_alone(request)
        if request.is_inline:
            return
        self._queue.append(request)
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="openafm-engine", daemon=True)
            self._worker.start()
        self._arrive(request)

    def finish(self, request: StepRequest) -> list[NDArray[np.float32]]:
        """Wait for a request, append its tokens to the sequences, release them and return the logits.

        Raises:
            PendingError: the request was taken or abandoned before, or is abandoned meanwhile.
        """
        try:
            with self.lock:
                if request.is_taken or request.is_abandoned:
                    raise PendingError("the result of this step was taken or abandoned before; begin another step")
                request.is_taken = request.is_awaited = True
            if request.is_inline:
                self._compute_inline(request)
            else:
                request.wait()
            if request.error is not None:
                raise request.error
            with self.lock:
                if request.is_abandoned:
                    raise PendingError("the step was abandoned while its result was waited for; begin another step")
                for entry in request.entries:
                    entry.commit()
                self._release(request)
        except PendingError:
            raise
        except BaseException:
            self.abandon(request)
            raise
        return [entry.logits() for entry in request.entries if entry.tokens]

    def abandon(self, request: StepRequest) -> None:
        """Drop a request. Its sequences are restored and released, after the current step if that computes them."""
        request.is_abandoned = True
        with self.lock:
            if not self._is_current(request):
                self._end(request)

    def wait_for_release(self, request: StepRequest) -> None:
        """Wait until the sequences of a request that is awaited or abandoned are released."""
        if request.is_abandoned:
            self.abandon(request)
        with self.lock:
            while request.is_holding:
                if request.is_abandoned and not self._is_current(request):
                    self._end(request)
                else:
                    self._released.wait()

    def forget(self, sequence: Sequence) -> None:
        """Stop expecting requests for a sequence. The caller holds the lock."""
        self._participants.pop(id(sequence), None)
        if self._gathered.pop(id(sequence), None) is not None and not self._gathered:
            self._changed.notify()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Run a block while no step is computed and no request is made."""
        with self.computing, self.lock:
            yield

    def join(self) -> None:
        """Count an engine that uses the scheduler."""
        with self.lock:
            self._num_engines += 1

    def leave(self) -> None:
        """End the worker thread, once the queue is empty, if this was the last engine."""
        with self.lock:
            self._num_engines -= 1
            self._is_stopped = not self._num_engines
            self._changed.notify()

    def _work(self) -> None:
        """Worker thread: compute steps until `stop`. Holds no reference to the engine while it waits."""
        while True:
            with self.lock:
                while not self._queue:
                    if self._is_stopped:
                        return
                    self._changed.wait()
                self._gather()
            with self.computing:
                self._compute_next()

    def _compute_next(self) -> None:
        """Compute one step of the requests in the queue."""
        with self.lock:
            for request in tuple(self._queue):
                if request.is_abandoned or request.is_computed:
                    self._end(request)
            if not self._queue:
                return
            engine = self._queue[0].engine
            chunks = self._current = _by_engine(next_chunks(self._queue, engine.costs, self._do_others_decode))
        started = time.perf_counter()
        try:
            outputs = _computed(chunks)
        except BaseException as error:  # delivered to the callers
            with self.lock:
                self._current = []
                self._fail(chunks, error)
            return
        with self.lock:
            self._current = []
            self._complete(chunks, outputs, time.perf_counter() - started)

    def _complete(self, chunks: list[TokenChunk], outputs: list[NDArray[np.float32]], seconds: float) -> None:
        self.num_steps += 1
        self._last_seconds = seconds
        _record(chunks, seconds)
        for chunk, logits_NV in zip(chunks, outputs, strict=True):
            chunk.entry.store(chunk, logits_NV)
        for request in dict.fromkeys(chunk.request for chunk in chunks):
            if not request.is_computed and not request.is_abandoned:
                continue
            for entry in request.entries:
                is_decoding = len(entry.tokens) <= MAX_DECODE_TOKENS
                self._participants[id(entry.sequence)] = _Participant(request.thread, is_decoding, self.num_steps)
            self._end(request)
        if self.num_steps % _RECENT_STEPS == 0:  # older ones are expected by nothing
            oldest = self.num_steps - _RECENT_STEPS
            self._participants = {key: each for key, each in self._participants.items() if each.step >= oldest}

    def _fail(self, chunks: list[TokenChunk], error: BaseException) -> None:
        """Fail the only request of a step. Several requests are computed one by one next, so that only the cause fails."""
        requests = list(dict.fromkeys(chunk.request for chunk in chunks))
        for request in requests:
            request.runs_alone = True
            if len(requests) == 1 or request.is_abandoned:
                request.error = error
                self._end(request)

    def _end(self, request: StepRequest) -> None:
        """Take a request out of the queue and wake its caller. Idempotent."""
        if request in self._queue:
            self._queue.remove(request)
        if request.is_abandoned:
            self._release(request)
        request.end()

    def _release(self, request: StepRequest) -> None:
        request.release()
        self._released.notify_all()

    def _is_current(self, request: StepRequest) -> bool:
        return any(chunk.request is request for chunk in self._current)

    def _is_alone(self, request: StepRequest) -> bool:
        """True if nothing else is computed or expected, and the caller waits or the step is too short for the worker."""
        if self._queue or self._current:
            return False
        for each in self._participants.values():
            if each.step >= self.num_steps and each.thread != request.thread:
                return False
        if request.is_awaited:
            return True
        seconds = request.engine.costs.seconds(sum(entry.num_left for entry in request.entries))
        return seconds is None or seconds < _WORTH_A_THREAD_S

    def _compute_inline(self, request: StepRequest) -> None:
        """Compute a request in the calling thread, the dropped tokens of its sequences first."""
        with self.computing:
            while not request.is_computed and not request.is_abandoned:
                behind = [entry for entry in request.entries if entry.is_behind]
                most = PREFILL_CHUNK if behind or self._combines else request.engine.context_length
                chunks = _by_engine([entry.chunk(request, most) for entry in behind or request.entries if entry.num_left])
                try:
                    with self.lock:
                        self._current = chunks
                    started = time.perf_counter()
                    outputs = _computed(chunks)
                    with self.lock:
                        self._complete(chunks, outputs, time.perf_counter() - started)
                finally:
                    self._current = []

    def _gather(self) -> None:
        """Wait shortly for the callers of the latest step, so that sequences that decode stay one batch."""
        deadline = time.perf_counter() + _GATHER_SHARE * self._last_seconds
        self._gathered = self._absent(self.num_steps)
        while self._gathered and (left := deadline - time.perf_counter()) > 0:
            self._changed.wait(left)
        self._gathered = {}

    def _arrive(self, request: StepRequest) -> None:
        """Wake the worker for the first request of a step, and once all are there that it waits for."""
        waited = bool(self._gathered)
        for entry in request.entries:
            self._gathered.pop(id(entry.sequence), None)
        for key in [key for key, each in self._gathered.items() if each.thread == request.thread]:
            del self._gathered[key]
        if not self._gathered if waited else len(self._queue) == 1:
            self._changed.notify()

    def _do_others_decode(self) -> bool:
        return any(each.is_decoding for each in self._absent(self.num_steps - _RECENT_STEPS).values())

    def _absent(self, since: int) -> dict[int, _Participant]:
        """Return the participants of steps from `since` on whose sequence and thread have nothing in the queue."""
        present = {id(entry.sequence) for request in self._queue for entry in request.entries}
        threads = {request.thread for request in self._queue}
        return {
            key: each
            for key, each in self._participants.items()
            if each.step >= since and key not in present and each.thread not in threads
        }


def _by_engine(chunks: list[TokenChunk]) -> list[TokenChunk]:
    """Return the chunks with those of one engine beside each other: a step reads the weights of each adapter once."""
    return sorted(chunks, key=lambda chunk: (id(chunk.engine.runner), id(chunk.engine)))


def _computed(chunks: list[TokenChunk]) -> list[NDArray[np.float32]]:
    """Return the logits of each chunk. Those of engines with the same runner are computed together."""
    outputs: list[NDArray[np.float32]] = []
    for _, together in itertools.groupby(chunks, key=lambda chunk: id(chunk.engine.runner)):
        group = list(together)
        outputs += group[0].engine.forward(group)
    return outputs


def _record(chunks: list[TokenChunk], seconds: float) -> None:
    """Record the time of a step in which every row gives logits, or of a long prefill.

    Rows without logits are cheaper, so a short prefill would bias the estimate for a verification.
    """
    num_rows, num_wanted = sum(len(chunk.tokens) for chunk in chunks), sum(chunk.num_wanted for chunk in chunks)
    if num_wanted == num_rows or num_rows > MAX_DECODE_TOKENS:
        chunks[0].request.engine.costs.record(num_rows, seconds)
