"""Names of objects and templates of captions and questions in the sixteen languages (`text/scenes/<language>.txt`)."""

from __future__ import annotations

import functools
import importlib.resources
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from openafm.data.drawing.base import Split
from openafm.data.drawing.scenes.objects import COLORS, EMOJI, SHAPES, SceneObject
from openafm.data.synthetic.rendering import Piece, capitalize, render, text_of
from openafm.data.synthetic.text_files.source_text import Frame, Line, TextSection, parse_frame, read_sections
from openafm.data.synthetic.words import questions_of

_LISTS = {
    "objects": len(EMOJI),
    "shapes": len(SHAPES),
    "colors": len(COLORS),
    "color_names": len(COLORS),
    "areas": 9,
    "more": 3,
}
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_PLURALS = {"fish": "fish", "bus": "buses", "butterfly": "butterflies", "bunch": "bunches"}


class SceneTexts:
    """The words and templates of one language; the questions are those of a split, or of both with None."""

    def __init__(self, language: str, split: Split | None) -> None:
        self.language = language
        path = Path(str(importlib.resources.files("openafm.data.drawing").joinpath("text/scenes"))) / f"{language}.txt"
        sections = {section.name: section for section in read_sections(path)}
        self._lists = {name: _listed(sections[name], count) for name, count in _LISTS.items() if name in sections}
        self._frames: dict[str, tuple[Frame, ...]] = {
            name: tuple(map(parse_frame, _lines_of(section, split)))
            for name, section in sections.items()
            if name not in _LISTS
        }

    def phrase(self, kind: SceneObject) -> str:
        """The name of a kind of object: "apple", "red circle"."""
        if kind.color is None:
            return self._lists["objects"][list(EMOJI).index(kind.name)]
        values = {"shape": self._lists["shapes"][SHAPES.index(kind.name)]}
        values["color"] = self._lists["colors"][list(COLORS).index(kind.color)]
        return self._fill(self._frames["phrase"][0], random.Random(0), values)

    def shape(self, kind: SceneObject) -> str:
        """The name of a shape without its color."""
        return self._lists["shapes"][SHAPES.index(kind.name)]

    def color(self, color: str) -> str:
        """The name of a color as an answer."""
        return self._lists.get("color_names", self._lists["colors"])[list(COLORS).index(color)]

    def area(self, row: int, column: int) -> str:
        """One of nine parts of an image."""
        return self._lists["areas"][3 * row + column]

    def more(self, which: int) -> str:
        """First, second, or both images."""
        return self._lists["more"][which]

    def draw(self, rng: random.Random, section: str, **values: str) -> str:
        """Return a line of a section, with a capital at its start."""
        return capitalize(self._fill(rng.choice(self._frames[section]), rng, self._forms(values)), self.language)

    def all_lines(self, section: str, phrase: str) -> tuple[str, ...]:
        """Return every line of a section about one object."""
        values, rng = self._forms({"a": phrase}), random.Random(0)
        return tuple(capitalize(self._fill(frame, rng, values), self.language) for frame in self._frames[section])

    def _forms(self, values: dict[str, str]) -> dict[str, str]:
        """The values with the forms of an English noun."""
        if self.language != "en" or "a" not in values:
            return values
        return values | {"an": _with_article(values["a"]), "as": plural(values["a"])}

    def counted(self, phrase: str, count: int) -> str:
        """An item of a list: "three apples"."""
        if self.language == "en":
            return _with_article(phrase) if count == 1 else f"{_NUMBERS[count]} {plural(phrase)}"
        return phrase if count == 1 else f"{phrase} ×{count}"

    def joined(self, items: Sequence[str]) -> str:
        """A list as a sentence has it."""
        if self.language == "en" and len(items) > 1:
            return f"{', '.join(items[:-1])} and {items[-1]}"
        return ("、" if self.language in ("ja", "zh-Hans", "zh-Hant") else ", ").join(items)

    def _fill(self, frame: Frame, rng: random.Random, values: Mapping[str, str]) -> str:
        return text_of(render(frame, rng, lambda slot: (Piece(values[slot.name]),), language=self.language))


@functools.cache
def scene_texts(language: str, split: Split | None = None) -> SceneTexts:
    """The texts of a language and split, read once."""
    return SceneTexts(language, split)


def _lines_of(section: TextSection, split: Split | None) -> Sequence[Line]:
    return questions_of(section.lines, split) if split is not None and section.name.startswith("ask.") else section.lines


def _listed(section: TextSection, count: int) -> tuple[str, ...]:
    lines = [line.text for line in section.lines]
    found = tuple(lines) if section.name == "more" else tuple(item.strip() for line in lines for item in line.split(","))
    if len(found) != count:
        raise section.header.error(f"expected {count} entries, got {len(found)}")
    return found


def _with_article(phrase: str) -> str:
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def plural(phrase: str) -> str:
    """Return the plural of an English phrase: "slices of pizza"."""
    head, of, rest = phrase.partition(" of ")
    *before, noun = head.split(" ")
    return " ".join((*before, _PLURALS.get(noun, f"{noun}s"))) + of + rest
