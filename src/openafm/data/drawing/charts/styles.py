"""Styles of charts: design families with colors, fonts, grids and sizes. Families are split into train and held out."""

from __future__ import annotations

import random
from dataclasses import dataclass

from openafm.data.drawing.base import Split
from openafm.data.drawing.fonts import Font

_PALETTES = {
    "tab": ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f"),
    "bold": ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000"),
    "pastel": ("#8dd3c7", "#fdb462", "#bebada", "#fb8072", "#80b1d3", "#b3de69", "#fccde5", "#bc80bd"),
    "earth": ("#8c510a", "#01665e", "#bf812d", "#35978f", "#543005", "#80cdc1", "#dfc27d", "#003c30"),
    "ocean": ("#023e8a", "#0096c7", "#48cae4", "#f77f00", "#03045e", "#90e0ef", "#d62828", "#577590"),
    "safe": ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#f0e442", "#000000"),
    "gray": ("#222222", "#777777", "#aaaaaa", "#4d4d4d", "#c8c8c8", "#5f5f5f", "#8f8f8f", "#353535"),
    "neon": ("#00e5ff", "#ff4081", "#c6ff00", "#ffab40", "#b388ff", "#69f0ae", "#ffff00", "#ff6e40"),
}


@dataclass(frozen=True)
class Design:
    """A family of styles: what its charts share."""

    background: str
    axes: str
    ink: str
    grid: str
    palettes: tuple[str, ...]
    spines: str
    """Sides that are drawn: letters of `lbrt`."""
    font_styles: tuple[str, ...] = ("sans",)


DESIGNS = {
    "plain": Design("#ffffff", "#ffffff", "#000000", "#d0d0d0", ("tab", "bold", "safe"), "lbrt"),
    "minimal": Design("#ffffff", "#ffffff", "#333333", "#eeeeee", ("tab", "ocean", "pastel"), "b"),
    "dark": Design("#1e1e1e", "#262626", "#f0f0f0", "#444444", ("neon", "pastel"), "lb"),
    "panel": Design("#ffffff", "#e8e8ee", "#222222", "#ffffff", ("tab", "bold", "earth"), ""),
    "journal": Design("#ffffff", "#ffffff", "#000000", "#bbbbbb", ("gray", "safe"), "lb", ("serif",)),
    "newspaper": Design("#fff1e5", "#fff1e5", "#33302e", "#e3d3c4", ("ocean", "earth"), "b", ("serif", "sans")),
    "pastel": Design("#fdf6ff", "#ffffff", "#4a3f55", "#eadff0", ("pastel",), "lb"),
    "slides": Design("#ffffff", "#ffffff", "#1b2a49", "#dde3ee", ("bold", "ocean"), "lb", ("sans", "display")),
    "blueprint": Design("#0b3d66", "#0b3d66", "#e8f4ff", "#2c628f", ("neon", "pastel"), "lbrt", ("mono", "sans")),
    "warm": Design("#fbf3e4", "#fffaf0", "#5b3a29", "#eddcc0", ("earth",), "lb", ("serif", "sans")),
    "terminal": Design("#101510", "#101510", "#9fef9f", "#274027", ("neon",), "lb", ("mono",)),
    "report": Design("#f4f6f8", "#ffffff", "#2d3748", "#e2e8f0", ("ocean", "tab", "safe"), "lb"),
}
HELD_OUT = ("newspaper", "blueprint", "report")
"""The designs of held-out charts."""


@dataclass(frozen=True)
class ChartStyle:
    """One style: a design with the choices made."""

    design: str
    colors: tuple[str, ...]
    font: Font
    width: int
    height: int
    size: float
    """Font size of tick labels in points, at 100 dots per inch."""
    grid: str
    """Axes with grid lines: letters of `xy`."""
    legend: str
    """`right`, `top` or `bottom`."""
    shows_values: bool
    bar_width: float
    line_width: float
    marker: str
    is_filled: bool
    title_place: str

    @property
    def look(self) -> Design:
        return DESIGNS[self.design]


def draw_design(rng: random.Random, split: Split) -> str:
    """Return the name of a design of a split."""
    return rng.choice([name for name in DESIGNS if (name in HELD_OUT) == (split == "held_out")])


def draw_style(rng: random.Random, design: str, font: Font, *, num_colors: int, shows_values: bool) -> ChartStyle:
    """Return a style of a design for a chart of a number of colors."""
    # A person cannot find the fourth gray of a legend.
    palettes = [name for name in DESIGNS[design].palettes if name != "gray" or num_colors <= 3]
    palette = list(_PALETTES[rng.choice(palettes)])
    start = rng.randrange(len(palette))
    width, height = rng.choice(((512, 384), (560, 420), (640, 400), (480, 480), (600, 500), (448, 560), (720, 420)))
    return ChartStyle(
        design=design,
        colors=tuple(palette[start:] + palette[:start]),
        font=font,
        width=width,
        height=height,
        size=rng.choice((8.0, 8.5, 9.0, 10.0)),
        grid=rng.choice(("", "y", "y", "xy")),
        legend=rng.choice(("right", "top", "bottom")),
        shows_values=shows_values,
        bar_width=rng.uniform(0.5, 0.85),
        line_width=rng.uniform(1.2, 2.8),
        marker=rng.choice(("o", "s", "^", "D", "")),
        is_filled=rng.random() < 0.7,
        title_place=rng.choice(("center", "center", "left")),
    )
