"""Traces for chrome://tracing and ui.perfetto.dev: slices of time in named rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openafm.core.files import write_json


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A span of time in a row. Times are in seconds; slices of one row must be disjoint or nested."""

    row: str
    name: str
    start: float
    stop: float
    arguments: Mapping[str, Any] = field(default_factory=dict)


def write_chrome_trace(slices: Iterable[Slice], path: Path) -> None:
    """Write slices as JSON. The rows are sorted by name, and times begin at the first slice.

    Raises:
        OSError: the file cannot be written.
    """
    slices = list(slices)
    first = min((each.start for each in slices), default=0.0)
    rows = {row: number for number, row in enumerate(sorted({each.row for each in slices}))}
    events: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": number, "args": {"name": row}} for row, number in rows.items()
    ]
    events += [
        {
            "name": each.name,
            "ph": "X",
            "pid": 0,
            "tid": rows[each.row],
            "ts": round(1e6 * (each.start - first)),
            "dur": round(1e6 * (each.stop - each.start)),
            "args": dict(each.arguments),
        }
        for each in slices
    ]
    write_json(path, {"traceEvents": events, "displayTimeUnit": "ms"})
