"""Progress of long tasks on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from openafm.core.terminal import escaped


class Progress(Protocol):
    """A running task. `update` sets the amount done; `note` prints a permanent line."""

    def update(self, done: float, status: str = "") -> None: ...

    def note(self, line: str) -> None: ...


@contextmanager
def progress(title: str, total: float, stream: TextIO | None = None) -> Iterator[Progress]:
    """Show a task of `total` units on `stream` (standard error by default) while the block runs."""
    stream = stream or sys.stderr
    if stream.isatty():
        with _terminal_bar(title, total, stream) as bar:
            yield bar
    else:
        yield PlainProgress(title, total, stream)


class PlainProgress:
    """Print a line at the start, at most one every `interval_s` seconds, and one at the end."""

    def __init__(self, title: str, total: float, stream: TextIO, interval_s: float = 10.0) -> None:
        self._title, self._total, self._stream, self._interval_s = title, total, stream, interval_s
        self._last_s, self._is_complete = time.monotonic(), False
        self.note(f"{title}: started")

    def update(self, done: float, status: str = "") -> None:
        now_s = time.monotonic()
        if self._is_complete or (done < self._total and now_s - self._last_s < self._interval_s):
            return
        self._last_s, self._is_complete = now_s, done >= self._total
        share = 100 * done / self._total if self._total else 100
        self.note(f"{self._title}: {share:.0f}%{' ' + status if status else ''}")

    def note(self, line: str) -> None:
        print(escaped(line), file=self._stream, flush=True)


@contextmanager
def _terminal_bar(title: str, total: float, stream: TextIO) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[status]}"),
    )
    with RichProgress(*columns, console=Console(file=stream)) as rich_progress:
        task = rich_progress.add_task(title, total=total, status="")

        class Bar:
            def update(self, done: float, status: str = "") -> None:
                rich_progress.update(task, completed=done, status=status)

            def note(self, line: str) -> None:
                rich_progress.console.print(escaped(line), highlight=False, markup=False)

        yield Bar()
