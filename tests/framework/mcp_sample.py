"""Tools that a separate process serves."""

import openafm as fm


@fm.tool
def shout(text: str) -> str:
    """Convert to upper case."""
    return text.upper() + "!"


tools = [shout]
