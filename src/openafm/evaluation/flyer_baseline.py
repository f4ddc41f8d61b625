"""Baseline of events on flyers: tesseract reads lines, regular expressions find the fields.

The title is the tallest text; date and time are the first that a regular expression finds in the language's numerals and
month names; the place is the tallest line of the rest.
"""

from __future__ import annotations

import datetime
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from openafm.data.synthetic.languages import locale_of
from openafm.evaluation.event_baselines import regex_event

_TIMEOUT_S = 120.0
_SAME_HEIGHT = 0.75
_ENGLISH_MONTHS = "January February March April May June July August September October November December".split()  # noqa: SIM905
_MONTH_FIRST = frozenset({"en"})
_CLOCK = {
    "fr": r"\b(\d{1,2}) ?h(?:eures)? ?(\d\d)?\b",
    "pt": r"\b(\d{1,2}) ?h(?:oras)? ?(\d\d)?\b",
    "vi": r"\b(\d{1,2}) ?(?:h|giờ) ?(\d\d)?\b",
    "nl": r"\b(\d{1,2}) ?(?:uur|u) ?(\d\d)?\b",
    "de": r"\b(\d{1,2}) ?Uhr ?(\d\d)?\b",
    "ja": r"(\d{1,2})時(?:(\d{1,2})分)?",
    "zh-Hans": r"(\d{1,2})[点點](?:(\d{1,2})分?)?",
    "zh-Hant": r"(\d{1,2})[点點](?:(\d{1,2})分?)?",
    "ko": r"(\d{1,2})시 ?(?:(\d{1,2})분)?",
}


@dataclass(frozen=True)
class ReadLine:
    """A line that was read, and the height of its words in pixels."""

    text: str
    height: float


def read_lines(image: bytes, model: str, layout: int = 11) -> list[ReadLine]:
    """Return the lines that tesseract reads in an encoded image; none if it fails or takes longer than two minutes.

    Args:
        model: a language of tesseract, such as `eng`.
        layout: tesseract's page segmentation mode: 11 finds scattered text, 6 a block, 7 one line.

    Raises:
        FileNotFoundError: the command tesseract is not installed.
    """
    command = ["tesseract", "stdin", "stdout", "-l", model, "--psm", str(layout), "tsv"]
    try:
        result = subprocess.run(command, input=image, capture_output=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return []
    lines: dict[tuple[str, ...], list[tuple[str, float]]] = {}
    for row in result.stdout.decode("utf-8", "replace").splitlines()[1:]:
        cells = row.split("\t")
        if len(cells) == 12 and cells[0] == "5" and cells[11].strip():
            lines.setdefault(tuple(cells[2:5]), []).append((cells[11].strip(), float(cells[9])))
    return [ReadLine(" ".join(text for text, _ in words), max(height for _, height in words)) for words in lines.values()]


def flyer_event(lines: Sequence[ReadLine], language: str, today: datetime.date) -> dict[str, str]:
    """Return the event that the lines of a flyer announce, read on `today`."""
    if not lines:
        return {"title": ""}
    tallest = max(line.height for line in lines)
    is_title = [line.height >= _SAME_HEIGHT * tallest for line in lines]
    wide = language in ("ja", "zh-Hans", "zh-Hant")
    title = ("" if wide else " ").join(line.text for line, chosen in zip(lines, is_title, strict=True) if chosen)
    event = {"title": title.replace(" ", "") if wide else title}
    places: list[ReadLine] = []
    for line, chosen in zip(lines, is_title, strict=True):
        if chosen:
            continue
        found = regex_event(_normalized(line.text, language), today)
        new = {field: found[field] for field in ("date", "time") if field in found}
        if not new:
            places.append(line)
        event = new | event
    if places:
        place = max(places, key=lambda line: line.height).text
        event["location"] = place.replace(" ", "") if wide else place
    return event


def _normalized(text: str, language: str) -> str:
    """A text with English months, and dates and times in forms that mean the same in every language."""
    if language != "en":
        for form in ("wide", "abbreviated"):
            for month, name in locale_of(language).months["format"][form].items():
                if not name[:1].isdigit():
                    text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", _ENGLISH_MONTHS[month - 1], text, flags=re.IGNORECASE)
        text = re.sub(r"(\d{1,2})\.? (?:de )?(?=[A-Z][a-z]+\b)", r"\1 ", text)
        text = re.sub(r"\b([A-Z][a-z]+) del? (?=\d{4})", r"\1 ", text)
        text = re.sub(r"(\d{1,2}) tháng (\d{1,2})(?: năm (\d{4}))?", lambda m: _dated(m[3], m[2], m[1]), text)
        text = re.sub(r"(?:(\d{4})년 ?)?(\d{1,2})월 ?(\d{1,2})일", lambda m: _dated(m[1], m[2], m[3]), text)
    if language not in _MONTH_FIRST:
        text = re.sub(r"\b(\d{1,2})[/-](\d{1,2})[/-](\d{4})\b", r"\1.\2.\3", text)
        if language not in ("ja", "ko", "zh-Hans", "zh-Hant"):
            text = re.sub(r"\b(\d{1,2})[/.](\d{1,2})\b(?![./\d])", lambda m: f"{m[2]}/{m[1]}" if "/" in m[0] else m[0], text)
    if language in _CLOCK:
        text = re.sub(_CLOCK[language], lambda m: f"{int(m[1]):02}:{int(m[2] or 0):02}", text)
    return text


def _dated(year: str | None, month: str, day: str) -> str:
    return f"{year}年{month}月{day}日" if year else f"{month}月{day}日"
