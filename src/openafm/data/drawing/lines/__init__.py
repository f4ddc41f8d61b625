"""Lines of running text, for reading one line at a time."""

from openafm.data.drawing.lines.config import LinesConfig

__all__ = ["LinesConfig"]
