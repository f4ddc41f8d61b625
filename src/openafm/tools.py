"""MCP tools: `fm.tools.from_mcp` and `fm.tools.serve_mcp`.

    python -m openafm.tools my_module:tools

serves a module's list of tools over MCP on standard input and output.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from openafm.core.errors import OpenAFMError, UsageError
from openafm.framework.tools.mcp import McpError, McpToolError, from_mcp, serve_mcp, serve_mcp_stdio
from openafm.framework.tools.tool import Tool, by_name

__all__ = ["McpError", "McpToolError", "from_mcp", "serve_mcp", "serve_mcp_stdio"]


def load_tools(location: str) -> Sequence[Tool]:
    """Return the tools at `module:name`, which is a list of tools or one tool.

    Raises:
        UsageError: the module or name does not exist, or is not a list of tools.
    """
    module, _, name = location.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"no tools at '{location}' ({error}); expected a list of tools as module:name") from error
    tools = [found] if isinstance(found, Tool) else found
    try:
        by_name(tools)
    except (TypeError, ValueError) as error:
        raise UsageError(f"'{location}' is not a list of tools: {error}") from error
    return tools


def main(arguments: Sequence[str]) -> int:
    """Serve until the client disconnects. Return the exit code; 2 for a usage error."""
    try:
        if len(arguments) != 1:
            raise UsageError("usage: python -m openafm.tools module:tools")
        serve_mcp_stdio(load_tools(arguments[0]))
    except OpenAFMError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.path.insert(0, "")  # like `python -m`: modules of the current folder
    sys.exit(main(sys.argv[1:]))
