"""Recording of spans while a profile is open. Without one, every call here returns at once and nothing is stored.

The code that does the work passes recorders down: a request to its inferences, these to prefill, decoding and tools. So no
state is tied to a thread or a task, and requests of many threads and event loops are recorded side by side.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

from openafm.framework.profiling.spans import Span, SpanKind

ItemT = TypeVar("ItemT")


class SpanRecorder:
    """Record one span. As a context manager, end it with the block. This base class records nothing."""

    is_recorded = False
    """False if no profile is open. Values that are expensive to compute need not be computed then."""

    def child(self, kind: SpanKind, name: str, **attributes: Any) -> SpanRecorder:
        """Begin a span inside this one."""
        return self

    def set(self, **attributes: Any) -> None:
        """Set counts, times and settings. Text of prompts, answers and tools belongs in `set_content`."""

    def set_content(self, **texts: str) -> None:
        """Set texts, which are kept only by profiles that record content."""

    def tokens(
        self, items: Iterable[ItemT], since: float | None = None, is_token: Callable[[ItemT], bool] = lambda _: True
    ) -> Iterable[ItemT]:
        """Return the items. Record the time up to the first token as prefill, from `since` on, and the rest as decoding."""
        return items

    def end(self, error: BaseException | None = None) -> None:
        """End the span. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end(error)


NOT_RECORDED = SpanRecorder()


class Recording:
    """Collect the requests of this process from `start` to `stop`, with their texts if `has_content`."""

    def __init__(self, *, has_content: bool = False) -> None:
        self.has_content = has_content
        self._requests: list[tuple[int, _OpenSpan]] = []  # with the number of the session
        self._sessions: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._num_sessions = 0
        self.started, self.started_at = time.perf_counter(), time.time()
        self.stopped: float | None = None

    def start(self) -> None:
        """Receive the requests that begin from now on."""
        global _open
        with _lock:
            _open = (*_open, self)

    def stop(self) -> None:
        """Receive no more requests. Idempotent."""
        global _open
        with _lock:
            _open = tuple(each for each in _open if each is not self)
        self.stopped = self.stopped or time.perf_counter()

    def sessions(self) -> tuple[Span, ...]:
        """Return the sessions so far. Spans that have not ended end now."""
        now = self.stopped or time.perf_counter()
        requests: dict[int, list[Span]] = {}
        with _lock:
            begun = list(self._requests)
        for session, span in begun:
            requests.setdefault(session, []).append(span.finished(self.started, now, self.has_content))
        return tuple(
            Span(
                kind=SpanKind.SESSION,
                name=f"session {session}" if session else "requests without a session",
                start=spans[0].start,
                stop=max(span.stop for span in spans),
                children=tuple(spans),
            )
            for session, spans in requests.items()
        )

    def add(self, session: object | None, span: _OpenSpan) -> None:
        """Add a request. The caller holds the lock."""
        number = 0 if session is None else self._sessions.get(session)
        if number is None:
            self._num_sessions += 1
            number = self._sessions[session] = self._num_sessions
        self._requests.append((number, span))


def begin_request(session: object | None, name: str, **attributes: Any) -> SpanRecorder:
    """Begin a request in all open profiles. `session` groups requests; None: the request has no session."""
    if not _open:
        return NOT_RECORDED
    with _lock:
        span = _OpenSpan(SpanKind.REQUEST, name, attributes, any(recording.has_content for recording in _open))
        for recording in _open:
            recording.add(session, span)
    return span


class _OpenSpan(SpanRecorder):
    """A span that is being recorded. Threads may add children at the same time."""

    is_recorded = True

    def __init__(
        self, kind: SpanKind, name: str, attributes: dict[str, Any], keeps_content: bool, start: float | None = None
    ) -> None:
        self._kind, self._name, self._attributes = kind, name, attributes
        self._content: dict[str, str] | None = {} if keeps_content else None
        self._children: list[_OpenSpan] = []
        self._error: str | None = None
        self._start = time.perf_counter() if start is None else start
        self._stop: float | None = None

    def child(self, kind: SpanKind, name: str, **attributes: Any) -> _OpenSpan:
        return self._begin(kind, name, attributes)

    def set(self, **attributes: Any) -> None:
        self._attributes |= attributes

    def set_content(self, **texts: str) -> None:
        if self._content is not None:
            self._content |= texts

    def tokens(
        self, items: Iterable[ItemT], since: float | None = None, is_token: Callable[[ItemT], bool] = lambda _: True
    ) -> Iterator[ItemT]:
        span = self._begin(SpanKind.PREFILL, "prompt", {}, since)
        times: list[float] = []
        try:
            for item in items:
                if is_token(item):
                    times.append(time.perf_counter())
                    if len(times) == 1:
                        span.end()
                        span = self._begin(SpanKind.DECODE, "answer", {}, times[0])
                yield item
        except GeneratorExit:  # the reader has stopped; an error of its own is recorded by the span around
            raise
        except BaseException as error:
            span.end(error)
            raise
        finally:
            span.end()
            if times:
                span.set(**_gaps(times))

    def end(self, error: BaseException | None = None) -> None:
        if self._stop is None:
            self._stop = time.perf_counter()
            if error is not None:
                self._error = "Cancelled" if isinstance(error, GeneratorExit) else type(error).__name__
                self.set_content(error=str(error))

    def finished(self, origin: float, now: float, has_content: bool) -> Span:
        """Return the span with times after `origin`."""
        return Span(
            kind=self._kind,
            name=self._name,
            start=self._start - origin,
            stop=(now if self._stop is None else self._stop) - origin,
            attributes=dict(self._attributes),
            content=dict(self._content or {}) if has_content else {},
            error=self._error,
            children=tuple(child.finished(origin, now, has_content) for child in tuple(self._children)),
        )

    def _begin(self, kind: SpanKind, name: str, attributes: dict[str, Any], start: float | None = None) -> _OpenSpan:
        span = _OpenSpan(kind, name, attributes, self._content is not None, start)
        self._children.append(span)
        return span


def _gaps(times: list[float]) -> dict[str, Any]:
    """Return the number of tokens after the first, and percentiles of the time between tokens in milliseconds."""
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(times))
    if not gaps:
        return {"tokens": 0}
    quantiles = {name: gaps[math.ceil(len(gaps) * share) - 1] for name, share in (("p50", 0.5), ("p99", 0.99))}
    return {"tokens": len(gaps)} | {f"itl_{name}_ms": 1000 * gap for name, gap in quantiles.items()}


_lock = threading.Lock()
_open: tuple[Recording, ...] = ()
