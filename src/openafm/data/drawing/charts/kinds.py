"""The kinds of charts: which data each one needs, and how matplotlib draws it.

A function draws a table into axes and sets every tick itself, so that all tick labels are inside the axes and in the
language. It returns the marks whose size or position shows a value, as patches of known row and column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from openafm.data.drawing.charts.styles import ChartStyle
from openafm.data.drawing.data_tables import DataTable
from openafm.data.drawing.phrases import write_number

Mark = tuple[int, int, Any]
"""Row, column and the patch that shows the value."""


@dataclass(frozen=True)
class Plot:
    """What a kind draws into: axes, data, style and language."""

    axes: Any
    table: DataTable
    style: ChartStyle
    language: str
    marks: list[Mark] = field(default_factory=list)

    def color(self, index: int) -> str:
        return self.style.colors[index % len(self.style.colors)]

    def numbers(self, column: int) -> list[float]:
        return [float(value) for value in self.table.column(column)]

    def text(self, value: Decimal | float) -> str:
        """Return a number as the language writes it."""
        return write_number(self.language, value if isinstance(value, Decimal) else _short(value))

    def annotate(
        self, x: float, y: float, text: str, *, dx: float = 0, dy: float = 0, ha: str = "center", va: str = "center"
    ) -> None:
        """Write a text beside a point, `dx` and `dy` points away."""
        self.axes.annotate(
            text, (x, y), (dx, dy), textcoords="offset points", ha=ha, va=va, size=0.85 * self.style.size,
            color=self.style.look.ink, annotation_clip=False,
        )  # fmt: skip


@dataclass(frozen=True)
class ChartKind:
    """The data that a kind needs, and the function that draws it."""

    draw: Callable[[Plot], None]
    num_rows: tuple[int, int]
    num_columns: tuple[int, int] = (1, 1)
    is_timed: bool | None = None
    is_signed: bool = False
    is_ratio: bool = False
    values: str = "choice"
    """Whether numbers are written at the marks: `always`, `never` or by `choice`."""
    data: str = "measure"
    """`measure`: one measure, a column for each series. Else `points`, `bins`, `quartiles`, `steps`."""
    projection: str = "rectilinear"
    is_horizontal: bool = False


def ticks_of(low: float, high: float, count: int = 6) -> list[float]:
    """Return round tick positions inside a range."""
    from matplotlib.ticker import MaxNLocator

    slack = 1e-9 * (high - low)
    return [float(tick) for tick in MaxNLocator(count).tick_values(low, high) if low - slack <= tick <= high + slack]


def _short(number: float) -> Decimal:
    """Return a tick position without trailing zeros."""
    value = Decimal(repr(round(number, 6))).normalize()
    return value.quantize(Decimal(1)) if int(value.as_tuple().exponent) > 0 else value


def set_value_axis(plot: Plot, low: float, high: float, *, is_x: bool = False, from_zero: bool = True) -> None:
    """Set limits and localized ticks of a value axis, with room for the labels of values."""
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    room = 0.1 * ((high - low) or 1.0)
    low, high = low - (room if low < 0 or not from_zero else 0.0), high + room
    ticks = ticks_of(low, high)
    (plot.axes.set_xlim if is_x else plot.axes.set_ylim)(low, high)
    (plot.axes.set_xticks if is_x else plot.axes.set_yticks)(ticks, [plot.text(tick) for tick in ticks])


def set_names(plot: Plot, names: Sequence[str], *, is_y: bool = False) -> None:
    """Put names at 0, 1, 2, ... of an axis."""
    (plot.axes.set_yticks if is_y else plot.axes.set_xticks)(range(len(names)), names)
    if is_y:
        plot.axes.set_ylim(len(names) - 0.5, -0.5)
    else:
        plot.axes.set_xlim(-0.5, len(names) - 0.5)


def name_axes(plot: Plot, x: str, y: str) -> None:
    plot.axes.set_xlabel(x)
    plot.axes.set_ylabel(y)


def bar(plot: Plot) -> None:
    numbers = plot.numbers(0)
    single = plot.style.is_filled
    colors = [plot.color(0 if single else index) for index in range(len(numbers))]
    for index, patch in enumerate(plot.axes.bar(range(len(numbers)), numbers, plot.style.bar_width, color=colors, zorder=2)):
        plot.marks.append((index, 0, patch))
    set_value_axis(plot, min(numbers), max(numbers))
    set_names(plot, plot.table.rows)
    name_axes(plot, plot.table.dimension, plot.table.columns[0])
    if plot.style.shows_values:
        for index, number in enumerate(numbers):
            below = number < 0
            plot.annotate(
                index, number, plot.text(plot.table.values[index][0]), dy=-2 if below else 2, va="top" if below else "bottom"
            )


def horizontal_bar(plot: Plot) -> None:
    numbers = plot.numbers(0)
    patches = plot.axes.barh(range(len(numbers)), numbers, plot.style.bar_width, color=plot.color(0), zorder=2)
    plot.marks.extend((index, 0, patch) for index, patch in enumerate(patches))
    set_value_axis(plot, min(numbers), max(numbers) * (1.1 if plot.style.shows_values else 1.0), is_x=True)
    set_names(plot, plot.table.rows, is_y=True)
    name_axes(plot, plot.table.columns[0], plot.table.dimension)
    if plot.style.shows_values:
        for index, number in enumerate(numbers):
            below = number < 0
            text = plot.text(plot.table.values[index][0])
            plot.annotate(number, index, text, dx=-3 if below else 3, ha="right" if below else "left")


def grouped_bar(plot: Plot) -> None:
    count = len(plot.table.columns)
    width = plot.style.bar_width / count
    everything = [number for column in range(count) for number in plot.numbers(column)]
    for column, name in enumerate(plot.table.columns):
        places = [row + (column - (count - 1) / 2) * width for row in range(len(plot.table.rows))]
        numbers = plot.numbers(column)
        patches = plot.axes.bar(places, numbers, width, color=plot.color(column), label=name, zorder=2)
        plot.marks.extend((row, column, patch) for row, patch in enumerate(patches))
        if plot.style.shows_values:
            for row, (place, number) in enumerate(zip(places, numbers, strict=True)):
                below = number < 0
                text = plot.text(plot.table.values[row][column])
                plot.annotate(place, number, text, dy=-2 if below else 2, va="top" if below else "bottom")
    set_value_axis(plot, min(everything), max(everything))
    set_names(plot, plot.table.rows)
    name_axes(plot, plot.table.dimension, plot.table.measure)


def stacked_bar(plot: Plot) -> None:
    bottoms = [0.0] * len(plot.table.rows)
    for column, name in enumerate(plot.table.columns):
        numbers = plot.numbers(column)
        patches = plot.axes.bar(
            range(len(numbers)), numbers, plot.style.bar_width, bottoms, color=plot.color(column), label=name, zorder=2
        )
        for row, patch in enumerate(patches):
            plot.marks.append((row, column, patch))
            if plot.style.shows_values:
                _annotate_inside(
                    plot, row, bottoms[row] + numbers[row] / 2, plot.table.values[row][column], plot.color(column)
                )
        bottoms = [bottom + number for bottom, number in zip(bottoms, numbers, strict=True)]
    set_value_axis(plot, 0, max(bottoms))
    set_names(plot, plot.table.rows)
    name_axes(plot, plot.table.dimension, plot.table.measure)


def line(plot: Plot) -> None:
    _lines(plot, drawstyle="default")


def step(plot: Plot) -> None:
    _lines(plot, drawstyle="steps-mid")


def _lines(plot: Plot, drawstyle: str) -> None:
    count = len(plot.table.columns)
    everything = [number for column in range(count) for number in plot.numbers(column)]
    markers = "os^Dv"
    for column, name in enumerate(plot.table.columns):
        numbers = plot.numbers(column)
        plot.axes.plot(
            range(len(numbers)), numbers, color=plot.color(column), label=name, drawstyle=drawstyle, zorder=3,
            linewidth=plot.style.line_width, marker=markers[column % 5] if plot.style.marker else "", markersize=4.5,
            linestyle=("-", "--", "-.", ":")[column % 4 if not plot.style.is_filled else 0],
        )  # fmt: skip
        if plot.style.shows_values:
            for row, number in enumerate(numbers):
                plot.annotate(row, number, plot.text(plot.table.values[row][column]), dy=4, va="bottom")
    set_value_axis(plot, min(everything), max(everything), from_zero=plot.style.is_filled)
    set_names(plot, plot.table.rows)
    name_axes(plot, plot.table.dimension, plot.table.measure or plot.table.columns[0])


def area(plot: Plot) -> None:
    columns = [plot.numbers(column) for column in range(len(plot.table.columns))]
    colors = [plot.color(column) for column in range(len(columns))]
    places = range(len(plot.table.rows))
    plot.axes.stackplot(places, *columns, labels=plot.table.columns, colors=colors, zorder=2, alpha=0.9)
    set_value_axis(plot, 0, max(map(sum, zip(*columns, strict=True))))
    set_names(plot, plot.table.rows)
    name_axes(plot, plot.table.dimension, plot.table.measure)


def pie(plot: Plot) -> None:
    _pie(plot, inner=0.0)


def donut(plot: Plot) -> None:
    _pie(plot, inner=0.55)


def _pie(plot: Plot, inner: float) -> None:
    from math import cos, pi, sin

    numbers = plot.numbers(0)
    look = plot.style.look
    patches, _ = plot.axes.pie(
        numbers, colors=[plot.color(index) for index in range(len(numbers))], startangle=90, counterclock=False,
        wedgeprops={"edgecolor": look.background, "linewidth": 1, "width": 1 - inner},
    )  # fmt: skip
    for row, patch in enumerate(patches):
        plot.marks.append((row, 0, patch))
        angle = (patch.theta1 + patch.theta2) / 360 * pi
        x, y = cos(angle), sin(angle)
        text = plot.text(plot.table.values[row][0])
        text = text if plot.style.legend == "right" else f"{plot.table.rows[row]}: {text}"
        plot.annotate(1.08 * x, 1.08 * y, text, ha="left" if x >= 0 else "right")
        patch.set_label(plot.table.rows[row])
    plot.axes.set_xlabel(plot.table.columns[0])


def scatter(plot: Plot) -> None:
    x, y = plot.numbers(0), plot.numbers(1)
    colors = [plot.color(0 if plot.style.is_filled else index) for index in range(len(x))]
    plot.axes.scatter(x, y, c=colors, s=34, marker=plot.style.marker or "o", zorder=3)
    for name, left, top in zip(plot.table.rows, x, y, strict=True):
        plot.annotate(left, top, name, dy=5, va="bottom")
    set_value_axis(plot, min(x), max(x), is_x=True, from_zero=False)
    set_value_axis(plot, min(y), max(y), from_zero=False)
    name_axes(plot, *plot.table.columns)


def histogram(plot: Plot) -> None:
    numbers = plot.numbers(0)
    edge = plot.style.look.axes
    patches = plot.axes.bar(range(len(numbers)), numbers, 1.0, color=plot.color(0), edgecolor=edge, linewidth=0.8, zorder=2)
    plot.marks.extend((row, 0, patch) for row, patch in enumerate(patches))
    set_value_axis(plot, 0, max(numbers))
    set_names(plot, plot.table.rows)
    name_axes(plot, plot.table.measure, plot.table.columns[0])
    if plot.style.shows_values:
        for row, number in enumerate(numbers):
            plot.annotate(row, number, plot.text(plot.table.values[row][0]), dy=2, va="bottom")


def box(plot: Plot) -> None:
    keys = ("whislo", "q1", "med", "q3", "whishi")
    boxes = [dict(zip(keys, map(float, row), strict=True)) for row in plot.table.values]
    look = plot.style.look
    lines = {"color": look.ink, "linewidth": 1.1}
    drawn = plot.axes.bxp(
        boxes, positions=range(len(boxes)), widths=plot.style.bar_width * 0.7, showfliers=False, patch_artist=True,
        boxprops={"facecolor": plot.color(0), "edgecolor": look.ink}, medianprops=lines, whiskerprops=lines, capprops=lines,
        manage_ticks=False,
    )  # fmt: skip
    if not plot.style.is_filled:
        for row, patch in enumerate(drawn["boxes"]):
            patch.set_facecolor(plot.color(row))
    set_value_axis(plot, min(map(float, plot.table.column(0))), max(map(float, plot.table.column(4))), from_zero=False)
    set_names(plot, plot.table.rows)
    name_axes(plot, plot.table.dimension, plot.table.measure)


def heat_map(plot: Plot) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    names = ("viridis", "Blues", "YlOrRd", "magma", "Greens", "coolwarm", "cividis")
    colors = colormaps[names[int(plot.style.colors[0][1:], 16) % len(names)]]
    grid = [[float(value) for value in row] for row in plot.table.values]
    scale = Normalize(min(map(min, grid)), max(map(max, grid)))
    plot.axes.imshow(grid, cmap=colors, norm=scale, aspect="auto", zorder=2)
    for row, numbers in enumerate(grid):
        for column, number in enumerate(numbers):
            red, green, blue, _ = colors(scale(number))
            _annotate_inside(plot, column, row, plot.table.values[row][column], (red, green, blue))
    plot.axes.set_xticks(range(len(plot.table.columns)), plot.table.columns)
    plot.axes.set_yticks(range(len(plot.table.rows)), plot.table.rows)
    name_axes(plot, plot.table.measure, plot.table.dimension)


def radar(plot: Plot) -> None:
    from math import pi

    count = len(plot.table.rows)
    angles = [2 * pi * row / count for row in range(count)]
    highest = 0.0
    for column, name in enumerate(plot.table.columns):
        numbers = plot.numbers(column)
        highest = max(highest, *numbers)
        plot.axes.plot(
            [*angles, 0.0], [*numbers, numbers[0]], color=plot.color(column), linewidth=plot.style.line_width, label=name
        )
        if plot.style.is_filled:
            plot.axes.fill([*angles, 0.0], [*numbers, numbers[0]], color=plot.color(column), alpha=0.2)
    plot.axes.set_theta_offset(pi / 2)
    plot.axes.set_theta_direction(-1)
    plot.axes.set_xticks(angles, plot.table.rows)
    ticks = [tick for tick in ticks_of(0, highest * 1.05, 4) if tick > 0]
    plot.axes.set_ylim(0, highest * 1.05)
    plot.axes.set_yticks(ticks, [plot.text(tick) for tick in ticks])
    plot.axes.set_rlabel_position(180 / count)
    plot.axes.set_xlabel(plot.table.measure or plot.table.columns[0], labelpad=12)


def lollipop(plot: Plot) -> None:
    numbers = plot.numbers(0)
    places = range(len(numbers))
    plot.axes.vlines(places, 0, numbers, color=plot.color(0), linewidth=plot.style.line_width, zorder=2)
    plot.axes.scatter(places, numbers, color=plot.color(1), s=48, zorder=3)
    set_value_axis(plot, min(numbers), max(numbers))
    set_names(plot, plot.table.rows)
    name_axes(plot, plot.table.dimension, plot.table.columns[0])
    if plot.style.shows_values:
        for row, number in enumerate(numbers):
            plot.annotate(
                row,
                number,
                plot.text(plot.table.values[row][0]),
                dy=6 if number >= 0 else -6,
                va="bottom" if number >= 0 else "top",
            )


def waterfall(plot: Plot) -> None:
    numbers = plot.numbers(0)
    level, levels = 0.0, [0.0]
    for row, number in enumerate(numbers):
        color = plot.color(0 if number >= 0 else 1)
        (patch,) = plot.axes.bar([row], [number], plot.style.bar_width, [level], color=color, zorder=2)
        plot.marks.append((row, 0, patch))
        level += number
        levels.append(level)
        text = plot.text(plot.table.values[row][0])
        plot.annotate(row, max(level, level - number), text, dy=2, va="bottom")
    set_value_axis(plot, min(levels), max(levels))
    set_names(plot, plot.table.rows)
    name_axes(plot, plot.table.dimension, plot.table.columns[0])


def _annotate_inside(plot: Plot, x: float, y: float, value: Decimal, color: Any) -> None:
    """Write a value onto a filled area in black or white, whichever has more contrast."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(color)
    ink = "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "#ffffff"
    plot.axes.text(x, y, plot.text(value), ha="center", va="center", size=0.85 * plot.style.size, color=ink, zorder=4)


KINDS = {
    "bar": ChartKind(bar, (3, 10), is_signed=True),
    "horizontal_bar": ChartKind(horizontal_bar, (3, 12), is_signed=True, is_horizontal=True),
    "grouped_bar": ChartKind(grouped_bar, (3, 6), (2, 4)),
    "stacked_bar": ChartKind(stacked_bar, (3, 7), (2, 4), is_ratio=True),
    "line": ChartKind(line, (4, 12), (1, 4), is_timed=True, is_signed=True),
    "step": ChartKind(step, (4, 10), (1, 2), is_timed=True),
    "area": ChartKind(area, (4, 10), (2, 4), is_timed=True, is_ratio=True, values="never"),
    "pie": ChartKind(pie, (3, 7), is_timed=False, is_ratio=True, values="always"),
    "donut": ChartKind(donut, (3, 7), is_timed=False, is_ratio=True, values="always"),
    "scatter": ChartKind(scatter, (4, 9), values="never", data="points"),
    "histogram": ChartKind(histogram, (5, 10), data="bins"),
    "box": ChartKind(box, (3, 6), values="never", data="quartiles"),
    "heat_map": ChartKind(heat_map, (3, 7), (3, 6), values="always"),
    "radar": ChartKind(radar, (4, 8), (1, 3), is_ratio=True, values="never", projection="polar"),
    "lollipop": ChartKind(lollipop, (4, 10), is_signed=True),
    "waterfall": ChartKind(waterfall, (4, 8), values="always", data="steps"),
}
