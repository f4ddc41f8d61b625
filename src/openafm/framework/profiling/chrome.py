"""A trace as slices for Chrome and Perfetto."""

from __future__ import annotations

from collections.abc import Iterator

from openafm.core.chrome_trace import Slice
from openafm.framework.profiling.spans import Span, SpanKind, Trace

_ORDER = tuple(SpanKind)


def slices(trace: Trace) -> list[Slice]:
    """Return one slice for each span. Spans of a session that overlap get rows of their own."""
    return [found for session in trace.sessions for found in _slices_of(session)]


def _slices_of(session: Span) -> Iterator[Slice]:
    for kind in _ORDER:
        ends: list[float] = []  # the end of each row
        spans = sorted((span for span in session.walk() if span.kind is kind), key=lambda span: span.start)
        for span in spans:
            row = next((number for number, end in enumerate(ends) if end <= span.start), len(ends))
            ends[row : row + 1] = [span.stop]
            number = "" if row == 0 else f" ({row + 1})"
            yield Slice(
                row=f"{session.name} {_ORDER.index(kind)} {kind.value}{number}",
                name=span.name,
                start=span.start,
                stop=span.stop,
                arguments={**span.attributes, **span.content} | ({"error": span.error} if span.error else {}),
            )
