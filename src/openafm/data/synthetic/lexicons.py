"""Lexicons: everything that the corpus says in one language, as data (`lexicon/<language>.json`).

A lexicon file is the JSON form of `Lexicon` below; an unknown or missing key is an error. Its texts use these signs:

| sign | meaning |
|---|---|
| `{slot}`, `{Slot}` | filled in; the same with a capital |
| `at <Café {proper}>` | only what stands in angle brackets is the name of the place, the date or the time |
| `[ {when}]` | left out when the slot inside is absent (families of events), or now and then (texts of reports) |
| `the |meeting` | a title after its article |
| `{person}(은/는)` | Korean particle: after a consonant / after a vowel |

Every text may use the slots person, other (someone else), n (a number), proper (a name such as cafés have) and place (with
its preposition); further slots stand beside the fields.

**Splits.** The last quarter of every list, rounded up, is held out, unless the list is "closed": `lexicon(language, split)`
returns a lexicon that holds only that split's part of each list, so that no task has to think about splits.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import json
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from openafm.core.config import Config, from_dict

LANGUAGES = ("en", "da", "nl", "fr", "de", "it", "nb", "pt", "es", "sv", "tr", "zh-Hans", "zh-Hant", "ja", "ko", "vi")
Split: TypeAlias = Literal["train", "held_out"]
Texts: TypeAlias = tuple[str, ...]
ItemT = TypeVar("ItemT")
SectionT = TypeVar("SectionT", bound="Section")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section(Config):
    """A part of a lexicon. `closed` names its lists that both splits share."""

    closed: ClassVar[frozenset[str]] = frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Time(Section):
    """A way to say a time of day. Slots: h, hh (24 hours), h12, mm, period.

    Without `hours` (first and last) or `minutes` it fits any; `period` comes from `Calendar.periods`.
    """

    closed: ClassVar[frozenset[str]] = frozenset({"hours", "minutes"})

    text: str
    hours: tuple[int, ...] = ()
    minutes: tuple[int, ...] = ()

    def fits(self, hour: int, minute: int) -> bool:
        return (not self.hours or self.hours[0] <= hour <= self.hours[1]) and (not self.minutes or minute in self.minutes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Period(Section):
    """A part of the day (am, 下午) and the hour at which it starts."""

    start: int
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calendar(Section):
    """How dates and times are written; all closed. Slots of dates: d, dd, m, mm, yyyy, iso, day, month, weekday."""

    closed: ClassVar[frozenset[str]] = frozenset(
        {"months", "weekdays", "days", "today", "tomorrow", "day_after_tomorrow", "weekday", "day_month", "day_month_year"}
        | {"numeric", "numeric_year", "iso", "times", "periods"}
        | {"when_both", "when_date", "when_time", "bare_both", "bare_date", "bare_time"}
    )

    months: Texts
    weekdays: Texts  # Monday first
    days: Texts = ()  # {day} for 1..31, where it is not the plain number
    today: Texts
    tomorrow: Texts
    day_after_tomorrow: Texts
    weekday: Texts
    day_month: Texts
    day_month_year: Texts
    numeric: Texts
    numeric_year: Texts
    iso: Texts
    times: tuple[Time, ...]
    periods: tuple[Period, ...] = ()
    when_both: Texts  # slots date, time and the bare ones date_bare, time_bare: the part in angle brackets alone
    when_date: Texts = ("{date}",)
    when_time: Texts = ("{time}",)
    bare_both: Texts
    bare_date: Texts = ("{date_bare}",)
    bare_time: Texts = ("{time_bare}",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EventWords(Section):
    """Messages that announce an event.

    A title is one of `errands`, `social` and `meetings` (alone), `social` and `meetings` with a person, `meetings` about a
    topic, or `named`. It may start with its article before a bar (else `article` is its article), nominative/accusative
    where they differ: `der/den |Zahnarzttermin`.
    """

    closed: ClassVar[frozenset[str]] = frozenset({"with_person", "with_topic"})

    article: str = ""
    errands: Texts
    social: Texts
    meetings: Texts
    named: Texts
    topics: Texts  # with their preposition, where one is needed
    with_person: Texts  # slots activity, person
    with_topic: Texts  # slots activity, topic
    families: Texts  # slots title, the_title, acc_title, when, when_bare, date, time, place, place_bare
    openers: Texts  # sentences before and after that hold no event
    closers: Texts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topic(Section):
    """A tag and sentences that call for it; each sentence takes each thing."""

    tag: str
    sentences: Texts  # slot thing
    things: Texts


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingWords(Section):
    """Messages about one to three topics; no topic is mentioned in the sentences of another."""

    closed: ClassVar[frozenset[str]] = frozenset({"instructions", "topics"})

    instructions: Texts
    topics: tuple[Topic, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report(Section):
    """A text of two to four sentences and the one that sums it up."""

    text: str
    summary: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class SummaryWords(Section):
    """Texts to sum up."""

    closed: ClassVar[frozenset[str]] = frozenset({"instructions"})

    instructions: Texts
    reports: tuple[Report, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wording(Section):
    """One message said in three ways. Slot: document."""

    casual: str
    formal: str
    short: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewriteWords(Section):
    """Messages to say in another way, and enumerations to write as a list."""

    closed: ClassVar[frozenset[str]] = frozenset({"make_formal", "make_casual", "make_short", "make_list"})

    make_formal: Texts
    make_casual: Texts
    make_short: Texts
    make_list: Texts
    wordings: tuple[Wording, ...]
    documents: Texts
    enumerations: Texts  # slot items
    items: Texts
    comma: str
    last_comma: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem(Section):
    """A word problem. Slots: a, b, thing; the answer also r, the result."""

    question: str
    answer: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoProblems(Section):
    """A word problem of two calculations, such as `+*`. Slots: a, b, c, d, thing; the answer also r and s."""

    operations: str
    question: str
    answer: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArithmeticWords(Section):
    """Word problems by operation. `things` stand after a number."""

    closed: ClassVar[frozenset[str]] = frozenset({"instructions"})

    instructions: Texts
    things: Texts
    add: tuple[Problem, ...]
    subtract: tuple[Problem, ...]
    multiply: tuple[Problem, ...]
    divide: tuple[Problem, ...]
    two: tuple[TwoProblems, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoryWords(Section):
    """Two plots. Lost: opening, lost, search, found, ending. Learn: opening, wish, failure, help, success, ending.

    Slots: hero, friend, and object (something small that is lost) or skill.
    """

    closed: ClassVar[frozenset[str]] = frozenset({"instructions"})

    instructions: Texts
    objects: Texts
    skills: Texts
    lost_prompts: Texts
    learn_prompts: Texts
    openings: Texts
    lost: Texts
    search: Texts
    found: Texts
    wish: Texts
    failure: Texts
    help: Texts
    success: Texts
    endings: Texts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lexicon(Section):
    """All of one language (and, once loaded, of one split)."""

    closed: ClassVar[frozenset[str]] = frozenset({"syllables"})

    language: str
    split: Split = "train"
    space: str = " "  # between sentences
    people: Texts
    propers: Texts
    syllables: Texts  # of invented proper names; the part held out is told by a checksum
    num_syllables: int = 3
    places: Texts
    calendar: Calendar
    event: EventWords
    tagging: TaggingWords
    summary: SummaryWords
    rewrite: RewriteWords
    arithmetic: ArithmeticWords
    story: StoryWords


@functools.cache
def whole_lexicon(language: str) -> Lexicon:
    """The lexicon file of a language, both splits.

    Raises:
        ConfigError: the file does not have the form of `Lexicon`.
    """
    file = importlib.resources.files("openafm.data.synthetic").joinpath("lexicon", f"{language}.json")
    return from_dict(Lexicon, json.loads(file.read_text("utf-8")))


@functools.cache
def lexicon(language: str, split: Split) -> Lexicon:
    """The lexicon of a language with each open list cut down to its part of `split`."""
    return dataclasses.replace(section_part(whole_lexicon(language), split), split=split)


def part(items: tuple[ItemT, ...], split: Split) -> tuple[ItemT, ...]:
    """The items of a split: the last quarter, rounded up, is held out."""
    num_train = len(items) - (len(items) + 3) // 4
    return items[:num_train] if split == "train" else items[num_train:]


def section_part(section: SectionT, split: Split) -> SectionT:
    """`section` with each of its lists cut down; closed lists stay whole, but the lists inside their items do not."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if isinstance(value, Section):
            changes[field.name] = section_part(value, split)
        elif isinstance(value, tuple):
            kept = value if field.name in section.closed else part(value, split)
            changes[field.name] = tuple(section_part(item, split) if isinstance(item, Section) else item for item in kept)
    return dataclasses.replace(section, **changes)
