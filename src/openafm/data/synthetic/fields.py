"""Fields of forms and parameters of tools: kinds of values, how to draw a value and how to write it."""

from __future__ import annotations

import datetime
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from openafm.data.synthetic.rendering import Piece, Pieces, render, text_of
from openafm.data.synthetic.text_files.frames import LanguageFrames, base_kind
from openafm.data.synthetic.text_files.source_text import Frame, Line, Slot, parse_frame

_DECLARATION = re.compile(r": *([a-z_][\w.]*)(\??): *([^|]+?)(?: *\| *([^|]*?))?(?: *\| *(.*))?")
_NUMBER = re.compile(r"(integer|number) (-?\d+)-(-?\d+)")
_LISTED = re.compile(r"(enum|text)\((.*)\)")
_SIMPLE = frozenset({"boolean", "date", "time", "past_day", "weekday", "amount", "expression", "title", "place", "postcode"})
_MOST_ITEMS = 4


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of value. `base` is a word kind, or one of the computed kinds; `items` is the kind of a list's items."""

    base: str
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    items: Kind | None = None
    parts: tuple[Field, ...] = ()
    part_texts: tuple[Frame, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field as declared: `: name?: kind | other names | description`."""

    name: str
    kind: Kind
    is_optional: bool = False
    aliases: tuple[str, ...] = ()
    description: str = ""
    line: Line = field(compare=False)


@dataclass(frozen=True)
class Value:
    """A drawn value and how it is written: in the sentence, and with its preposition."""

    value: Any
    text: str
    adverbial: str = ""


def parse_kind(line: Line, text: str, frames: LanguageFrames) -> Kind:
    """Read a kind.

    Raises:
        SourceTextError: there is no such kind.
    """
    text = text.strip()
    if match := _NUMBER.fullmatch(text):
        low, high = int(match[2]), int(match[3])
        if low > high:
            raise line.error(f"'{text}' is an empty range")
        return Kind(base=match[1], low=low, high=high)
    if match := _LISTED.fullmatch(text):
        choices = tuple(choice.strip() for choice in re.split(r"[,、，]", match[2]) if choice.strip())
        if len(choices) < 2 or len(set(choices)) < len(choices):
            raise line.error(f"'{text[:40]}' needs two or more different values")
        return Kind(base=match[1], choices=choices)
    if text.startswith("[{") and text.endswith("}]"):
        return Kind(base="list", items=Kind(base="object", choices=(text[2:-2],)))
    if text.startswith("[") and text.endswith("]"):
        return Kind(base="list", items=parse_kind(line, text[1:-1], frames))
    if text in _SIMPLE or text in frames.distractors - {
        "other_date",
        "other_time",
        "other_place",
        "other_title",
        "past_date",
    }:
        return Kind(base=text)
    known = ", ".join(sorted({*_SIMPLE, *frames.words.kinds}))
    raise line.error(
        f"unknown kind '{text}'; known: {known}, integer 1-9, number 1-9, enum(a, b), text(a, b), [kind], [{{part}}]"
    )


def parse_field(line: Line, frames: LanguageFrames) -> Field:
    """Read a declaration.

    Raises:
        SourceTextError: it is malformed.
    """
    match = _DECLARATION.fullmatch(line.text)
    if match is None:
        raise line.error("malformed field; write ': name: kind | other names | description'")
    return Field(
        name=match[1],
        kind=parse_kind(line, match[3], frames),
        is_optional=bool(match[2]),
        aliases=tuple(alias.strip() for alias in (match[4] or "").split(",") if alias.strip()),
        description=match[5] or "",
        line=line,
    )


def parse_fields(lines: Sequence[Line], frames: LanguageFrames) -> tuple[tuple[Field, ...], tuple[Line, ...]]:
    """Read the declarations among `lines`, nested ones inside their list, and return the other lines too.

    Raises:
        SourceTextError: a malformed or a second declaration, or a part of an unknown list.
    """
    fields: dict[str, Field] = {}
    parts: dict[str, list[Field]] = {}
    part_texts: dict[str, list[Frame]] = {}
    rest: list[Line] = []
    for line in lines:
        if line.text.startswith(":"):
            found = parse_field(line, frames)
            owner, dot, name = found.name.partition(".")
            if dot:
                parts.setdefault(owner, []).append(replace(found, name=name))
            elif found.name in fields:
                raise line.error(f"a second field '{found.name}'")
            else:
                fields[found.name] = found
        elif match := re.fullmatch(r"(\w+)> (.*)", line.text):
            part_texts.setdefault(match[1], []).append(parse_frame(line, match[2]))
        else:
            rest.append(line)
    for name, found in fields.items():
        if found.kind.items is not None and found.kind.items.base == "object":
            part = found.kind.items.choices[0]
            if part not in parts or part not in part_texts:
                raise found.line.error(f"'{part}' needs fields ': {part}.x: kind' and texts '{part}> {{x}}'")
            names = {inner.name for inner in parts[part]}
            for frame in part_texts[part]:
                check_field_slots(frame, names)
            inside = replace(found.kind.items, parts=tuple(parts[part]), part_texts=tuple(part_texts[part]))
            fields[name] = replace(found, kind=replace(found.kind, items=inside))
    return tuple(fields.values()), tuple(rest)


def check_field_slots(frame: Frame, names: set[str]) -> None:
    """Check that every slot of a text is a field.

    Raises:
        SourceTextError: one is not.
    """
    for slot in frame.slots:
        if slot.name not in names:
            raise frame.line.error(f"'{{{slot.name}}}' is no field; known: {', '.join(sorted(names))}")
        if slot.form not in ("", "on", "word"):
            raise frame.line.error(f"unknown form ':{slot.form}'; known: on, word")


def draw_value(
    rng: random.Random, kind: Kind, frames: LanguageFrames, today: datetime.date, slot: Slot | None = None
) -> Value:
    """A value of a kind, written in the words of a language. `slot` is where it will be written."""
    match kind.base:
        case "integer":
            step = slot.divisor if slot else 1
            number = rng.randint(-(-kind.low // step), kind.high // step) if kind.high // step >= 1 else kind.low
            numbers = frames.calendar.lists.get("number", ())
            spelled = slot is not None and slot.form == "word" and 0 < number <= len(numbers)
            return Value(number * step, numbers[number - 1] if spelled else str(number))
        case "number":
            tenths = rng.randint(kind.low * 10, kind.high * 10)
            if rng.random() < 0.5:
                tenths -= tenths % 10
            return write_number(tenths, frames)
        case "boolean":
            return Value(rng.random() < 0.5, "")
        case "amount":
            amount, currency = frames.words.draw_amount(rng)
            value = int(amount) if amount == int(amount) else round(amount, 2)
            return Value(value, frames.words.write_price(amount, currency))
        case "date":
            phrase = frames.calendar.draw_date(rng, today)
            return Value(phrase.value, phrase.bare, phrase.text)
        case "past_day":
            day = today - datetime.timedelta(rng.randint(1, 30000))
            section = next(name for name in ("day_month_year", "numeric_year", "iso") if name in frames.calendar.dates)
            pattern = rng.choice(frames.calendar.fitting_dates(section, day, 0))
            phrase = frames.calendar.write_date(rng, pattern, day)
            return Value(phrase.value, phrase.bare, phrase.text)
        case "time":
            phrase = frames.calendar.draw_time(rng)
            return Value(phrase.value, phrase.bare, phrase.text)
        case "weekday":
            return _copied(rng.choice(frames.calendar.lists["weekday"]))
        case "title":
            return _copied(frames.draw_title(rng)[1])
        case "place":
            pieces, bare = frames.draw_place(rng)
            return Value(bare, bare, text_of(pieces))
        case "expression":
            left, right, operation = rng.randint(2, 999), rng.randint(2, 99), rng.choice("+-*/")
            return _copied(f"{left}{operation}{right}" if rng.random() < 0.6 else f"{left} {operation} {right}")
        case "postcode":
            return _copied("".join(rng.choices("0123456789", k=5)))
        case "enum" | "text":
            return _copied(rng.choice(kind.choices))
        case "list":
            assert kind.items is not None
            return _draw_list(rng, kind.items, frames, today)
        case "object":
            return _draw_object(rng, kind, frames, today)
    return _copied(frames.draw_distractor(rng, base_kind(kind.base), today))


def write_number(tenths: int, frames: LanguageFrames) -> Value:
    """A number with one decimal or none, with the decimal sign of the language."""
    from babel.numbers import format_decimal

    from openafm.data.synthetic.languages import locale_of

    value = tenths // 10 if tenths % 10 == 0 else tenths / 10
    text = str(value) if isinstance(value, int) else format_decimal(value, locale=locale_of(frames.language))
    return Value(value, text)


def enumerate_texts(rng: random.Random, texts: Sequence[str], frames: LanguageFrames) -> str:
    """`a, b and c` in the words of the language."""
    from babel.lists import format_list

    from openafm.data.synthetic.languages import locale_of

    if rng.random() < 0.3:
        return ", ".join(texts)
    return str(format_list(list(texts), locale=locale_of(frames.language)))


def _copied(text: str) -> Value:
    return Value(text, text, text)


def _draw_list(rng: random.Random, kind: Kind, frames: LanguageFrames, today: datetime.date) -> Value:
    values: dict[str, Value] = {}
    for _ in range(rng.randint(1, _MOST_ITEMS if kind.base != "object" else 3)):
        item = draw_value(rng, kind, frames, today)
        values.setdefault(item.text, item)
    text = enumerate_texts(rng, list(values), frames)
    return Value([item.value for item in values.values()], text, text)


def _draw_object(rng: random.Random, kind: Kind, frames: LanguageFrames, today: datetime.date) -> Value:
    frame = rng.choice(kind.part_texts)
    slots = {slot.name: slot for slot in frame.slots}
    drawn = {part.name: draw_value(rng, part.kind, frames, today, slots.get(part.name)) for part in kind.parts}

    def resolve(slot: Slot) -> Pieces:
        value = drawn[slot.name]
        return (Piece(value.adverbial if slot.form == "on" else value.text),)

    text = text_of(render(frame, rng, resolve, language=frames.language))
    return Value({name: value.value for name, value in drawn.items()}, text, text)
