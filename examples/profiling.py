"""Profiles: what the requests of a program spend their time on, as a tree, a page and a Chrome trace.

python examples/profiling.py [page.html]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import openafm as fm
from openafm.framework.profiling.spans import SpanKind


@fm.generable
class Event:
    title: str
    time: str = fm.guide(regex=r"[0-2][0-9]:[0-5][0-9]")


@fm.tool
def weather(city: str) -> str:
    """The weather of a city."""
    return "sunny, 21 degrees"


def main() -> None:
    page = Path(sys.argv[1] if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "profile.html")
    with fm.profile() as profile:
        session = fm.LanguageModelSession("You answer briefly.", tools=[weather])
        print(session.respond_blocking("What's the weather in Rome?"))
        print(fm.LanguageModelSession().respond_blocking("Lunch with Ana at 12:30", generating=Event))
    print(profile)
    profile.save_page(page)
    profile.save_chrome_trace(page.with_suffix(".json"))
    for inference in profile.trace.spans(SpanKind.INFERENCE):
        print(f"{inference.attributes['ttft_ms']:.0f} ms to the first token, flags: {inference.flags}")
    print("wrote", page)


if __name__ == "__main__":
    main()
