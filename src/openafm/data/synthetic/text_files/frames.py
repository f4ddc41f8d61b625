"""The hand-written frames of a language: read, checked and split."""

from __future__ import annotations

import datetime
import functools
import random
import re
import string
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from openafm.data.synthetic.calendar import CalendarPhrases
from openafm.data.synthetic.languages import Split, source_file
from openafm.data.synthetic.rendering import Piece, Pieces, render, text_of
from openafm.data.synthetic.text_files.source_text import (
    Frame,
    Group,
    Line,
    MarkedSpan,
    Slot,
    SourceTextError,
    TextSection,
    parse_frame,
    read_sections,
    read_with_more,
    walk,
)
from openafm.data.synthetic.words import LanguageWords, is_held_out, split_of, words_of

ItemT = TypeVar("ItemT")

FIELD_SLOTS = frozenset({"title", "date", "date_bare", "time", "time_bare", "when", "when_bare", "place", "place_bare"})
DISTRACTORS = frozenset({"other_date", "other_time", "other_place", "other_title", "past_date", "weekday", "month"})
TITLE_LISTS = ("topic", "family", "thing")
INSTRUCTION_SECTIONS = {
    "event": frozenset[str](),
    "event_or_null": frozenset[str](),
    "events_list": frozenset[str](),
    "today": frozenset({"today"}),
    "today_format": frozenset({"weekday", "wd", "d", "dd", "m", "mm", "yyyy", "month", "mon", "iso", "day"}),
    "week": frozenset({"week"}),
    "week_item": frozenset({"weekday", "wd", "d", "dd", "m", "mm", "yyyy", "month", "mon", "iso", "day"}),
    "lookup": frozenset[str](),
    "lookup_question": frozenset({"key"}),
    "form": frozenset[str](),
    "label": frozenset[str](),
    "label_list": frozenset({"labels"}),
    "tag": frozenset[str](),
    "tool": frozenset[str](),
    "answer": frozenset({"output"}),
    "no_tool": frozenset[str](),
    "also": frozenset({"first", "second"}),
    "wrap": frozenset({"request"}),
}
_OPEN_KINDS = ("hobby", "food", "animal", "product", "job", "company", "word", "name")
_HELD_OUT_FRAMES = 8  # one frame in this many is held out


@dataclass(frozen=True)
class Title:
    """A title, and what precedes it in frames that ask for a form: `{title:the}` takes `forms["the"]`."""

    frame: Frame
    forms: Mapping[str, str]


def base_kind(name: str) -> str:
    """`person2` is another word of the kind `person`."""
    return name.rstrip(string.digits) or name


def parse_title(line: Line, defaults: Mapping[str, str]) -> Title:
    """Read `title | the=the | a=a`."""
    text, *options = (part.strip() for part in line.text.split(" |"))
    return Title(frame=parse_frame(line, text), forms={**defaults, **parse_forms(line, options)})


def parse_forms(line: Line, options: list[str] | tuple[str, ...]) -> dict[str, str]:
    forms = {}
    for option in options:
        match = re.fullmatch(r"(\w+)=(.*)", option.strip().removeprefix("|").strip())
        if match is None:
            raise line.error(f"malformed form '{option}'; write 'the=the'")
        forms[match[1]] = match[2].strip()
    return forms


class LanguageFrames:
    """Every hand-written frame of one language and split, checked.

    With `errors`, mistakes in lines are collected there, and the lines left out.

    Raises:
        SourceTextError: a mistake in a file, with its line.
    """

    def __init__(self, language: str, split: Split, errors: list[SourceTextError] | None = None) -> None:
        self._errors = errors
        self.language, self.split = language, split
        self.words: LanguageWords = words_of(language, split)
        self.calendar = CalendarPhrases(language)
        self.titles, self.title_patterns, self.title_lists = self._read_titles(source_file(language, "titles.txt"))
        self.places = self._read_places(source_file(language, "places.txt"))
        self.distractors = self.words.kinds | DISTRACTORS | set(TITLE_LISTS)
        self.events = self._read_events(source_file(language, "events.txt"))
        self.plain_events = tuple(frame for frame in self.events if frame.line.file == f"{language}/events.txt")
        self.others, self.openers, self.closers = self._read_others(source_file(language, "other.txt"))
        self.instructions = self._read_instructions(source_file(language, "instructions.txt"))

    def _parse(self, lines: Iterable[Line], read: Callable[[Line], ItemT]) -> list[ItemT]:
        """The result of `read` for each line."""
        items = []
        for line in lines:
            try:
                items.append(read(line))
            except SourceTextError as error:
                if self._errors is None:
                    raise
                self._errors.append(error)
        return items

    def of_split(self, frames: list[Frame]) -> tuple[Frame, ...]:
        """The frames of this split; all of them if one side would be empty."""
        part = [frame for frame in frames if is_held_out(frame.line.text, _HELD_OUT_FRAMES) == (self.split == "held_out")]
        return tuple(part or frames)

    def draw_title(self, rng: random.Random, form: str = "") -> tuple[str, str]:
        """What precedes a title in this form, and the title."""
        for _ in range(200):
            if rng.random() < 0.45:
                title = rng.choice(self.titles[rng.choice(tuple(self.titles))])
                head = title
            else:
                title = rng.choice(self.title_patterns)
                first = title.frame.parts[0]
                head = title
                if isinstance(first, Slot) and first.name in self.titles and form not in title.forms:
                    head = rng.choice(self.titles[first.name])
            if form and form not in head.forms:
                continue
            values: dict[str, Pieces] = {}

            def resolve(slot: Slot, values: dict[str, Pieces] = values, title: Title = title, head: Title = head) -> Pieces:
                if slot.name not in values:
                    kind = base_kind(slot.name)
                    if kind in self.titles:
                        inner = head if head is not title else rng.choice(self.titles[kind])
                        values[slot.name] = render(inner.frame, rng, resolve, language=self.language)
                    else:
                        values[slot.name] = (Piece(self.draw_word(rng, kind)),)
                return values[slot.name]

            text = text_of(render(title.frame, rng, resolve, language=self.language))
            before = head.forms.get(form, "") if form else ""
            return (before + (" " if before and before[-1].isalnum() else ""), text)
        raise AssertionError(f"{self.language}/titles.txt: no title has the form '{form}'")

    def draw_open_title(self, rng: random.Random) -> str:
        """A title of any words, which can only be copied."""
        words = [self.words.draw(rng, rng.choice(_OPEN_KINDS)) for _ in range(rng.choice((1, 1, 2)))]
        words = [word if rng.random() < 0.2 else word.lower() for word in words]
        match rng.choice(("plain", "plain", "plain", "with", "owner")):
            case "with":
                words += [rng.choice(("with", "with", "for")), self.words.draw(rng, "person")]
            case "owner":
                words.insert(0, self.words.draw(rng, "person") + "'s")
        return " ".join(words)

    def draw_place(self, rng: random.Random) -> tuple[Pieces, str]:
        """A place with its preposition, the bare part marked, and the bare part."""
        values: dict[str, Pieces] = {}

        def resolve(slot: Slot) -> Pieces:
            if slot.name not in values:
                values[slot.name] = (Piece(self.draw_word(rng, base_kind(slot.name))),)
            return values[slot.name]

        pieces = render(rng.choice(self.places), rng, resolve, language=self.language)
        return pieces, next(piece.text for piece in pieces if piece.field)

    def draw_word(self, rng: random.Random, kind: str) -> str:
        """A word of any kind that titles, places and distractors may have."""
        if kind in self.title_lists:
            return rng.choice(self.title_lists[kind])
        if kind == "place_bare":
            return self.draw_place(rng)[1]
        return self.words.draw(rng, kind)

    def draw_distractor(self, rng: random.Random, kind: str, today: datetime.date) -> str:
        """A word, or a day, time, place or title that is not the event's."""
        match kind:
            case "other_date":
                return self.calendar.draw_date(rng, today).bare
            case "other_time":
                return self.calendar.write_other_time(rng)
            case "past_date":
                return self.calendar.write_past(rng, today)
            case "other_place":
                return text_of(self.draw_place(rng)[0])
            case "other_title":
                return self.draw_title(rng)[1]
            case "weekday" | "month":
                return rng.choice(self.calendar.lists[kind])
        return self.draw_word(rng, kind)

    def _read_titles(self, path: Path) -> tuple[dict[str, list[Title]], list[Title], dict[str, tuple[str, ...]]]:
        titles: dict[str, list[Title]] = {}
        lists: dict[str, tuple[str, ...]] = {}
        sections = read_sections(path)
        for section in sections:
            if section.name in TITLE_LISTS:
                lists[section.name] = split_of((line.text for line in section.lines), self.split)
            elif section.name.startswith("activity"):
                defaults = parse_forms(section.header, section.options)
                read = functools.partial(parse_title, defaults=defaults)
                titles[section.name] = split_titles(self._parse(section.lines, read), self.split)
            elif section.name != "pattern":
                raise section.header.error(
                    f"unknown section '{section.name}'; known: activity..., pattern, {', '.join(TITLE_LISTS)}"
                )
        known = self.words.kinds | titles.keys() | lists.keys() | {"place_bare"}

        def read_pattern(line: Line) -> Title:
            title = parse_title(line, {})
            check_slots(title.frame, known)
            return title

        patterns = self._parse(_section(sections, path, "pattern").lines, read_pattern)
        return titles, split_titles(patterns, self.split), lists

    def _read_places(self, path: Path) -> tuple[Frame, ...]:
        known = self.words.kinds | set(TITLE_LISTS)

        def read(line: Line) -> Frame:
            frame = parse_frame(line)
            if sum(isinstance(part, MarkedSpan) for part in walk(frame.parts)) != 1:
                raise line.error("mark the place with one <...>")
            return check_slots(frame, known)

        return self.of_split(self._parse(_section(read_sections(path), path, "place").lines, read))

    def _read_events(self, path: Path) -> tuple[Frame, ...]:
        forms = {form for titles in self.titles.values() for title in titles for form in title.forms}

        def read(line: Line) -> Frame:
            return check_event_frame(parse_frame(line), self.distractors, forms)

        return self.of_split([frame for section in read_with_more(path) for frame in self._parse(section.lines, read)])

    def _read_others(self, path: Path) -> tuple[tuple[Frame, ...], tuple[Frame, ...], tuple[Frame, ...]]:
        around: dict[str, tuple[Frame, ...]] = {"opener": (), "closer": ()}
        others: list[Frame] = []

        def read(line: Line) -> Frame:
            return check_slots(parse_frame(line), self.distractors | {"place", "place_bare"})

        for section in read_with_more(path):
            frames = self._parse(section.lines, read)
            if section.name in around:
                around[section.name] = self.of_split(frames)
            else:
                others += frames
        return self.of_split(others), around["opener"], around["closer"]

    def _read_instructions(self, path: Path) -> dict[str, tuple[Frame, ...]]:
        found = {}
        for section in read_sections(path):
            if section.name not in INSTRUCTION_SECTIONS:
                raise section.header.error(f"unknown section '{section.name}'; known: {', '.join(INSTRUCTION_SECTIONS)}")
            known = INSTRUCTION_SECTIONS[section.name]
            required = known if len(known) < 3 else frozenset[str]()

            def read(line: Line, known: frozenset[str] = known, required: frozenset[str] = required) -> Frame:
                frame = check_slots(parse_frame(line), known)
                if required - frame.names:
                    raise line.error(f"the slot {{{min(required - frame.names)}}} is missing")
                return frame

            frames = self._parse(section.lines, read)
            found[section.name] = self.of_split(frames) if len(frames) >= _HELD_OUT_FRAMES else tuple(frames)
        return found


def split_titles(titles: list[Title], split: Split) -> list[Title]:
    """The titles of a split; all of them if one side would be empty."""
    part = [title for title in titles if is_held_out(title.frame.line.text) == (split == "held_out")]
    return part or titles


def check_event_frame(frame: Frame, distractors: frozenset[str] | set[str], forms: set[str]) -> Frame:
    """Return a frame of events.txt that has one title and at most one place.

    Raises:
        SourceTextError: it does not.
    """
    check_slots(frame, FIELD_SLOTS | distractors)
    fields: list[str] = []
    for part in walk(frame.parts):
        match part:
            case Slot(name="when" | "when_bare"):
                fields += ["date", "time"]
            case Slot(name=name, form=form) if name in FIELD_SLOTS:
                fields.append(name.removesuffix("_bare"))
                if form and form not in forms:
                    raise frame.line.error(f"no title has the form '{form}'; known: {', '.join(sorted(forms))}")
            case MarkedSpan(field=field):
                if not field:
                    raise frame.line.error("mark spans as <title: ...> or <place: ...>, or write '\\<' for the character")
                fields.append(field)
    for field in ("title", "place"):
        if fields.count(field) > 1:
            raise frame.line.error(f"'{field}' appears {fields.count(field)} times; once is allowed")
    if "title" not in fields:
        raise frame.line.error("the frame has no title; write {title}, {title:form} or <title: ...>")
    if any(
        isinstance(part, Group) and "title" in {s.name for s in walk(part.parts) if isinstance(s, Slot)}
        for part in frame.parts
    ):
        raise frame.line.error("the title must not be in [...]")
    return frame


def check_slots(frame: Frame, known: AbstractSet[str]) -> Frame:
    """Return the frame if every slot is known; the number at the end of a name does not count.

    Raises:
        SourceTextError: an unknown slot.
    """
    for slot in frame.slots:
        if slot.name not in known and base_kind(slot.name) not in known:
            raise frame.line.error(f"unknown slot '{{{slot.name}}}'; known: {', '.join(sorted(known))}")
    return frame


def _section(sections: tuple[TextSection, ...], path: Path, name: str) -> TextSection:
    for section in sections:
        if section.name == name:
            return section
    raise Line(text="", number=1, file="/".join(path.parts[-2:])).error(f"the section '== {name}' is missing")


@functools.cache
def frames_of(language: str, split: Split) -> LanguageFrames:
    """The frames of a language and split, read once."""
    return LanguageFrames(language, split)
