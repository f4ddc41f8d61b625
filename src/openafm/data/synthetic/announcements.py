"""What a flyer or a notice announces: one event, and lines with other dates, times and names around it."""

from __future__ import annotations

import datetime
import random
import re
from dataclasses import dataclass, replace

from openafm.data.synthetic.calendar import CalendarPhrases, Phrase, draw_reference_day
from openafm.data.synthetic.languages import Split
from openafm.data.synthetic.rendering import capitalize, lower
from openafm.data.synthetic.text_files.posters import PosterTexts, poster_texts

# Ways to write the day, with their shares. A day without a year is the first such day after the reference day.
_DATE_SECTIONS = {"day_month_year": 0.4, "day_month": 0.35, "numeric_year": 0.15, "iso": 0.03, "numeric": 0.07}
_MINUTES = (0,) * 6 + (30,) * 3 + (15, 45)
_IN_DIGITS_SHARE = 0.92  # of dates and times; others are in words
_LONGEST_TITLE, _LONGEST_LINE, _TRIES = 42, 60, 4
_UPPER_SHARE = 0.2
NO_CAPITALS = frozenset({"tr", "zh-Hans", "zh-Hant", "ja", "ko"})  # dotted i; no case


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """The texts of an announcement as it shows them, and the event that they announce.

    `event` has the fields of the text corpus: title and location letter by letter, date and time normalized.
    """

    language: str
    title: str
    date: str
    time: str
    place: str
    event: dict[str, str]
    today: datetime.date
    labels: dict[str, str]
    free: str
    host: str
    lines: tuple[str, ...]

    @property
    def all_text(self) -> str:
        """Every character that a flyer of it may show."""
        return " ".join(
            (self.title, self.date, self.time, self.place, *self.labels.values(), self.free, self.host, *self.lines, ":·")
        )


def draw_announcement(rng: random.Random, language: str, split: Split) -> Announcement:
    """Return an announcement in a language."""
    texts = poster_texts(language, split)
    calendar = texts.calendar
    today = draw_reference_day(rng)
    date, day = _draw_date(rng, calendar, today)
    hour, minute = rng.randint(9, 21), rng.choice(_MINUTES)
    time = _draw_time(rng, calendar, hour, minute)
    values = {"city": texts.frames.draw_word(rng, "city")}
    title = _short(rng, texts, "title", values, _LONGEST_TITLE)
    if language not in NO_CAPITALS and rng.random() < _UPPER_SHARE:
        title = title.upper()
    place = _short(rng, texts, "venue", values, _LONGEST_LINE)
    start = hour * 60 + minute
    opening, ending = start - rng.choice((30, 60)), min(start + rng.choice((60, 90, 120, 180)), 23 * 60 + 55)
    before = day - datetime.timedelta(rng.randint(3, 20))
    values |= {
        "time2": _draw_time(rng, calendar, *divmod(opening, 60)).bare,
        "time3": _draw_time(rng, calendar, *divmod(ending, 60)).bare,
        "date2": _write_date(rng, calendar, date.section, before).bare,
    }
    return Announcement(
        language=language,
        title=capitalize(title, language),
        date=capitalize(date.bare, language),
        time=capitalize(time.bare, language) if rng.random() < 0.5 else time.bare,
        place=capitalize(place, language),
        event={"title": capitalize(title, language), "date": date.value, "time": time.value}
        | {"location": capitalize(place, language)},
        today=today,
        labels={field: texts.draw(rng, field) for field in ("date", "time", "place")},
        free=texts.draw(rng, "free"),
        host=_short(rng, texts, "host", values, _LONGEST_LINE),
        lines=texts.draw_several(rng, "line", rng.randint(1, 5), values),
    )


def with_random_words(rng: random.Random, content: Announcement) -> Announcement:
    """Return an announcement with random words in title, place, host and lines, of letters of the announcement.

    Names repeat, so that a model memorizes them from a few thousand flyers; random words must be read.
    """
    letters = sorted({lower(char, content.language) for char in content.all_text if _is_plain_letter(char)})

    def random_word(match: re.Match[str]) -> str:
        word = "".join(rng.choices(letters, k=len(match[0])))
        if match[0].isupper() and content.language not in NO_CAPITALS:
            return word.upper()
        return capitalize(word, content.language) if match[0][0].isupper() else word

    def randomized(text: str) -> str:
        return re.sub(r"[^\W\d_]+", random_word, text)

    title, place = randomized(content.title), randomized(content.place)
    return replace(
        content,
        title=title,
        place=place,
        event={**content.event, "title": title, "location": place},
        host=randomized(content.host),
        lines=tuple(map(randomized, content.lines)),
    )


def _is_plain_letter(char: str) -> bool:
    """Whether a letter is one letter in both cases, other than the German sharp s and ligatures."""
    return char.isalpha() and len(char.lower()) == len(char.upper()) == 1


def _short(rng: random.Random, texts: PosterTexts, section: str, values: dict[str, str], longest: int) -> str:
    """The first of some lines of a section that is short enough, else the shortest."""
    drawn = [texts.draw(rng, section, values) for _ in range(_TRIES)]
    return next((text for text in drawn if len(text) <= longest), min(drawn, key=len))


def _draw_date(rng: random.Random, calendar: CalendarPhrases, today: datetime.date) -> tuple[Phrase, datetime.date]:
    sections = {name: share for name, share in _DATE_SECTIONS.items() if name in calendar.dates}
    section = rng.choices(tuple(sections), tuple(sections.values()))[0]
    for _ in range(50):
        days = rng.randint(1, 90) if rng.random() < 0.7 else rng.randint(1, 360)
        day = today + datetime.timedelta(days)
        if calendar.fitting_dates(section, day, 0):
            return _write_date(rng, calendar, section, day), day
    raise AssertionError(f"{calendar.language}: no pattern of dates.txt fits section '{section}'")


def _write_date(rng: random.Random, calendar: CalendarPhrases, section: str, day: datetime.date) -> Phrase:
    fitting = calendar.fitting_dates(section, day, 0) or calendar.fitting_dates("day_month", day, 0)
    phrases = [calendar.write_date(rng, rng.choice(fitting), day, 0, section) for _ in range(4)]
    return _in_digits(rng, phrases)


def _draw_time(rng: random.Random, calendar: CalendarPhrases, hour: int, minute: int) -> Phrase:
    fitting = calendar.fitting_times(hour, minute)
    return _in_digits(rng, [calendar.write_time(rng, rng.choice(fitting), hour, minute) for _ in range(4)])


def _in_digits(rng: random.Random, phrases: list[Phrase]) -> Phrase:
    """The first phrase with a digit, mostly; else the first one."""
    if rng.random() < _IN_DIGITS_SHARE:
        return next((phrase for phrase in phrases if any(char.isdigit() for char in phrase.bare)), phrases[0])
    return phrases[0]
