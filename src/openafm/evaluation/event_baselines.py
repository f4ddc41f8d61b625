"""Baselines of event extraction: regular expressions and a constant answer."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from typing import Any

_MONTHS = "january february march april may june july august september october november december".split()  # noqa: SIM905
_WEEKDAYS = "monday tuesday wednesday thursday friday saturday sunday".split()  # noqa: SIM905
_MONTH = rf"(?P<month>{'|'.join(f'{name[:3]}(?:{name[3:]})?' for name in _MONTHS)})\.?"
_DAY = r"(?P<d>\d{1,2})(?:st|nd|rd|th)?"

_DATES = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?P<y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)",
        r"(?P<y>\d{4})[/.年]\s?(?P<m>\d{1,2})[/.月]\s?(?P<d>\d{1,2})日?",
        r"\b(?P<d>\d{1,2})[.-](?P<m>\d{1,2})[.-](?P<y>\d{4})\b",
        r"\b(?P<m>\d{1,2})/(?P<d>\d{1,2})/(?P<y>\d{4})\b",
        rf"\b{_MONTH} {_DAY}(?:,? (?P<y>\d{{4}}))?\b",
        rf"\b{_DAY} (?:of )?{_MONTH}(?:,? (?P<y>\d{{4}}))?\b",
        r"(?P<m>\d{1,2})月\s?(?P<d>\d{1,2})[日号號]",
        r"\b(?P<m>\d{1,2})/(?P<d>\d{1,2})\b",
        r"\b(?:the )?(?P<after>day after tomorrow)\b|\b(?P<tomorrow>tomorrow)\b|\b(?P<today>today|tonight)\b",
        rf"\b(?:this |coming |next )*(?P<weekday>{'|'.join(_WEEKDAYS)})\b",
    )
]
_PART = r"(?:(?P<am>a\.?m\b\.?|in the morning)|(?P<pm>p\.?m\b\.?|in the (?:afternoon|evening)|at night))"
_TIMES = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\bhalf past (?P<half>\d{{1,2}})(?: {_PART})?",
        rf"\b(?P<h>\d{{1,2}})(?:[:.](?P<min>\d\d))? ?{_PART}",
        r"\b(?P<h>[01]?\d|2[0-3]) ?h ?(?P<min>[0-5]\d)?\b",
        r"(?<![\d.:])(?P<h>[01]?\d|2[0-3])[:.](?P<min>[0-5]\d)(?!\d|[.:]\d)",
        r"\b(?P<noon>noon|midday)\b|\b(?P<midnight>midnight)\b",
        r"\b(?P<h>[01]?\d|2[0-3]) (?:uhr|uur|heures|o'clock)\b",
    )
]

_NOUNS = (
    "appointment barbecue birthday breakfast brunch call celebration check-up class coffee concert conference consultation "
    "dinner drinks exam exhibition festival game graduation interview lecture lesson lunch match meeting movie night "
    "opening party performance picnic presentation rehearsal reunion review seminar session show talk tour training trip "
    "update visit walk wedding workshop"
)
_NOT_IN_TITLE = "a|an|the|my|our|your|his|her|their|this|that|is|are|has|have|to|for|and|we|i|you|of|at|in|on|about|with"
_TITLE = re.compile(
    rf"(?<!\w)(?:(?:(?!(?:{_NOT_IN_TITLE})\b)[\w'-]+) ){{0,2}}(?:{'|'.join(_NOUNS.split())})\b"
    r"(?: (?:with|about|on|for) [^|,.!?;:\n]+?(?= (?:is|are|has|starts?|takes?|at|in|will)\b|[|,.!?;:\n]| ?$))?",
    re.IGNORECASE,
)
# A noun phrase with an article or a possessive, before a verb, a preposition or the end.
_THING = re.compile(
    r"\b(?:(?:the|my|our)\s+(?P<thing>[\w' -]+?)|(?P<owned>[A-Z]\w+'s\s+\w+))"
    r"(?=\s+(?:is|are|has|will|starts?|takes?|at|in)\b|\s*[|,.!?;:\n]|\s*$)"
)
_LABELED_PLACE = re.compile(r"\b(?:where|place|location|venue):\s*([^|,!?\n]+)", re.IGNORECASE)
_PLACE = re.compile(r"\b(?:at|in)\s+((?:the |a )?[^|,.!?;:\n]+)", re.IGNORECASE)
_AFTER_PLACE = re.compile(r"\s+(?:on|at|for|and|so|from|with|to)\s*$|\s+(?:for|so|and|from) .*$", re.IGNORECASE)
_BEFORE_TIME = re.compile(r"(?:\b(?:on|at|by|from|for|um|om|kl|à|alle)\.?\s+)?$", re.IGNORECASE)


def constant_event() -> dict[str, Any]:
    """Return the best constant answer: fields other than the title are mostly absent or different each time."""
    return {"title": "meeting"}


def regex_event(message: str, day: datetime.date) -> dict[str, Any]:
    """Return title, date, time and location of a message received on `day`, as found by regular expressions.

    Words are English. ISO dates, numeric dates and 24-hour times are found in any language. Dates with slashes are month
    first.
    """
    event: dict[str, Any] = {}
    rest = message  # matches are blanked out, so that they end places and titles
    for match, date in _dates(rest, day):
        event["date"], rest = date.isoformat(), _without(rest, match)
        break
    for match, time in _times(rest):
        event["time"], rest = time, _without(rest, match)
        break
    place = _place(rest)
    if place is not None:
        event["location"] = place[1]
        rest = _without(rest, place)
    return {"title": _title(rest, message)} | event


def _without(text: str, match: re.Match[str]) -> str:
    start = len(text[: match.start()]) - len(_BEFORE_TIME.search(text[: match.start()])[0])  # type: ignore[index]
    return text[:start] + "|" * (match.end() - start) + text[match.end() :]


def _dates(text: str, today: datetime.date) -> Iterator[tuple[re.Match[str], datetime.date]]:
    for pattern in _DATES:
        for match in pattern.finditer(text):
            date = _date(match.groupdict(), today)
            if date is not None:
                yield match, date


def _date(found: dict[str, str | None], today: datetime.date) -> datetime.date | None:
    if weekday := found.get("weekday"):
        ahead = (_WEEKDAYS.index(weekday.lower()) - today.weekday() - 1) % 7 + 1
        return today + datetime.timedelta(days=ahead)
    for name, ahead in (("today", 0), ("tomorrow", 1), ("after", 2)):
        if found.get(name):
            return today + datetime.timedelta(days=ahead)
    month_name = found.get("month")
    day = int(found["d"] or 0)
    month = [name[:3] for name in _MONTHS].index(month_name[:3].lower()) + 1 if month_name else int(found["m"] or 0)
    if month > 12 and not month_name:
        day, month = month, day
    years = [int(found["y"] or 0)] if found.get("y") else range(today.year, today.year + 9)
    for year in years:
        try:
            date = datetime.date(year, month, day)
        except ValueError:
            continue
        if found.get("y") or date >= today:
            return date
    return None


def _times(text: str) -> Iterator[tuple[re.Match[str], str]]:
    for pattern in _TIMES:
        for match in pattern.finditer(text):
            found = match.groupdict()
            if found.get("noon") or found.get("midnight"):
                yield match, "12:00" if found["noon"] else "00:00"
                continue
            hour = int(found.get("half") or found.get("h") or 0)
            minute = 30 if found.get("half") else int(found.get("min") or 0)
            if found.get("pm"):
                hour = hour % 12 + 12
            elif found.get("am"):
                hour %= 12
            if hour < 24 and minute < 60:
                yield match, f"{hour:02}:{minute:02}"


def _place(text: str) -> re.Match[str] | None:
    """Return the place as group 1 of a match: a labeled place, or the last one after a preposition."""
    labeled = _LABELED_PLACE.search(text)
    if labeled:
        return labeled
    found = None
    for match in _PLACE.finditer(text):
        end = match.start(1) + len(_AFTER_PLACE.sub("", match[1]).rstrip())
        shorter = _PLACE.match(text, match.start(), end)
        if shorter and (
            shorter[1][:1].isupper() or shorter[1].lower().startswith(("the ", "a ")) or shorter[1][:1].isdigit()
        ):
            found = shorter
    return found


def _title(rest: str, message: str) -> str:
    """Return the noun phrase around an event word, else after an article, else the longest unmatched text."""
    match = _TITLE.search(rest)
    if match:
        return match[0].strip()
    thing = _THING.search(rest)
    if thing:
        return (thing["thing"] or thing["owned"]).strip()
    stretches = (part.strip(" -–/\n\t") for part in re.split(r"[|,.!?;:\n。、，！？：；]+", rest))
    return max(stretches, key=len, default="") or message.strip()
