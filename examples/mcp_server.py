"""MCP: serve a tool to any client, and use it in a session as a client. Needs openafm[mcp].

python examples/mcp_server.py            # start a server process, and let the model call its tool
python examples/mcp_server.py --serve    # run the server on standard input and output: the command for a client
"""

from __future__ import annotations

import asyncio
import sys
from typing import Literal

import openafm as fm


@fm.tool
def opening_hours(day: Literal["weekday", "saturday", "sunday"]) -> str:
    """Opening hours of the library."""
    return {"weekday": "9 to 20", "saturday": "10 to 16", "sunday": "closed"}[day]


async def main() -> None:
    async with fm.tools.from_mcp([sys.executable, __file__, "--serve"]) as tools:
        print("tools of the server:", ", ".join(tool.name for tool in tools))
        session = fm.LanguageModelSession("You know the library.", tools=tools, tool_limits=fm.ToolLimits(rounds=1))
        options = fm.GenerationOptions(tool_calling_mode=fm.ToolCallingMode.REQUIRED)
        answer = await session.respond("Is it open on Sunday?", generating=Literal["yes", "no"], options=options)
        outputs = [entry.turn.text for entry in session.transcript if isinstance(entry, fm.ToolOutputEntry)]
        print("output of the tool:", outputs)
        print("answer of the model:", answer)


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        fm.tools.serve_mcp_stdio([opening_hours], name="library")
    else:
        asyncio.run(main())
