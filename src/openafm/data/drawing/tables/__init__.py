"""Tables: drawn from data by Pillow, or taken from HTML pages; the truth is a Markdown table (report 3.2.3)."""

from openafm.data.drawing.tables.config import TablesConfig

__all__ = ["TablesConfig"]
