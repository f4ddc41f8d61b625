"""Read the text files that people write by hand: sections of lines, and frames with slots (docs/corpus-authoring.md)."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from openafm.core.errors import OpenAFMError

_HEADER = re.compile(r"== *(\S.*)")
_SLOT = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?::(?P<form>\w+))?(?:/(?P<divisor>\d+))?(?:=(?P<value>[^{}]*))?")
_SPAN = re.compile(r"<(?:(title|place): ?)?")
_PARTICLE = re.compile(r"\(([^()|/<>{}\[\]]{1,4})/([^()|/<>{}\[\]]{1,4})\)")
_PLAIN = re.compile(r"[^{}\[\]<>()|\\]+")
_ESCAPES = {"n": "\n"}


class SourceTextError(OpenAFMError):
    """A hand-written file has a mistake; the message has the file and the line number."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a file, with its number for error messages."""

    text: str
    number: int
    file: str

    def error(self, message: str) -> SourceTextError:
        return SourceTextError(f"{self.file}:{self.number}: {message}")


@dataclass(frozen=True, kw_only=True)
class TextSection:
    """The lines below one `== name` header. `options` are the parts of the header after `|`."""

    name: str
    options: tuple[str, ...]
    header: Line
    lines: tuple[Line, ...]


def read_sections(path: Path) -> tuple[TextSection, ...]:
    """Return the sections of a file. Lines that start with `#` and empty lines are left out.

    Raises:
        SourceTextError: the file is missing or is not UTF-8, a line precedes the first header, or two sections share a name.
    """
    file = "/".join(path.parts[-2:])
    try:
        texts = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise SourceTextError(f"{file}: cannot be read as UTF-8 text ({error})") from error
    found: list[tuple[Line, list[Line]]] = []
    for number, text in enumerate(texts, start=1):
        if not text.strip() or text.startswith("#"):
            continue
        line = Line(text=text.rstrip(), number=number, file=file)
        if match := _HEADER.fullmatch(line.text):
            found.append((Line(text=match[1], number=number, file=file), []))
        elif not found:
            raise line.error("text before the first header; start the file with '== name'")
        else:
            found[-1][1].append(line)
    sections: dict[str, TextSection] = {}
    for header, lines in found:
        name, *options = (part.strip() for part in header.text.split("|"))
        if name in sections:
            raise header.error(f"a second section '{name}'; merge it with the first one")
        sections[name] = TextSection(name=name, options=tuple(options), header=header, lines=tuple(lines))
    return tuple(sections.values())


def read_with_more(path: Path) -> tuple[TextSection, ...]:
    """Return the sections of a file and of its continuations: labels.txt, labels_sports.txt, labels_work.txt.

    A section of a continuation that an earlier file has too adds its lines to the first one.

    Raises:
        SourceTextError: a file cannot be read, see `read_sections`, or the second header of a section has options.
    """
    sections: dict[str, TextSection] = {}
    for file in (path, *sorted(path.parent.glob(f"{path.stem}_*{path.suffix}"))):
        for section in read_sections(file):
            first = sections.setdefault(section.name, section)
            if first is not section:
                if section.options:
                    raise section.header.error(f"write what follows '== {section.name}' in {first.header.file}")
                sections[section.name] = replace(first, lines=first.lines + section.lines)
    return tuple(sections.values())


@dataclass(frozen=True)
class Literal:
    """Text as written."""

    text: str


@dataclass(frozen=True)
class Slot:
    """`{name}`, `{Name}` with a capital letter, `{name:form}`, `{name/60}`, or `{name=value}`, which writes nothing."""

    name: str
    form: str = ""
    divisor: int = 1
    value: str | None = None
    capital: bool = False


@dataclass(frozen=True)
class MarkedSpan:
    """Text between `<` and `>`: the value of a field, letter by letter. An empty field is the bare part of a phrase."""

    field: str
    parts: Parts


@dataclass(frozen=True)
class Choice:
    """`(a|b|c)`: one of several wordings."""

    options: tuple[Parts, ...]


@dataclass(frozen=True)
class Group:
    """`[...]`: text that may be left out, and the names of the slots and spans in it."""

    parts: Parts
    names: frozenset[str]


@dataclass(frozen=True)
class Particle:
    """`(이/가)` after Korean text: the first form follows a final consonant, the second a vowel."""

    after_consonant: str
    after_vowel: str


Part: TypeAlias = Literal | Slot | MarkedSpan | Choice | Group | Particle
Parts: TypeAlias = tuple[Part, ...]


@dataclass(frozen=True)
class Frame:
    """A sentence frame as parts, with the line that it was read from."""

    parts: Parts
    line: Line = field(compare=False)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Every slot of the frame, those of optional groups and choices too."""
        return tuple(walk_slots(self.parts))

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """Names of all slots and marked spans."""
        return names_of(self.parts)

    @functools.cached_property
    def required(self) -> frozenset[str]:
        """Names of the slots and spans outside optional groups."""
        return names_of(tuple(part for part in self.parts if not isinstance(part, Group)))


def walk(parts: Parts) -> Iterator[Part]:
    """Yield every part, nested ones after the part that contains them."""
    for part in parts:
        yield part
        match part:
            case MarkedSpan() | Group():
                yield from walk(part.parts)
            case Choice():
                for option in part.options:
                    yield from walk(option)


def walk_slots(parts: Parts) -> Iterator[Slot]:
    return (part for part in walk(parts) if isinstance(part, Slot))


def names_of(parts: Parts) -> frozenset[str]:
    """Names of the slots and of the marked spans in `parts`."""
    return frozenset(
        part.name if isinstance(part, Slot) else part.field for part in walk(parts) if isinstance(part, Slot | MarkedSpan)
    ) - {""}


def parse_frame(line: Line, text: str | None = None) -> Frame:
    """Return the frame that a line holds, or `text` as part of that line.

    Raises:
        SourceTextError: a bracket is not closed, a group is nested in a group, or a slot is malformed.
    """
    reader = _FrameParser(line, line.text if text is None else text)
    return Frame(parts=reader.parts(""), line=line)


class _FrameParser:
    """Recursive descent over the text of one frame."""

    def __init__(self, line: Line, text: str) -> None:
        self._line, self._text, self._at = line, text, 0
        self._opened, self._ended = "", ""

    def parts(self, closing: str) -> Parts:
        """Parts up to `closing`, or to the end of the text if that is empty; the closing bracket is consumed."""
        found: list[Part] = []
        literal: list[str] = []

        def end_literal() -> None:
            if literal:
                found.append(Literal("".join(literal)))
                literal.clear()

        text = self._text
        while self._at < len(text):
            if plain := _PLAIN.match(text, self._at):
                literal.append(plain[0])
                self._at = plain.end()
                continue
            char = text[self._at]
            if char == closing or (closing == ")" and char == "|"):
                end_literal()
                self._at += 1
                self._ended = char
                return tuple(found)
            part = self._special(char)
            if part is None:
                if char == "\\":
                    self._at += 1
                    char = text[self._at : self._at + 1]
                    char = _ESCAPES.get(char, char)
                elif char in "]>}":
                    raise self._line.error(f"'{char}' closes nothing; write '\\{char}' for the character")
                literal.append(char)
                self._at += 1
            else:
                end_literal()
                found.append(part)
        end_literal()
        if closing:
            raise self._line.error(f"a bracket is not closed: '{closing}' is missing")
        return tuple(found)

    def _special(self, char: str) -> Part | None:
        """The part that begins here, or None for plain text."""
        match char:
            case "{":
                return self._slot()
            case "[":
                self._at += 1
                parts = self._nested("]")
                return Group(parts, names_of(parts))
            case "<":
                match = _SPAN.match(self._text, self._at)
                assert match is not None
                self._at = match.end()
                return MarkedSpan(match[1] or "", self._nested(">"))
            case "(":
                particle = _PARTICLE.match(self._text, self._at)
                if particle and self._at and self._text[self._at - 1] in "}>":
                    self._at = particle.end()
                    return Particle(particle[1], particle[2])
                if "|" in self._text[self._at : self._close_of_choice()]:
                    return self._choice()
        return None

    def _nested(self, closing: str) -> Parts:
        if closing in self._opened:
            raise self._line.error(f"'{closing}' is nested in another one of its kind; write two frames instead")
        before, self._opened = self._opened, self._opened + closing
        parts = self.parts(closing)
        self._opened = before
        return parts

    def _choice(self) -> Choice:
        self._at += 1
        options = [self.parts(")")]
        while self._ended == "|":
            options.append(self.parts(")"))
        return Choice(tuple(options))

    def _close_of_choice(self) -> int:
        close = self._text.find(")", self._at)
        return len(self._text) if close < 0 else close

    def _slot(self) -> Slot:
        close = self._text.find("}", self._at)
        match = _SLOT.fullmatch(self._text[self._at + 1 : close]) if close > 0 else None
        if match is None:
            raise self._line.error(f"malformed slot at '{self._text[self._at : self._at + 20]}'; write '{{name}}'")
        self._at = close + 1
        name = match["name"]
        return Slot(
            name=name.lower(),
            form=match["form"] or "",
            divisor=int(match["divisor"] or 1),
            value=match["value"],
            capital=name[0].isupper(),
        )
