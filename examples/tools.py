"""Tools: functions that the model calls while it answers. Calls of one answer run concurrently.

python examples/tools.py
"""

from __future__ import annotations

import asyncio
from typing import Literal

import openafm as fm

City = Literal["Rome", "Oslo", "Lima"]


@fm.tool
async def weather(city: City) -> dict[str, object]:
    """The weather of a city today.

    Args:
        city: Where to look.
    """
    await asyncio.sleep(0.1)  # stands for a request to a weather service
    return {"city": city, "sky": {"Rome": "clear", "Oslo": "snow", "Lima": "fog"}[city]}


@fm.tool
def packing_list(sky: Literal["clear", "rain", "snow", "fog"]) -> str:
    """What to pack for some weather."""
    return {"clear": "sunglasses", "rain": "umbrella", "snow": "boots", "fog": "lamp"}[sky]


@fm.generable
class Advice:
    umbrella: bool
    boots: bool


async def main() -> None:
    limits = fm.ToolLimits(rounds=2, call_seconds=5)
    session = fm.LanguageModelSession("Help travellers pack.", tools=[weather, packing_list], tool_limits=limits)
    options = fm.GenerationOptions(tool_calling_mode=fm.ToolCallingMode.REQUIRED)
    advice = await session.respond("What do I need in Oslo?", generating=Advice, options=options)
    for entry in session.transcript:
        if isinstance(entry, fm.ToolCallsEntry):
            print("calls", ", ".join(f"{call.name}({call.arguments})" for call in entry.turn.tool_calls))
        if isinstance(entry, fm.ToolOutputEntry):
            print(" ", entry.turn.name, "returned", entry.turn.text)
    print(advice)


if __name__ == "__main__":
    asyncio.run(main())
