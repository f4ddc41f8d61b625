"""The label sets, tools and forms of a language, read from labels.txt, tools.txt and forms.txt."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from openafm.data.synthetic.fields import Field, parse_fields
from openafm.data.synthetic.languages import Split, source_file
from openafm.data.synthetic.text_files.frames import LanguageFrames, check_slots, frames_of
from openafm.data.synthetic.text_files.source_text import (
    Frame,
    Line,
    SourceTextError,
    TextSection,
    parse_frame,
    read_with_more,
)
from openafm.data.synthetic.words import is_held_out

SourceT = TypeVar("SourceT")
ItemT = TypeVar("ItemT")

TOPICS = "topic"  # the label set of tagging: split by text only
_HELD_OUT_DOMAINS = 7  # one domain, tool or label set in this many is held out


@dataclass(frozen=True, kw_only=True)
class Label:
    """A label with other names for it, its description, and texts that have it."""

    name: str
    aliases: tuple[str, ...]
    description: str
    texts: tuple[Frame, ...]


@dataclass(frozen=True, kw_only=True)
class LabelSet:
    """Labels of which a text has exactly one."""

    name: str
    question: str
    labels: tuple[Label, ...]

    @functools.cached_property
    def weight(self) -> float:
        """Relative probability of the set in training: the square root of its number of texts."""
        return math.sqrt(sum(len(label.texts) for label in self.labels))


@dataclass(frozen=True, kw_only=True)
class ToolFrames:
    """A tool with requests that call it and its outputs."""

    name: str
    description: str
    parameters: tuple[Field, ...]
    requests: tuple[Frame, ...]
    outputs: tuple[Frame, ...]


@dataclass(frozen=True, kw_only=True)
class FormDomain:
    """A domain of forms: its fields and texts that state them."""

    name: str
    description: str
    fields: tuple[Field, ...]
    texts: tuple[Frame, ...]


@dataclass(frozen=True)
class SmallTalk:
    """A prompt for which no tool is needed, and the answer."""

    prompt: Frame
    answer: Frame


class Catalogs:
    """Every label set, tool and form of a language, checked. `catalog_of` has those of a split.

    With `errors`, mistakes are collected there and the section left out.

    Raises:
        SourceTextError: a mistake in a file, with its line.
    """

    def __init__(self, frames: LanguageFrames, errors: list[SourceTextError] | None = None) -> None:
        self._frames, self._errors = frames, errors
        language = frames.language
        self._english: dict[str, ToolFrames] = {}
        if frames.language != "en":
            self._english = {tool.name: tool for tool in catalogs("en").tools}
        self.label_sets = self._read(read_with_more(source_file(language, "labels.txt")), self._label_set)
        tools = read_with_more(source_file(language, "tools.txt"))
        self.tools: tuple[ToolFrames, ...] = self._read([section for section in tools if section.name != "none"], self._tool)
        talk = [line for section in tools if section.name == "none" for line in section.lines]
        self.small_talk = self._read(talk, self._small_talk)
        self.forms = self._read(read_with_more(source_file(language, "forms.txt")), self._form)

    def _read(self, sources: Sequence[SourceT], read: Callable[[SourceT], ItemT]) -> tuple[ItemT, ...]:
        items = []
        for source in sources:
            try:
                items.append(read(source))
            except SourceTextError as error:
                if self._errors is None:
                    raise
                self._errors.append(error)
        return tuple(items)

    def _label_set(self, section: TextSection) -> LabelSet:
        labels: dict[str, Label] = {}
        for _, group in itertools.groupby(section.lines, key=lambda line: line.file):
            lines = list(group)
            found = self._labels(lines)
            if labels and (unknown := found.keys() - labels.keys()):
                known = ", ".join(labels)
                raise lines[0].error(f"the set '{section.name}' has no label '{min(unknown)}'; known: {known}")
            labels |= {name: _merged(labels.get(name), label) for name, label in found.items()}
        if len(labels) < 2 or any(len(label.texts) < 2 for label in labels.values()):
            raise section.header.error(f"label set '{section.name}' needs two or more labels with two or more texts each")
        return LabelSet(name=section.name, question=" ".join(section.options), labels=tuple(labels.values()))

    def _labels(self, lines: Sequence[Line]) -> dict[str, Label]:
        """The labels of a set that one file has, by name."""
        labels: dict[str, Label] = {}
        texts: dict[str, list[Frame]] = {}
        name = ""
        for line in lines:
            if line.text.startswith(":"):
                name, aliases, description, *_ = (part.strip() for part in f"{line.text[1:]}||".split("|"))
                if name in labels:
                    raise line.error(f"a second label '{name}'; merge it with the first one")
                labels[name] = Label(name=name, aliases=_names(aliases), description=description, texts=())
                texts[name] = []
            elif not name:
                raise line.error("text before the first label; write ': label | other names | description'")
            else:
                texts[name].append(check_slots(parse_frame(line), self._frames.distractors))
        return {name: replace(label, texts=tuple(texts[name])) for name, label in labels.items()}

    def _tool(self, section: TextSection) -> ToolFrames:
        fields, lines = parse_fields(section.lines, self._frames)
        known = self._english.get(section.name)
        if known is not None:
            own = {field.name: field for field in fields}
            if unknown := own.keys() - {field.name for field in known.parameters}:
                raise section.header.error(f"the English tool has no parameter '{min(unknown)}'")
            fields = tuple(
                replace(field, kind=own[field.name].kind) if field.name in own else field for field in known.parameters
            )
        description = " ".join(section.options) or (known.description if known else "")
        if not description:
            raise section.header.error("a tool that text/en/tools.txt does not have needs '| description'")
        outputs = tuple(
            check_slots(parse_frame(line, line.text[1:].strip()), self._frames.distractors)
            for line in lines
            if line.text.startswith("=")
        )
        names = {field.name: field for field in fields}
        requests = tuple(parse_frame(line) for line in lines if not line.text.startswith("="))
        required = {field.name for field in fields if not field.is_optional}
        for frame in requests:
            _check_text(frame, names, self._frames, required)
        return ToolFrames(name=section.name, description=description, parameters=fields, requests=requests, outputs=outputs)

    def _small_talk(self, line: Line) -> SmallTalk:
        prompt, arrow, answer = line.text.partition(" => ")
        if not arrow:
            raise line.error("write 'request => answer'")
        talk = SmallTalk(parse_frame(line, prompt), parse_frame(line, answer))
        check_slots(talk.prompt, self._frames.distractors)
        check_slots(talk.answer, talk.prompt.names)
        return talk

    def _form(self, section: TextSection) -> FormDomain:
        fields, lines = parse_fields(section.lines, self._frames)
        if not fields or not lines:
            raise section.header.error(f"form '{section.name}' needs fields and texts")
        required = {field.name for field in fields if not field.is_optional}
        names = {field.name: field for field in fields}
        texts = tuple(parse_frame(line) for line in lines)
        for frame in texts:
            _check_text(frame, names, self._frames, required)
        return FormDomain(name=section.name, description=" ".join(section.options), fields=fields, texts=texts)


def _merged(label: Label | None, more: Label) -> Label:
    """A label with the other names and texts of another file; a description there is used if the label has none."""
    if label is None:
        return more
    return replace(
        label,
        aliases=tuple(dict.fromkeys((*label.aliases, *more.aliases))),
        description=label.description or more.description,
        texts=(*label.texts, *more.texts),
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _check_text(frame: Frame, fields: Mapping[str, Field], frames: LanguageFrames, required: set[str]) -> None:
    """Check the slots and the assignments of a text.

    Raises:
        SourceTextError: an unknown slot, a value that is not allowed, or a required field that is missing.
    """
    for slot in frame.slots:
        if slot.name not in fields:
            check_slots(Frame((slot,), frame.line), fields.keys() | frames.distractors)
        elif slot.value is not None:
            kind = fields[slot.name].kind
            allowed = ("true", "false") if kind.base == "boolean" else kind.choices
            if slot.value not in allowed and not (kind.base == "integer" and slot.value.lstrip("-").isdigit()):
                raise frame.line.error(f"'{slot.value}' is not a value of {slot.name}; known: {', '.join(allowed)}")
        elif slot.form not in ("", "on", "word"):
            raise frame.line.error(f"unknown form ':{slot.form}'; known: on, word")
    if missing := required - frame.required:
        raise frame.line.error(
            f"the required field '{min(missing)}' is missing; write {{{min(missing)}}} or make it optional"
        )


@functools.cache
def catalogs(language: str) -> Catalogs:
    """The catalogs of a language, read once."""
    return Catalogs(frames_of(language, "train"))


@dataclass(frozen=True, kw_only=True)
class CatalogSplit:
    """The part of the catalogs that a split uses."""

    label_sets: tuple[LabelSet, ...]
    tools: tuple[ToolFrames, ...]
    forms: tuple[FormDomain, ...]
    small_talk: tuple[SmallTalk, ...]


@functools.cache
def catalog_of(language: str, split: Split) -> CatalogSplit:
    """The catalogs of a language and split.

    One tool, form and label set of seven is held out, by its name: it is not in the training split in any language. One text
    in eight of the other label sets is held out too.
    """
    whole, is_for_scores = catalogs(language), split == "held_out"
    label_sets = [
        kept
        for labels in whole.label_sets
        if is_for_scores or not _is_held_out(labels.name)
        if (kept := labels if _is_held_out(labels.name) else _with_texts_of(labels, split))
    ]
    return CatalogSplit(
        label_sets=tuple(label_sets),
        tools=tuple(tool for tool in whole.tools if _is_held_out(tool.name) == is_for_scores),
        forms=tuple(form for form in whole.forms if _is_held_out(form.name) == is_for_scores),
        small_talk=tuple(talk for talk in whole.small_talk if is_held_out(talk.prompt.line.text, 8) == is_for_scores),
    )


def _is_held_out(name: str) -> bool:
    return name != TOPICS and is_held_out(name, _HELD_OUT_DOMAINS)


def _with_texts_of(labels: LabelSet, split: Split) -> LabelSet | None:
    """A label set with the texts of a split only; None if fewer than two labels have any."""
    kept = []
    for label in labels.labels:
        texts = tuple(text for text in label.texts if is_held_out(text.line.text, 8) == (split == "held_out"))
        if texts:
            kept.append(replace(label, texts=texts))
    return replace(labels, labels=tuple(kept)) if len(kept) > 1 else None
