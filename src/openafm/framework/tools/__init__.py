"""Tools: functions and MCP servers that a model may call (report 7)."""
