"""The server of tool-use annotation."""
