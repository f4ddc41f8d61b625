"""Dates and times as people write them, from the patterns of a language, each with its value relative to a reference day."""

from __future__ import annotations

import datetime
import itertools
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from openafm.data.synthetic.languages import locale_of, source_file
from openafm.data.synthetic.rendering import BARE, Piece, Resolve, render, text_of, value_of
from openafm.data.synthetic.text_files.source_text import (
    Frame,
    Group,
    Line,
    MarkedSpan,
    TextSection,
    parse_frame,
    read_sections,
)

FIRST_DAY = datetime.date(2018, 1, 1)
_NUM_DAYS = (datetime.date(2039, 12, 31) - FIRST_DAY).days + 1

# Ways to name a day, with their shares. The names are sections of dates.txt.
DATE_SHARES = {
    "weekday": 0.36,
    "tomorrow": 0.10,
    "today": 0.05,
    "tonight": 0.04,
    "day_after_tomorrow": 0.05,
    "next_week": 0.06,
    "in_days": 0.03,
    "in_weeks": 0.03,
    "day_only": 0.05,
    "day_month": 0.14,
    "numeric": 0.05,
    "day_month_year": 0.04,
    "numeric_year": 0.02,
    "iso": 0.06,
}
SECTIONS = (*DATE_SHARES, "past", "when", "names")
TIME_SECTIONS = ("period", "time", "other")
DATE_SLOTS = frozenset({"weekday", "wd", "d", "dd", "m", "mm", "yyyy", "yy", "month", "mon", "iso", "n", "number"})
TIME_SLOTS = frozenset(
    {"h", "hh", "h12", "hh12", "mm", "m", "hour", "hour24", "next_hour", "next_h12", "next_hour24", "next_h"}
    | {"period", "minute", "to", "to_minute"}
)
WHEN_SLOTS = frozenset({"date", "date_bare", "time", "time_bare"})
_LIMITED = {"day": 31, "month": 12, "weekday": 7, "n": 59, "hour": 23, "minute": 59}
_EVENING = 18
# The hour and the half hour are the usual times.
_MINUTES = (0,) * 10 + (30,) * 5 + (15, 45) * 2 + (5, 10, 20, 25, 35, 40, 50, 55)
_LIST_SIZES = {7: "weekday", 12: "month", 31: "day"}
_RESERVED_LISTS = {"hour": 12, "hour24": 24}


@dataclass(frozen=True)
class Phrase:
    """A date or time: `text` with its preposition, `bare` without it, `value` as the answer has it."""

    text: str
    bare: str
    value: str
    section: str = ""


@dataclass(frozen=True)
class Pattern:
    """A line of dates.txt or times.txt, with limits for its numbers."""

    frame: Frame
    limits: Mapping[str, frozenset[int]]

    def fits(self, numbers: Mapping[str, int]) -> bool:
        return all(numbers[name] in allowed for name, allowed in self.limits.items() if name in numbers)


def parse_pattern(line: Line) -> Pattern:
    """Read `text <bare> ; limit 1-5`.

    Raises:
        SourceTextError: a malformed limit, or not exactly one `<...>`.
    """
    text, *limits = re.split(r" +; *", line.text)
    frame = parse_frame(line, text)
    spans = [part for part in frame.parts if isinstance(part, MarkedSpan)]
    if len(spans) != 1 or any(isinstance(part, Group) for part in frame.parts):
        raise line.error("a pattern has exactly one <...> and no [...]")
    return Pattern(frame=frame, limits=dict(_limit(line, limit) for limit in limits))


def _limit(line: Line, text: str) -> tuple[str, frozenset[int]]:
    match = re.fullmatch(r"(\w+) ([\d,\- ]+)", text)
    if match is None or match[1] not in _LIMITED:
        raise line.error(f"malformed limit '{text}'; write 'hour 8-19' or 'minute 0,30'; known: {', '.join(_LIMITED)}")
    numbers: set[int] = set()
    for part in match[2].replace(" ", "").split(","):
        low, _, high = part.partition("-")
        numbers.update(range(int(low), int(high or low) + 1))
    if not numbers or max(numbers) > _LIMITED[match[1]]:
        raise line.error(f"limit '{text}' is outside 0..{_LIMITED[match[1]]}")
    return match[1], frozenset(numbers)


class CalendarPhrases:
    """The date and time patterns of one language."""

    def __init__(self, language: str) -> None:
        self.language = language
        dates = {section.name: section for section in read_sections(source_file(language, "dates.txt"))}
        times = {section.name: section for section in read_sections(source_file(language, "times.txt"))}
        for found, known in ((dates, SECTIONS), (times, (*TIME_SECTIONS, "names"))):
            for name, section in found.items():
                if name not in known:
                    raise section.header.error(f"unknown section '{name}'; known: {', '.join(known)}")
        self.lists = _cldr_lists(language) | _lists(dates.get("names")) | _lists(times.get("names"))
        self.dates = {name: _patterns(dates[name]) for name in DATE_SHARES if name in dates}
        self.past = _frames_without_marks(dates["past"])
        self.when = tuple(parse_frame(line) for line in dates["when"].lines)
        self.times = _patterns(times["time"])
        self.other_times = _frames_without_marks(times["other"])
        self._periods = tuple(_period(line) for line in times["period"].lines) if "period" in times else ()
        self._limited = {name for name, patterns in self.dates.items() if any(pattern.limits for pattern in patterns)}
        self._fitting_times: dict[tuple[int, int], tuple[Pattern, ...]] = {}
        self._check_slots()
        self._check_times()

    def _check_slots(self) -> None:
        date_slots = DATE_SLOTS | self.lists.keys() - {"hour", "hour24"}
        for pattern in itertools.chain(*self.dates.values()):
            _require_known(pattern.frame, date_slots)
        for pattern in self.times:
            _require_known(pattern.frame, TIME_SLOTS)
        for frame in self.past:
            _require_known(frame, date_slots)
        for frame in self.when:
            _require_known(frame, WHEN_SLOTS)
        for frame in self.other_times:
            _require_known(frame, TIME_SLOTS)

    def _check_times(self) -> None:
        for hour, minute in itertools.product(range(6, 24), range(0, 60, 5)):
            if not self.fitting_times(hour, minute):
                line = self.times[0].frame.line
                raise line.error(f"no line of section 'time' can express {hour:02}:{minute:02}")

    def draw_date(
        self,
        rng: random.Random,
        today: datetime.date,
        *,
        evening: bool = False,
        shares: Mapping[str, float] = MappingProxyType(DATE_SHARES),
    ) -> Phrase:
        """A day on or after `today`, of the sections in `shares`; a phrase like "tonight" only with `evening`."""
        shares = {name: shares[name] for name in self.dates if name in shares and (evening or name != "tonight")}
        section = rng.choices(tuple(shares), tuple(shares.values()))[0]
        for _ in range(50):
            day, n = self._draw_day(rng, section, today)
            fitting = self.fitting_dates(section, day, n)
            if fitting:
                return self.write_date(rng, rng.choice(fitting), day, n, section)
        raise AssertionError(f"{self.language}: no pattern of dates.txt fits section '{section}'")

    def _draw_day(self, rng: random.Random, section: str, today: datetime.date) -> tuple[datetime.date, int]:
        """A day that the patterns of a section can name, and the number that they count."""
        match section:
            case "today" | "tonight":
                return today, 0
            case "tomorrow":
                return today + datetime.timedelta(1), 1
            case "day_after_tomorrow":
                return today + datetime.timedelta(2), 2
            case "weekday":
                return today + datetime.timedelta(rng.randint(1, 7)), 0
            case "next_week":
                return today + datetime.timedelta(7 - today.weekday() + rng.randrange(7)), 0
            case "in_days":
                n = rng.randint(2, 10)
                return today + datetime.timedelta(n), n
            case "in_weeks":
                n = rng.choice((1, 1, 2, 2, 2, 3, 4, 5))
                return today + datetime.timedelta(7 * n), n
            case "day_only":
                return today + datetime.timedelta(rng.randint(1, 27)), 0
        longest = 700 if section in ("day_month_year", "numeric_year", "iso") else 364
        return today + datetime.timedelta(rng.randrange(60 if rng.random() < 0.6 else longest)), 0

    def fitting_dates(self, section: str, day: datetime.date, n: int) -> tuple[Pattern, ...]:
        """The patterns of a section that can name `day`."""
        numbers = {"day": day.day, "month": day.month, "weekday": day.weekday() + 1, "n": n}
        patterns = self.dates[section]
        if section not in self._limited:
            return patterns
        return tuple(pattern for pattern in patterns if pattern.fits(numbers))

    def write_date(self, rng: random.Random, pattern: Pattern, day: datetime.date, n: int = 0, section: str = "") -> Phrase:
        """`day` in the words of a pattern."""
        return self._phrase(rng, pattern, self.date_resolver(day, n), day.isoformat(), section)

    def draw_time(self, rng: random.Random, *, evening: bool = False) -> Phrase:
        """A time from 06:00 to 23:55, mostly of the day."""
        hour = rng.randint(_EVENING, 22) if evening else rng.randint(8, 21) if rng.random() < 0.85 else rng.randint(6, 23)
        minute = rng.choice(_MINUTES)
        fitting = self.fitting_times(hour, minute)
        return self.write_time(rng, rng.choice(fitting), hour, minute)

    def fitting_times(self, hour: int, minute: int) -> tuple[Pattern, ...]:
        """The patterns that can name a time."""
        if (hour, minute) not in self._fitting_times:
            numbers = {"hour": hour, "minute": minute}
            self._fitting_times[hour, minute] = tuple(pattern for pattern in self.times if pattern.fits(numbers))
        return self._fitting_times[hour, minute]

    def write_time(self, rng: random.Random, pattern: Pattern, hour: int, minute: int) -> Phrase:
        """A time in the words of a pattern."""
        return self._phrase(rng, pattern, self.time_resolver(hour, minute), f"{hour:02}:{minute:02}")

    def write_past(self, rng: random.Random, today: datetime.date) -> str:
        """A day before `today`."""
        n = rng.randint(2, 12)
        resolve = self.date_resolver(today - datetime.timedelta(n), n)
        return text_of(render(rng.choice(self.past), rng, resolve, language=self.language))

    def write_other_time(self, rng: random.Random) -> str:
        """A time that belongs to no event."""
        resolve = self.time_resolver(rng.randint(6, 23), rng.choice(_MINUTES))
        return text_of(render(rng.choice(self.other_times), rng, resolve, language=self.language))

    def write_when(self, rng: random.Random, date: Phrase, time: Phrase, *, bare: bool = False) -> str:
        """A day and a time together; `bare` asks for one without a preposition in front, or without a particle behind."""
        values = {"date": date.text, "date_bare": date.bare, "time": time.text, "time_bare": time.bare}
        if bare:
            ends_bare = self.language in ("ja", "ko") or rng.random() < 0.5
            values |= {"date": date.bare, "time": time.bare} if ends_bare else {"date": date.bare}
        frame = rng.choice(self.when)
        return text_of(render(frame, rng, lambda slot: (Piece(values[slot.name]),), language=self.language))

    def ambiguities(self) -> Iterator[str]:
        """Descriptions of texts to which two patterns assign different values."""
        rng = random.Random(0)
        seen: dict[str, tuple[str, Line]] = {}
        for hour, minute in itertools.product(range(6, 24), range(0, 60, 5)):
            for pattern in self.fitting_times(hour, minute):
                yield from _clash(seen, self.write_time(rng, pattern, hour, minute), pattern)
        today = datetime.date(2031, 5, 7)
        seen = {}
        for offset in range(365):
            day = today + datetime.timedelta(offset)
            for section in ("day_month", "numeric", "day_month_year", "numeric_year", "iso"):
                for pattern in self.fitting_dates(section, day, 0) if section in self.dates else ():
                    yield from _clash(seen, self.write_date(rng, pattern, day), pattern)

    def _phrase(self, rng: random.Random, pattern: Pattern, resolve: Resolve, value: str, section: str = "") -> Phrase:
        pieces = render(pattern.frame, rng, resolve, language=self.language)
        return Phrase(text_of(pieces), value_of(pieces, BARE) or "", value, section)

    def date_resolver(self, day: datetime.date, n: int = 0) -> Resolve:
        """Return the values of the slots of a date pattern."""
        return lambda slot: (Piece(self._date_value(slot.name, day, n)),)

    def _date_value(self, name: str, day: datetime.date, n: int) -> str:
        match name:
            case "d":
                return str(day.day)
            case "dd":
                return f"{day.day:02}"
            case "m":
                return str(day.month)
            case "mm":
                return f"{day.month:02}"
            case "yyyy":
                return str(day.year)
            case "yy":
                return f"{day.year % 100:02}"
            case "iso":
                return day.isoformat()
            case "n":
                return str(n)
            case "number":
                return self._number(n)
        texts = self.lists[name]
        return texts[{7: day.weekday(), 12: day.month - 1, 31: day.day - 1}[len(texts)]]

    def time_resolver(self, hour: int, minute: int) -> Resolve:
        """Return the values of the slots of a time pattern."""
        return lambda slot: (Piece(self._time_value(slot.name, hour, minute)),)

    def _time_value(self, name: str, hour: int, minute: int) -> str:
        if name.startswith("next_"):
            return self._time_value(name.removeprefix("next_"), (hour + 1) % 24, minute)
        match name:
            case "h":
                return str(hour)
            case "hh":
                return f"{hour:02}"
            case "h12":
                return str((hour - 1) % 12 + 1)
            case "hh12":
                return f"{(hour - 1) % 12 + 1:02}"
            case "m":
                return str(minute)
            case "mm":
                return f"{minute:02}"
            case "to":
                return str(60 - minute)
            case "minute":
                return self._number(minute)
            case "to_minute":
                return self._number(60 - minute)
            case "period":
                return next((text for start, text in reversed(self._periods) if start <= hour), "")
            case "hour":
                return self.lists[name][(hour - 1) % 12]
        return self.lists[name][hour]

    def _number(self, number: int) -> str:
        words = self.lists.get("number", ())
        return words[number - 1] if 0 < number <= len(words) else str(number)


def draw_reference_day(rng: random.Random) -> datetime.date:
    """The day on which a message is read: any of 2018-2039."""
    return FIRST_DAY + datetime.timedelta(days=rng.randrange(_NUM_DAYS))


def _cldr_lists(language: str) -> dict[str, tuple[str, ...]]:
    """Names of weekdays and months by Unicode's CLDR."""
    locale = locale_of(language)
    return {
        "weekday": tuple(locale.days["format"]["wide"][day] for day in range(7)),
        "wd": tuple(locale.days["format"]["abbreviated"][day] for day in range(7)),
        "month": tuple(locale.months["format"]["wide"][month] for month in range(1, 13)),
        "mon": tuple(locale.months["format"]["abbreviated"][month] for month in range(1, 13)),
    }


def _lists(section: TextSection | None) -> dict[str, tuple[str, ...]]:
    """Lists of words: `name = a, b, c`."""
    lists: dict[str, tuple[str, ...]] = {}
    for line in section.lines if section else ():
        name, equals, words = (part.strip() for part in line.text.partition("="))
        texts = tuple(word.strip() for word in re.split(r"[,、،]", words))
        expected = _RESERVED_LISTS.get(name)
        if not equals or (expected and len(texts) != expected):
            raise line.error(f"expected '{name} = ' and {expected or 'a list of'} words, got {len(texts)}")
        if name != "number" and not expected and len(texts) not in _LIST_SIZES:
            raise line.error(f"list '{name}' has {len(texts)} words; 7 are weekdays, 12 months, 31 days of a month")
        lists[name] = texts
    return lists


def _patterns(section: TextSection) -> tuple[Pattern, ...]:
    return tuple(parse_pattern(line) for line in section.lines)


def _frames_without_marks(section: TextSection) -> tuple[Frame, ...]:
    """Frames whose `<...>` have no meaning."""
    return tuple(parse_frame(line, re.sub(r"[<>]|(?: ;.*)", "", line.text)) for line in section.lines)


def _period(line: Line) -> tuple[int, str]:
    start, _, text = line.text.partition(" ")
    if not start.isdigit():
        raise line.error("expected the hour at which the period starts and its name, such as '12 pm'")
    return int(start), text


def _require_known(frame: Frame, known: frozenset[str]) -> None:
    for slot in frame.slots:
        if slot.name not in known:
            raise frame.line.error(f"unknown slot '{{{slot.name}}}'; known: {', '.join(sorted(known))}")


def _clash(seen: dict[str, tuple[str, Line]], phrase: Phrase, pattern: Pattern) -> Iterator[str]:
    value, line = seen.setdefault(phrase.bare.casefold(), (phrase.value, pattern.frame.line))
    if value != phrase.value:
        here = pattern.frame.line
        yield f"{here.file}:{here.number}: '{phrase.bare}' means {phrase.value}, in line {line.number} it means {value}"
