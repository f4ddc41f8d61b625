"""Tables of data: a title, names of rows and columns, and numbers. Charts and tables are drawn from them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from openafm.data.drawing.base import Split
from openafm.data.drawing.phrases import label, labels, write_number
from openafm.data.synthetic.languages import locale_of
from openafm.data.synthetic.words import CURRENCIES, split_of, words_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WIDE = ("zh-Hans", "zh-Hant", "ja", "ko")
_TIMES = ("month", "weekday", "year")
_NAMES = ("food", "animal", "product", "hobby", "city", "company", "person")


@dataclass(frozen=True)
class _Measure:
    """Range of a measure's values, its decimals, and its unit; the unit `money` is a currency of the language."""

    low: float
    high: float
    decimals: int
    unit: str = ""
    is_total: bool = True
    """Whether values may be added up."""


_MEASURES = {
    "sales": _Measure(10, 900, 0),
    "revenue": _Measure(1, 480, 1, "money"),
    "costs": _Measure(1, 320, 1, "money"),
    "visitors": _Measure(100, 9800, 0),
    "members": _Measure(5, 400, 0),
    "orders": _Measure(3, 250, 0),
    "downloads": _Measure(1000, 90000, 0),
    "temperature": _Measure(-12, 34, 1, "°C", is_total=False),
    "rainfall": _Measure(2, 180, 0, "mm"),
    "distance": _Measure(1, 950, 1, "km"),
    "weight": _Measure(0.2, 95, 1, "kg"),
    "share": _Measure(1, 60, 1, "%", is_total=False),
    "energy": _Measure(20, 640, 0, "kWh"),
    "points": _Measure(1, 100, 0),
    "price": _Measure(1, 240, 2, "money", is_total=False),
    "stock": _Measure(0, 600, 0),
    "speed": _Measure(8, 280, 0, "km/h", is_total=False),
    "rating": _Measure(1, 5, 1, is_total=False),
}


@dataclass(frozen=True, kw_only=True)
class DataTable:
    """Numbers by row and column. `measure` names the numbers of one-measure tables, with the unit."""

    title: str
    dimension: str
    """What the rows are: the header of their column."""
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[Decimal, ...], ...]
    measure: str = ""
    is_total: bool = True
    """Whether values of a column may be added up."""

    def column(self, index: int) -> tuple[Decimal, ...]:
        return tuple(row[index] for row in self.values)

    def markdown(self, language: str) -> str:
        """Return the title as a heading and the data as a Markdown table, with numbers as the language writes them."""
        rows = [
            (name, *(write_number(language, value) for value in row))
            for name, row in zip(self.rows, self.values, strict=True)
        ]
        return markdown_table(self.title, (self.dimension, *self.columns), rows)


def markdown_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a title as a heading, and cells as a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    heading = f"# {title}\n\n" if title else ""
    return heading + "\n".join(f"| {' | '.join(map(escape_cell, line))} |" for line in lines)


def escape_cell(text: str) -> str:
    """Return a text as a cell of a Markdown table."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def draw_data_table(
    rng: random.Random,
    language: str,
    split: Split,
    *,
    num_rows: tuple[int, int],
    num_columns: tuple[int, int] = (1, 1),
    is_timed: bool | None = None,
    is_signed: bool = True,
    is_ratio: bool = False,
    longest: int = 18,
) -> DataTable:
    """Return a table of one measure. Columns are series of names if there are several.

    Args:
        is_timed: rows are months, weekdays or years; None for either.
        is_signed: values may be negative.
        is_ratio: values are at least a twentieth of the largest, so that each part of a whole is visible.
        longest: longest name in columns of Latin letters; wide characters count twice.
    """
    timed = rng.random() < 0.4 if is_timed is None else is_timed
    height = rng.randint(*num_rows)
    kind = rng.choice(_TIMES if timed else _NAMES)
    rows = _draw_times(rng, language, kind, height) if timed else draw_names(rng, language, split, kind, height, longest)
    width = rng.randint(*num_columns)
    name = rng.choice([key for key in split_of(_MEASURES, split) if is_signed or _MEASURES[key].low >= 0])
    measure, text = _MEASURES[name], measure_text(rng, language, name)
    series: Sequence[str] = (text,)
    if width > 1:
        series_kind = rng.choice([each for each in (*_NAMES, "year") if each != kind])
        series = (
            _draw_times(rng, language, "year", width)
            if series_kind == "year"
            else draw_names(rng, language, split, series_kind, width, longest)
        )
    columns = [_draw_column(rng, measure, len(rows), timed=timed, is_ratio=is_ratio) for _ in series]
    return DataTable(
        title=_draw_title(rng, language, split, labels(language, "measures")[name], label(language, f"dimensions.{kind}")),
        dimension=label(language, f"dimensions.{kind}"),
        rows=tuple(rows),
        columns=tuple(series),
        values=tuple(zip(*columns, strict=True)),
        measure=text,
        is_total=measure.is_total,
    )


def draw_measures_table(
    rng: random.Random,
    language: str,
    split: Split,
    *,
    num_rows: tuple[int, int],
    num_columns: tuple[int, int],
    longest: int = 24,
) -> DataTable:
    """Return a table whose columns are different measures."""
    kind = rng.choice((*_NAMES, *_TIMES))
    height = rng.randint(*num_rows)
    rows = (
        _draw_times(rng, language, kind, height)
        if kind in _TIMES
        else draw_names(rng, language, split, kind, height, longest)
    )
    known = split_of(_MEASURES, split)
    names = rng.sample(known, min(rng.randint(*num_columns), len(known)))
    texts = {measure_text(rng, language, name): name for name in names}  # two measures may share a word
    columns = [
        _draw_column(rng, _MEASURES[name], len(rows), timed=kind in _TIMES, is_ratio=False) for name in texts.values()
    ]
    dimension = label(language, f"dimensions.{kind}")
    return DataTable(
        title=_draw_title(rng, language, split, labels(language, "posters")["facts"], dimension),
        dimension=dimension,
        rows=tuple(rows),
        columns=tuple(texts),
        values=tuple(zip(*columns, strict=True)),
        is_total=all(_MEASURES[name].is_total for name in texts.values()),
    )


def measure_text(rng: random.Random, language: str, name: str) -> str:
    """Return a measure's word in a language with its unit in parentheses."""
    unit = _MEASURES[name].unit
    if unit == "money":
        unit = rng.choice(CURRENCIES.get(language, ("EUR",)))
    word = labels(language, "measures")[name]
    return f"{word} ({unit})" if unit else word


def draw_names(rng: random.Random, language: str, split: Split, kind: str, count: int, longest: int) -> list[str]:
    """Return different names of a kind, in random order; fewer if the language has fewer short ones."""
    words = words_of(language, split)
    names: dict[str, str] = {}
    for _ in range(20 * count):
        name = words.draw(rng, kind)
        name = name[:1].upper() + name[1:] if kind in ("food", "animal", "product", "hobby") and language != "tr" else name
        if width_of(name) <= longest:
            names.setdefault(name.casefold(), name)
        if len(names) == count:
            break
    while len(names) < 2:  # no short name: meaningless words
        name = words.invent(rng)
        names.setdefault(name.casefold(), name)
    return list(names.values())


def width_of(text: str) -> int:
    """Return the width of a text in columns of Latin letters."""
    return sum(2 if "\u1100" <= char <= "\uffdc" else 1 for char in text)


def _draw_times(rng: random.Random, language: str, kind: str, count: int) -> list[str]:
    if kind == "year":
        first = rng.randint(1985, 2026 - count)
        return [str(first + index) for index in range(count)]
    locale = locale_of(language)
    form = rng.choice(("abbreviated", "wide"))
    # babel caches the names of the context "stand-alone" of one locale for all of them.
    table: Mapping[int, str] = (locale.months if kind == "month" else locale.days)["format"][form]
    names = [table[key] for key in sorted(table)]
    count = min(count, len(names))
    start = rng.randrange(len(names)) if kind == "month" and count < 12 else 0
    return [names[(start + index) % len(names)] for index in range(count)]


def _draw_column(rng: random.Random, measure: _Measure, count: int, *, timed: bool, is_ratio: bool) -> list[Decimal]:
    """Return values in one of three shapes: independent, a walk in time, or falling by rank in random order."""
    low, high = measure.low, measure.high
    top = low + (high - low) * rng.uniform(0.15, 1.0)
    shape = rng.choice(("even", "walk") if timed else ("even", "ranked"))
    numbers: list[float] = []
    level = rng.uniform(low, top)
    for rank in range(count):
        if shape == "even":
            numbers.append(rng.uniform(low, top))
        elif shape == "walk":
            level = min(max(level + rng.gauss(0, 0.15) * (top - low), low), top)
            numbers.append(level)
        else:
            numbers.append(low + (top - low) / (rank + 1) ** rng.uniform(0.3, 0.9))
    if shape == "ranked":
        rng.shuffle(numbers)
    if is_ratio:
        floor = max(max(numbers) / 20, high / 1000)
        numbers = [max(number, floor) for number in numbers]
    return [round_value(number, measure.decimals) for number in numbers]


def round_value(number: float, decimals: int) -> Decimal:
    """Return a number with fixed decimals; zero has no sign."""
    value = Decimal(str(number)).quantize(Decimal(1).scaleb(-decimals))
    return abs(value) if value == 0 else value


def _draw_title(rng: random.Random, language: str, split: Split, measure: str, dimension: str) -> str:
    words = words_of(language, split)
    match rng.randrange(4):
        case 0:
            return f"{measure} / {dimension}"
        case 1:
            return f"{measure} {rng.randint(1990, 2026)}"
        case 2:
            return f"{words.draw(rng, 'company')}: {measure}"
        case _:
            return f"{measure} – {words.draw(rng, 'city')}"
