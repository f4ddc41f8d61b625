"""Tools from elsewhere and for others: `fm.tools.from_mcp`, `fm.tools.serve_mcp`.

    python -m openafm.tools my_module:tools

serves a module's list of tools over MCP, on standard input and output.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from openafm.core.errors import OpenAFMError, UsageError
from openafm.framework.tools.mcp import McpError, McpToolError, from_mcp, serve_mcp, serve_mcp_stdio
from openafm.framework.tools.tool import Tool, by_name

__all__ = ["McpError", "McpToolError", "from_mcp", "serve_mcp", "serve_mcp_stdio"]


def load_tools(place: str) -> Sequence[Tool]:
    """The tools that `module:name` names: a list of them, or one.

    Raises:
        UsageError: there is no such thing, or it is something else.
    """
    module, _, name = place.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"no tools at '{place}' ({error}); expected a list of tools as module:name") from error
    tools = [found] if isinstance(found, Tool) else found
    try:
        by_name(tools)
    except (TypeError, ValueError) as error:
        raise UsageError(f"'{place}' is not a list of tools: {error}") from error
    return tools


def main(arguments: Sequence[str]) -> int:
    """Serve until the other side hangs up; 2 when called wrongly."""
    try:
        if len(arguments) != 1:
            raise UsageError("usage: python -m openafm.tools module:tools")
        serve_mcp_stdio(load_tools(arguments[0]))
    except OpenAFMError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.path.insert(0, "")  # modules of the current folder, as `python -m` finds them
    sys.exit(main(sys.argv[1:]))
