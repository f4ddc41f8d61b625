"""A sheet: a canvas, its theme and fonts, and the transcription, written in reading order together with the drawing."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from openafm.core.libraries import needed
from openafm.data.drawing.base import DrawnImage, Split
from openafm.data.drawing.canvas import Canvas, Color, png_bytes, text_width
from openafm.data.drawing.choices import bold_of, color_of
from openafm.data.drawing.data_tables import escape_cell
from openafm.data.drawing.fonts import Font
from openafm.data.drawing.phrases import question, write_number
from openafm.data.images.documents import Question, Region
from openafm.data.synthetic.languages import locale_of
from openafm.data.synthetic.words import CURRENCIES, LanguageWords, words_of

_TALLEST = 1600
_PRICES = {"JPY": (100, 3000, 10), "KRW": (1000, 40000, 100), "VND": (10000, 400000, 1000), "TWD": (30, 1200, 1)}
HELD_OUT_THEMES = ("olive", "rose")


@dataclass(frozen=True)
class Theme:
    """The colors of a sheet."""

    background: str
    ink: str
    accent: str
    accent_ink: str
    soft: str
    rule: str


THEMES = {
    "paper": Theme("#ffffff", "#111111", "#111111", "#ffffff", "#f2f2f2", "#999999"),
    "navy": Theme("#ffffff", "#1b2a49", "#1b2a49", "#ffffff", "#e8edf6", "#b7c3da"),
    "teal": Theme("#f7fbfb", "#12363a", "#0f766e", "#ffffff", "#dff1ef", "#9fcac5"),
    "brick": Theme("#fffaf5", "#3b1f14", "#b4441c", "#ffffff", "#fbe7da", "#e0b79d"),
    "plum": Theme("#fdf9ff", "#35193f", "#7b2d8b", "#ffffff", "#f1e3f5", "#cfaed7"),
    "chalk": Theme("#23302b", "#f3f6ef", "#f2c14e", "#23302b", "#2f3f39", "#6d8379"),
    "kraft": Theme("#e9d8b8", "#3a2c18", "#6b4e23", "#fdf4e3", "#dec79c", "#9c8153"),
    "mono": Theme("#fafafa", "#222222", "#5c5c5c", "#ffffff", "#ececec", "#bdbdbd"),
    "olive": Theme("#fbfcf3", "#2c3310", "#667a1a", "#ffffff", "#edf1d6", "#c4cd95"),
    "rose": Theme("#fff7f8", "#40131d", "#be3455", "#ffffff", "#fbdfe5", "#e5a9b6"),
}


@dataclass
class Sheet:
    """A sheet while it is drawn. Every text goes to the canvas and, by `write`, to the transcription, in one order."""

    rng: random.Random
    language: str
    split: Split
    theme: Theme
    font: Font
    bold: Font
    canvas: Canvas
    size: int
    y: float = 0.0
    lines: list[str] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    currency: str = ""

    @staticmethod
    def start(rng: random.Random, language: str, split: Split, theme: str, font: Font, width: int, size: int) -> Sheet:
        """Return an empty sheet of a width; its height is that of its content."""
        look = THEMES[theme]
        canvas = Canvas(width, _TALLEST, color_of(look.background))
        currency = rng.choice(CURRENCIES.get(language, ("EUR",)))
        sheet = Sheet(rng, language, split, look, font, bold_of(font, ""), canvas, size, currency=currency)
        sheet.y = 1.5 * size
        return sheet

    @property
    def words(self) -> LanguageWords:
        return words_of(self.language, self.split)

    @property
    def ink(self) -> Color:
        return color_of(self.theme.ink)

    @property
    def accent(self) -> Color:
        return color_of(self.theme.accent)

    def text(
        self,
        x: float,
        text: str,
        *,
        y: float | None = None,
        size: int | None = None,
        bold: bool = False,
        align: str = "left",
        fill: Color | None = None,
        kind: str = "text",
    ) -> None:
        """Draw one line at `x` and the current height, or at `y`; it is not part of the transcription yet."""
        anchor = {"left": "la", "center": "ma", "right": "ra"}[align]
        top = self.y if y is None else y
        self.canvas.text(
            x, top, text, self.bold if bold else self.font, size or self.size, self.ink if fill is None else fill,
            anchor=anchor, kind=kind,
        )  # fmt: skip

    def write(self, line: str) -> None:
        """Append a line to the transcription."""
        self.lines.append(line)

    def row(self, cells: Sequence[str]) -> None:
        """Append a row of a Markdown table to the transcription; the second row begins after a rule."""
        self.write(f"| {' | '.join(map(escape_cell, cells))} |")
        if len(self.lines) < 2 or not self.lines[-2].startswith("|"):
            self.write(f"| {' | '.join(['---'] * len(cells))} |")

    def down(self, factor: float = 1.4) -> None:
        """Move down by a multiple of the font size."""
        self.y += round(factor * self.size)

    def fitting(self, text: str, size: int, width: float, *, bold: bool = False) -> int:
        """Return the largest size up to `size` at which a text fits into a width."""
        return self.canvas.fitting_size(text, self.bold if bold else self.font, size, width)

    def wrap(self, text: str, width: float, *, size: int | None = None, bold: bool = False) -> list[str]:
        return self.canvas.wrap(text, self.bold if bold else self.font, size or self.size, width)

    def width_of(self, text: str, *, size: int | None = None, bold: bool = False) -> float:
        return text_width(text, self.bold if bold else self.font, size or self.size)

    def rule(self, left: float, right: float, *, is_dashed: bool = False) -> None:
        """Draw a line across, below the descenders of the line before."""
        self.down(0.4)
        color = color_of(self.theme.rule)
        if not is_dashed:
            self.canvas.line([(left, self.y), (right, self.y)], color)
            return
        for x in range(round(left), round(right), 8):
            self.canvas.line([(x, self.y), (x + 4, self.y)], color)

    def ask(self, key: str, answer: str, **slots: str) -> None:
        """Add a question about the sheet."""
        text = question(self.language, self.split, key, **slots)
        self.questions.append(Question(question=text, answer=answer, kind=f"document.{key}"))

    def price(self) -> Decimal:
        """Return an amount of the currency."""
        low, high, step = _PRICES.get(self.currency, (90, 4900, 1))
        amount = Decimal(self.rng.randrange(low, high + 1, step))
        return amount if self.currency in _PRICES else (amount / 100).quantize(Decimal("0.01"))

    def rounded(self, amount: Decimal) -> Decimal:
        """Return an amount with the decimals of the currency."""
        return amount.quantize(Decimal(1) if self.currency in _PRICES else Decimal("0.01"))

    def number(self, value: Decimal | int) -> str:
        return write_number(self.language, Decimal(value))

    def date(self, first: int = 2019, last: int = 2026) -> str:
        """Return a random date in the short form of the language."""
        with needed("drawn images", "babel and faker", "corpus"):
            from babel.dates import format_date
        day = datetime.date(self.rng.randint(first, last), self.rng.randint(1, 12), self.rng.randint(1, 28))
        text: str = format_date(day, "short", locale=locale_of(self.language))
        return text.replace("\u200f", "").replace("\xa0", " ").replace("\u202f", " ")

    def image(self) -> DrawnImage:
        """Return the drawing, cut below the last line."""
        height = min(round(self.y + 1.5 * self.size), _TALLEST)
        self.canvas.commands[0]["size"] = [self.canvas.width, height]
        picture = self.canvas.image().crop((0, 0, self.canvas.width, height))
        return DrawnImage(
            data=png_bytes(picture), width=self.canvas.width, height=height, regions=tuple(self.canvas.regions)
        )

    def mark(self, label: str, box: tuple[float, float, float, float], kind: str) -> None:
        """Record a region that is not text."""
        self.canvas.regions.append(Region(label=label, box=box, kind=kind))
