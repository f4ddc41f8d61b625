"""Spans and traces: the finished recording of a profile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class SpanKind(StrEnum):
    """What a span measures. A span contains those of later kinds."""

    SESSION = "session"
    REQUEST = "request"
    CHECK = "check"
    LOAD = "load"
    INFERENCE = "inference"
    GRAMMAR = "grammar"
    PREFILL = "prefill"
    DECODE = "decode"
    TOOL = "tool"


class Flag(StrEnum):
    """Why a span deserves a look."""

    ERROR = "error"
    LONG = "long"
    MANY_TOKENS = "many tokens"


LONG_SECONDS = {
    SpanKind.REQUEST: 10.0,
    SpanKind.LOAD: 5.0,
    SpanKind.INFERENCE: 5.0,
    SpanKind.GRAMMAR: 0.25,
    SpanKind.PREFILL: 1.0,
    SpanKind.DECODE: 5.0,
    SpanKind.TOOL: 2.0,
}
"""A span of at least this duration is flagged."""
MANY_TOKENS = 2048
"""An inference with at least this many tokens, prompt and answer together, is flagged."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """A finished span of wall time.

    Attributes:
        start: seconds since the start of the profile.
        stop: seconds since the start of the profile.
        attributes: counts, times and settings; never text of prompts, answers or tools.
        content: texts of prompts, answers and tools, if the profile records content.
        error: class name of the exception that ended the span.
    """

    kind: SpanKind
    name: str
    start: float
    stop: float
    attributes: Mapping[str, Any] = field(default_factory=dict)
    content: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None
    children: tuple[Span, ...] = ()

    @property
    def seconds(self) -> float:
        return self.stop - self.start

    @property
    def flags(self) -> tuple[Flag, ...]:
        """Reasons to look at this span."""
        num_tokens = 0
        if self.kind is SpanKind.INFERENCE:
            num_tokens = self.attributes.get("prompt_tokens", 0) + self.attributes.get("generated_tokens", 0)
        found = {
            Flag.ERROR: self.error is not None,
            Flag.LONG: self.seconds >= LONG_SECONDS.get(self.kind, float("inf")),
            Flag.MANY_TOKENS: num_tokens >= MANY_TOKENS,
        }
        return tuple(flag for flag, is_set in found.items() if is_set)

    def walk(self) -> Iterator[Span]:
        """Yield this span and all spans below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def to_dict(self) -> dict[str, Any]:
        """Return the span and its children as JSON values."""
        return {
            "kind": self.kind.value,
            "name": self.name,
            "start": self.start,
            "seconds": self.seconds,
            "attributes": dict(self.attributes),
            "content": dict(self.content),
            "error": self.error,
            "flags": [flag.value for flag in self.flags],
            "children": [child.to_dict() for child in self.children],
        }


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Hold the sessions of a profile. Requests without a session, such as those of the server, share one.

    Attributes:
        started_at: start of the profile in seconds since the epoch.
        seconds: duration of the profile.
        has_content: the spans hold texts of prompts, answers and tools.
        peak_memory_mb: peak memory of the process in MiB; None where the system does not report it.
    """

    started_at: float
    seconds: float
    sessions: tuple[Span, ...]
    has_content: bool = False
    peak_memory_mb: float | None = None

    def spans(self, kind: SpanKind | None = None) -> list[Span]:
        """Return all spans, or those of one kind, by start."""
        found = [span for session in self.sessions for span in session.walk() if kind in (None, span.kind)]
        return sorted(found, key=lambda span: span.start)

    def totals(self) -> dict[str, Any]:
        """Return the headline figures: counts, time to first token, tokens per second, latency."""
        requests, inferences = self.spans(SpanKind.REQUEST), self.spans(SpanKind.INFERENCE)
        decode_s = sum(span.seconds for span in self.spans(SpanKind.DECODE))
        decoded = sum(span.attributes.get("tokens", 0) for span in self.spans(SpanKind.DECODE))
        first_ms = [span.attributes["ttft_ms"] for span in inferences if span.attributes.get("ttft_ms")]
        counts = ("prompt_tokens", "cached_tokens", "generated_tokens", "forced_tokens", "drafted_tokens", "accepted_tokens")
        return {
            "sessions": len(self.sessions),
            "requests": len(requests),
            "inferences": len(inferences),
            "tool_calls": len(self.spans(SpanKind.TOOL)),
            "errors": sum(span.error is not None for span in requests),
            "ttft_ms": _median(first_ms),
            "tokens_per_second": decoded / decode_s if decode_s else None,
            "latency_ms": _median([1000 * span.seconds for span in requests]),
            **{name: sum(span.attributes.get(name, 0) for span in inferences) for name in counts},
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the trace as JSON values."""
        return {
            "version": 1,
            "started_at": self.started_at,
            "seconds": self.seconds,
            "has_content": self.has_content,
            "peak_memory_mb": self.peak_memory_mb,
            "totals": self.totals(),
            "sessions": [session.to_dict() for session in self.sessions],
        }


def _median(values: list[float]) -> float | None:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None
