"""The data of charts by rules, for each kind of chart."""

from __future__ import annotations

import random
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from math import floor, log10

from openafm.data.drawing.base import Split
from openafm.data.drawing.charts.kinds import ChartKind
from openafm.data.drawing.data_tables import DataTable, draw_data_table, draw_measures_table
from openafm.data.drawing.phrases import label, labels, write_number

_LEVELS = 40
"""Values that are not written on the chart are multiples of about a fortieth of the range, as a person can read them."""


def draw_chart_data(rng: random.Random, language: str, split: Split, kind: ChartKind, *, is_written: bool) -> DataTable:
    """Return data for a kind of chart. Values are round where the chart does not write them as numbers."""
    longest = 22 if kind.is_horizontal else 12
    if kind.data == "points":
        table = draw_measures_table(rng, language, split, num_rows=kind.num_rows, num_columns=(2, 2), longest=longest)
        return _rounded(table, by_column=True)
    table = draw_data_table(
        rng,
        language,
        split,
        num_rows=kind.num_rows,
        num_columns=kind.num_columns,
        is_timed=kind.is_timed,
        is_signed=kind.is_signed,
        is_ratio=kind.is_ratio,
        longest=longest,
    )
    match kind.data:
        case "bins":
            table = _bins(rng, language, table)
        case "quartiles":
            table = _quartiles(rng, language, table)
        case "steps":
            table = _steps(rng, table)
    return table if is_written else _rounded(table)


def _bins(rng: random.Random, language: str, table: DataTable) -> DataTable:
    """Turn a table into counts of values in ranges of equal width."""
    width = rng.choice((1, 2, 5, 10, 20, 25, 50, 100))
    start = width * rng.randint(0, 10)
    count = len(table.rows)
    peak, spread = rng.uniform(0.2, 0.8) * count, rng.uniform(0.2, 0.5) * count
    heights = [max(1, round(rng.randint(20, 90) * 2 ** -(((row - peak) / spread) ** 2))) for row in range(count)]
    edges = [write_number(language, Decimal(start + width * row)) for row in range(count + 1)]
    return replace(
        table,
        dimension=label(language, "dimensions.range"),
        rows=tuple(f"{low}–{high}" for low, high in pairwise(edges)),
        columns=(label(language, "statistics.count"),),
        values=tuple((Decimal(height),) for height in heights),
    )


def _quartiles(rng: random.Random, language: str, table: DataTable) -> DataTable:
    """Spread each value to minimum, quartiles and maximum."""
    names = labels(language, "statistics")
    rows = []
    largest = max(table.column(0)) or Decimal(1)
    for (value,) in table.values:
        gap = float(largest) * rng.uniform(0.06, 0.2)
        places = [-2 * gap, -gap * rng.uniform(0.5, 1), 0.0, gap * rng.uniform(0.5, 1), 2 * gap]
        rows.append(tuple((Decimal(str(float(value) + 3 * gap + place))).quantize(value) for place in places))
    keys = ("minimum", "lower_quartile", "median", "upper_quartile", "maximum")
    return replace(table, columns=tuple(names[key] for key in keys), values=tuple(rows), is_total=False)


def _steps(rng: random.Random, table: DataTable) -> DataTable:
    """Turn values into gains and losses; the first is a gain."""
    signs = [1] + [rng.choice((1, -1)) for _ in table.values[1:]]
    values = tuple((max(value, Decimal(1)) * sign,) for (value,), sign in zip(table.values, signs, strict=True))
    return replace(table, values=values)


def _rounded(table: DataTable, *, by_column: bool = False) -> DataTable:
    """Return a table whose values are multiples of a round step, for each column or for all of them."""
    columns = [table.column(index) for index in range(len(table.columns))]
    everything = [value for column in columns for value in column]
    steps = [_step(column if by_column else everything) for column in columns]
    rows = (
        tuple((value / step).to_integral_value() * step for value, step in zip(row, steps, strict=True))
        for row in table.values
    )
    return replace(table, values=tuple(tuple(value + 0 for value in row) for row in rows))


def _step(values: tuple[Decimal, ...] | list[Decimal]) -> Decimal:
    """Return 1, 2 or 5 times a power of ten, about a fortieth of the range that the axis shows."""
    span = float(max(*values, Decimal(0)) - min(*values, Decimal(0))) or 1.0
    rough = span / _LEVELS
    power = floor(log10(rough))
    factor = next(factor for factor in (1, 2, 5, 10) if factor * 10**power >= rough)
    step = Decimal(factor).scaleb(power)
    return step.quantize(Decimal(1)) if step >= 1 else step.normalize()
