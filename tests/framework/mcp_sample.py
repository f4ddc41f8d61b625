"""Tools to serve from a process of its own."""

import openafm as fm


@fm.tool
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper() + "!"


tools = [shout]
