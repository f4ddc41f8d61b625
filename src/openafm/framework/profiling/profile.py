"""`profile`: record what the sessions of a block do, and write it as a page, a trace or spans."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from openafm.core.files import atomic_file
from openafm.framework.profiling.recorder import Recording
from openafm.framework.profiling.spans import Trace

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


class ContentWarning(UserWarning):
    """A profile records the texts of prompts, answers and tools."""


class Profile:
    """Record the requests of all sessions in this process while the block runs.

    Args:
        content: True also records the texts of prompts, answers and tools.
    """

    def __init__(self, *, content: bool = False) -> None:
        if content:
            warnings.warn(
                "this profile records prompts, answers and tool outputs; its files contain them",
                ContentWarning,
                stacklevel=3,
            )
        self._recording = Recording(has_content=content)

    def __enter__(self) -> Self:
        self._recording.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._recording.stop()

    @property
    def trace(self) -> Trace:
        """The spans so far, also while the block runs."""
        from openafm.training.observability.metrics import peak_memory_mb

        stop = self._recording.stopped or time.perf_counter()
        return Trace(
            started_at=self._recording.started_at,
            seconds=stop - self._recording.started,
            sessions=self._recording.sessions(),
            has_content=self._recording.has_content,
            peak_memory_mb=peak_memory_mb(),
        )

    def __str__(self) -> str:
        from openafm.framework.profiling.tree import tree_text

        return tree_text(self.trace)

    def to_json(self) -> str:
        """Return the trace as JSON."""
        return json.dumps(self.trace.to_dict(), ensure_ascii=False, indent=1)

    def save_page(self, path: str | Path) -> None:
        """Write a page with lanes, tree and inspector. It is one file and loads nothing.

        Raises:
            OSError: the file cannot be written.
        """
        from openafm.framework.profiling.page import page_text

        with atomic_file(Path(path)) as file:
            file.write(page_text(self.trace).encode())

    def save_chrome_trace(self, path: str | Path) -> None:
        """Write the spans for chrome://tracing and ui.perfetto.dev.

        Raises:
            OSError: the file cannot be written.
        """
        from openafm.core.chrome_trace import write_chrome_trace
        from openafm.framework.profiling.chrome import slices

        write_chrome_trace(slices(self.trace), Path(path))

    def export(self, provider: TracerProvider) -> None:
        """Pass the spans to your OpenTelemetry provider, named by its conventions for generative AI.

        Nothing is sent unless the provider has an exporter that sends. Needs openafm's extra `trace`.
        """
        from openafm.framework.profiling.telemetry import export_spans

        export_spans(self.trace, provider)


def profile(*, content: bool = False) -> Profile:
    """Return a context manager that records the requests of all sessions in this process: `with fm.profile() as profile:`.

    Threads, event loops, tools and endpoints are recorded alike. `print(profile)` shows the tree, `profile.save_page(path)`
    writes a page. Prompts and answers are recorded only with `content=True`, after a warning.
    """
    return Profile(content=content)
