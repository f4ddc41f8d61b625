"""Charts: data first, then a drawing by matplotlib, then questions and the data as a table (report 3.2.3)."""

from openafm.data.drawing.charts.config import ChartsConfig

__all__ = ["ChartsConfig"]
