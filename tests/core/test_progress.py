"""Progress where standard error is not a terminal: plain lines, few of them."""

from __future__ import annotations

import io

from openafm.core.progress import PlainProgress, progress


def test_plain_lines_when_not_a_terminal() -> None:
    stream = io.StringIO()
    with progress("packing", 4, stream) as bar:
        for done in range(1, 5):
            bar.update(done, f"{done} files")
        bar.note("wrote it")
    assert stream.getvalue() == "packing: started\npacking: 100% 4 files\nwrote it\n"


def test_a_line_for_every_interval() -> None:
    stream = io.StringIO()
    bar = PlainProgress("packing", 4, stream, interval_s=0.0)
    bar.update(1)
    bar.update(2, "half")
    assert stream.getvalue().splitlines() == ["packing: started", "packing: 25%", "packing: 50% half"]


def test_a_terminal_gets_a_bar() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with progress("packing", 2, stream) as bar:
        bar.update(2, "done")
        bar.note("kept")
    assert "packing" in stream.getvalue()
    assert "kept" in stream.getvalue()
