"""Streaming: a typed response as it is written, while the event loop goes on; and a stream that is left half-way.

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


async def tick(every_seconds: float) -> None:
    """Something else that the event loop does meanwhile."""
    while True:
        await asyncio.sleep(every_seconds)
        print("  tick")


async def main() -> None:
    session = fm.LanguageModelSession("You write recipes.")
    ticker = asyncio.create_task(tick(0.05))
    async for snapshot in session.stream_response("A soup for autumn", generating=Recipe):
        print(snapshot.content)
    ticker.cancel()

    num_entries = len(session.transcript)
    async with session.stream_response("And a dessert", generating=Recipe) as stream:
        async for snapshot in stream:
            print("enough:", snapshot.content)
            break
    assert len(session.transcript) == num_entries
    print("the session is as before, with", num_entries, "entries")


if __name__ == "__main__":
    asyncio.run(main())
