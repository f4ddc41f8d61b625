"""Streaming: partial values of a typed response while the event loop runs, and a stream that is closed early.

python examples/streaming.py
"""

from __future__ import annotations

import asyncio

import openafm as fm


@fm.generable
class Recipe:
    title: str = fm.guide(regex=r"[A-Z][a-z]{2,10}( [a-z]{2,10}){1,3}")
    minutes: int = fm.guide(range=(5, 120))
    ingredients: list[str] = fm.guide(count=3, element=fm.GenerationGuide.regex("[a-z]{3,12}"))


class Ticker:
    """Other work of the event loop."""

    ticks = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            self.ticks += 1


async def main() -> None:
    session = fm.LanguageModelSession("You write recipes.")
    ticker = Ticker()
    ticking = asyncio.create_task(ticker.run())
    async for snapshot in session.stream_response("A soup for autumn", generating=Recipe):
        print(snapshot.content)
    ticking.cancel()
    print("the event loop was not blocked:", ticker.ticks > 0)

    num_entries = len(session.transcript)
    async with session.stream_response("And a dessert", generating=Recipe) as stream:
        async for snapshot in stream:
            print("closed after:", snapshot.content)
            break
    assert len(session.transcript) == num_entries
    print("the session is unchanged, with", num_entries, "entries")


if __name__ == "__main__":
    asyncio.run(main())
