"""Draw a chart with matplotlib, and return its pixels with the exact box of each text and mark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from openafm.core.libraries import needed
from openafm.data.drawing.charts.kinds import KINDS, Plot
from openafm.data.drawing.charts.styles import ChartStyle
from openafm.data.drawing.data_tables import DataTable
from openafm.data.images.documents import Box, Region

if TYPE_CHECKING:
    from numpy.typing import NDArray

DPI = 100
_MARGIN = 4
_ROTATIONS = (0, 35, 90)


@dataclass(frozen=True)
class RenderedChart:
    """Pixels `[height, width, 3]`, the texts and marks, and whether texts overlap or leave the image."""

    pixels: NDArray[np.uint8]
    regions: tuple[Region, ...]
    is_legible: bool


def render_chart(kind: str, table: DataTable, style: ChartStyle, language: str, *, with_text: bool = True) -> RenderedChart:
    """Draw a chart. Without text, layout and marks are the same, and every text is left out."""
    with needed("charts", "matplotlib", "images"):
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    with matplotlib.rc_context(_settings(style)):
        figure = Figure(figsize=(style.width / DPI, style.height / DPI), dpi=DPI, facecolor=style.look.background)
        canvas: Any = FigureCanvasAgg(figure)
        plot = Plot(figure.add_subplot(projection=KINDS[kind].projection), table, style, language)
        KINDS[kind].draw(plot)
        _decorate(plot, kind)
        _set_fonts(figure, style)
        _lay_out(figure, plot, canvas)
        _fix_label_places(plot, canvas)
        texts = [text for text in _texts(figure) if text.get_visible() and text.get_text().strip()]
        for text in texts:
            text.set_visible(False)
        canvas.draw()
        plain = np.array(canvas.buffer_rgba())[..., :3]
        if not with_text:
            return RenderedChart(plain, (), True)
        found, extents = [], []
        for text in texts:
            text.set_visible(True)
            extent = text.get_window_extent(canvas.renderer)
            found.append(_ink_of(text, extent, canvas))
            extents.append((extent.x0, style.height - extent.y1, extent.x1, style.height - extent.y0))
        pixels = np.array(canvas.buffer_rgba())[..., :3]
        marks = [_mark_region(plot, row, column, patch, canvas.renderer, len(pixels)) for row, column, patch in plot.marks]
    regions = [
        Region(label=text.get_text(), box=box, kind=_role(text, plot.axes, style))
        for text, box in zip(texts, found, strict=True)
        if box is not None
    ]
    is_legible = None not in found and _are_apart([box for box in found if box]) and _are_inside(extents, pixels)
    return RenderedChart(pixels, (*regions, *(mark for mark in marks if mark)), is_legible)


def _settings(style: ChartStyle) -> Any:
    look = style.look
    return {
        "axes.facecolor": look.axes,
        "axes.edgecolor": look.ink,
        "axes.labelcolor": look.ink,
        "axes.titlecolor": look.ink,
        "axes.labelsize": style.size + 1,
        "axes.titlesize": style.size + 4,
        "axes.unicode_minus": True,
        "axes.axisbelow": True,
        "font.size": style.size,
        "grid.color": look.grid,
        "grid.linewidth": 0.7,
        "legend.fontsize": style.size,
        "legend.title_fontsize": style.size,
        "legend.facecolor": look.background,
        "legend.edgecolor": look.grid,
        "legend.labelcolor": look.ink,
        "text.color": look.ink,
        "text.parse_math": False,
        "xtick.color": look.ink,
        "xtick.labelsize": style.size,
        "ytick.color": look.ink,
        "ytick.labelsize": style.size,
    }


def _decorate(plot: Plot, kind: str) -> None:
    """Add the title, grid, spines and legend."""
    axes, style = plot.axes, plot.style
    # A fixed height: matplotlib would move the title each time it is drawn invisible.
    axes.set_title(plot.table.title, loc=style.title_place, y=1.0, pad=24 if kind == "radar" else 8)
    if KINDS[kind].projection == "rectilinear":
        for side, letter in (("left", "l"), ("right", "r"), ("top", "t"), ("bottom", "b")):
            axes.spines[side].set_visible(letter in style.look.spines)
        if kind not in ("heat_map", "pie", "donut"):
            for axis in style.grid:
                axes.grid(visible=True, axis=axis)
    else:
        axes.grid(color=style.look.grid)
    if kind in ("pie", "donut"):
        if style.legend == "right":
            axes.legend(title=plot.table.dimension, loc="center left", bbox_to_anchor=(1.15, 0.5))
        elif kind == "donut":
            axes.text(0, 0, plot.table.dimension, ha="center", va="center")
    elif len(plot.table.columns) > 1 and kind in ("grouped_bar", "stacked_bar", "line", "step", "area", "radar"):
        count = min(len(plot.table.columns), 3)
        match style.legend:
            case "right":
                axes.legend(loc="upper left", bbox_to_anchor=(1.12 if kind == "radar" else 1.02, 1))
            case _:  # below the axis label; the title stays free
                axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=count)


def _texts(figure: Any) -> list[Any]:
    from matplotlib.text import Text

    return list(figure.findobj(Text))


def _set_fonts(figure: Any, style: ChartStyle) -> None:
    from matplotlib import font_manager

    font_path = getattr(font_manager, "FontPath", None)  # from matplotlib 3.11; earlier ones read the first face of a file
    path = font_path(style.font.path, style.font.index) if font_path else style.font.path
    for text in _texts(figure):
        size = text.get_fontsize()
        text.set_fontproperties(font_manager.FontProperties(fname=path, size=size))


def _lay_out(figure: Any, plot: Plot, canvas: Any) -> None:
    """Fit the axes into the figure; turn the labels of the x axis if they touch each other."""
    labels = [label for label in plot.axes.get_xticklabels() if label.get_text()]
    for rotation in _ROTATIONS:
        if rotation:
            for each in labels:
                each.set(
                    rotation=rotation,
                    ha="right" if rotation < 90 else "center",
                    rotation_mode="anchor" if rotation < 90 else None,
                )
        figure.tight_layout(pad=0.8)
        if plot.axes.name == "polar" or _are_apart(
            [each.get_window_extent(canvas.get_renderer()).extents for each in labels], 3
        ):
            return


def _fix_label_places(plot: Plot, canvas: Any) -> None:
    """Keep the labels of the axes at their places; matplotlib moves them when tick labels become invisible."""
    for axis in (plot.axes.xaxis, plot.axes.yaxis):
        axis.get_tightbbox(canvas.get_renderer())
        axis.set_label_coords(*axis.label.get_position(), transform=axis.label.get_transform())


def _ink_of(text: Any, extent: Any, canvas: Any) -> Box | None:
    """Draw a text and return the box of the pixels that it changes; None if there are none."""
    buffer = np.asarray(canvas.buffer_rgba())
    height, width, _ = buffer.shape
    left, right = max(int(extent.x0) - _MARGIN, 0), min(int(extent.x1) + _MARGIN + 1, width)
    top, bottom = max(int(height - extent.y1) - _MARGIN, 0), min(int(height - extent.y0) + _MARGIN + 1, height)
    before = buffer[top:bottom, left:right].copy()
    text.draw(canvas.renderer)
    ink = np.any(buffer[top:bottom, left:right] != before, axis=2)
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    if not len(rows):
        return None
    return (float(left + columns[0]), float(top + rows[0]), float(left + columns[-1] + 1), float(top + rows[-1] + 1))


def _mark_region(plot: Plot, row: int, column: int, patch: Any, renderer: Any, height: int) -> Region | None:
    extent = patch.get_window_extent(renderer)
    corners = (extent.x0, height - extent.y1, extent.x1, height - extent.y0)
    left, top, right, bottom = (round(float(value), 2) for value in corners)
    name = plot.table.rows[row]
    if len(plot.table.columns) > 1:
        name = f"{name}, {plot.table.columns[column]}"
    return (
        Region(label=name, box=(left, top, right, bottom), kind="mark") if extent.width >= 1 and extent.height >= 1 else None
    )


def _role(text: Any, axes: Any, style: ChartStyle) -> str:
    if text in (axes.title, axes._left_title):
        return "title"
    if text in (axes.xaxis.label, axes.yaxis.label):
        return "axis"
    return "value" if text.get_fontsize() < style.size else "label"


def _are_apart(boxes: list[Any], gap: float = 0) -> bool:
    """True if no two boxes overlap or come closer than a gap."""
    if len(boxes) < 2:
        return True
    left, top, right, bottom = np.array(boxes, dtype=float).T
    across = (left[:, None] < right[None] + gap) & (left[None] < right[:, None] + gap)
    down = (top[:, None] < bottom[None] + gap) & (top[None] < bottom[:, None] + gap)
    return int((across & down).sum()) == len(boxes)


def _are_inside(extents: list[tuple[float, float, float, float]], pixels: NDArray[np.uint8]) -> bool:
    height, width, _ = pixels.shape
    return all(left >= 0 and top >= 0 and right <= width and bottom <= height for left, top, right, bottom in extents)
