"""Events: spans verbatim, dates and times recomputed by hand-written readers of several languages, splits disjoint."""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from openafm.data.synthetic import (
    EVENT_SCHEMA,
    LANGUAGES,
    SyntheticConfig,
    event_instructions,
    event_instructions_today_only,
    generate,
)
from openafm.data.synthetic.lexicons import Split

Reader = Callable[[re.Match[str], datetime.date], str]
DAY = datetime.timedelta(days=1)
EN_MONTHS = "January February March April May June July August September October November December".split()  # noqa: SIM905
DE_MONTHS = "Januar Februar März April Mai Juni Juli August September Oktober November Dezember".split()  # noqa: SIM905
FR_MONTHS = "janvier février mars avril mai juin juillet août septembre octobre novembre décembre".split()  # noqa: SIM905
TR_MONTHS = "Ocak Şubat Mart Nisan Mayıs Haziran Temmuz Ağustos Eylül Ekim Kasım Aralık".split()  # noqa: SIM905
EN_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()  # noqa: SIM905
ES_DAYS = "lunes martes miércoles jueves viernes sábado domingo".split()  # noqa: SIM905


@functools.cache
def events(language: str, split: Split, count: int) -> list[tuple[datetime.date, str, dict[str, Any]]]:
    """Reference day, message and answer of examples."""
    read = []
    config = SyntheticConfig(seed=11, split=split, tasks={"event": 1.0}, languages={language: 1.0})
    for conversation in generate(config, count):
        instructions, user, answer = conversation.turns
        day = re.search(r"Today is \w{3} (\d{4}-\d\d-\d\d)", instructions.text)
        assert day
        read.append((datetime.date.fromisoformat(day[1]), user.text, json.loads(answer.text)))
    return read


def next_weekday(names: list[str]) -> Reader:
    def read(match: re.Match[str], today: datetime.date) -> str:
        day = today + DAY
        while day.weekday() != names.index(match[1]):
            day += DAY
        return day.isoformat()

    return read


def next_date(month: Callable[[re.Match[str]], int]) -> Reader:
    def read(match: re.Match[str], today: datetime.date) -> str:
        day = today
        while (day.month, day.day) != (month(match), int(match["d"])):
            day += DAY
        return day.isoformat()

    return read


def in_days(count: int) -> Reader:
    return lambda _, today: (today + count * DAY).isoformat()


DATES: list[tuple[str, str, Reader]] = [
    ("en", r"(?<!after )\btomorrow\b", in_days(1)),
    ("en", r"\bthe day after tomorrow\b", in_days(2)),
    ("en", rf"\bon ({'|'.join(EN_DAYS)})\b(?!,)", next_weekday(EN_DAYS)),
    ("en", rf"\bon ({'|'.join(EN_MONTHS)}) (?P<d>\d+)\b(?!, \d{{4}})", next_date(lambda m: EN_MONTHS.index(m[1]) + 1)),
    (
        "en",
        rf"\bon (\d+) ({'|'.join(EN_MONTHS)}) (\d{{4}})\b",
        lambda m, _: f"{m[3]}-{EN_MONTHS.index(m[2]) + 1:02}-{int(m[1]):02}",
    ),
    ("en", r"\bon (\d+)/(\d+)/(\d{4})\b", lambda m, _: f"{m[3]}-{int(m[1]):02}-{int(m[2]):02}"),
    ("de", r"\b(?<!über)[Mm]orgen\b(?! früh)", in_days(1)),
    ("de", r"\b[Üü]bermorgen\b", in_days(2)),
    (
        "de",
        rf"\b[Aa]m (?P<d>\d+)\. ({'|'.join(DE_MONTHS)})\b(?! \d{{4}})",
        next_date(lambda m: DE_MONTHS.index(m[2]) + 1),
    ),
    ("de", r"\b[Aa]m (\d\d)\.(\d\d)\.(\d{4})\b", lambda m, _: f"{m[3]}-{m[2]}-{m[1]}"),
    ("fr", r"\b[Aa]près-demain\b", in_days(2)),
    (
        "fr",
        rf"\b[Ll]e (?P<d>\d+)(?:er)? ({'|'.join(FR_MONTHS)})\b(?! \d{{4}})",
        next_date(lambda m: FR_MONTHS.index(m[2]) + 1),
    ),
    ("fr", r"\b[Ll]e (\d\d)/(\d\d)/(\d{4})\b", lambda m, _: f"{m[3]}-{m[2]}-{m[1]}"),
    ("es", r"\b[Pp]asado mañana\b", in_days(2)),
    ("es", rf"\b[Ee]l ({'|'.join(ES_DAYS)})\b(?!,? \d)", next_weekday(ES_DAYS)),
    ("tr", rf"(?P<d>\d+) ({'|'.join(TR_MONTHS)})\b(?! \d{{4}})", next_date(lambda m: TR_MONTHS.index(m[2]) + 1)),
    ("tr", r"\b[Öö]bür gün\b", in_days(2)),
    ("ja", r"明後日|あさって", in_days(2)),
    ("ja", r"(?<!日)([月火水木金土日])曜日", next_weekday(list("月火水木金土日"))),
    ("ja", r"(?<!年)\b(?P<m>\d+)月(?P<d>\d+)日", next_date(lambda m: int(m["m"]))),
    ("ja", r"(\d{4})年(\d+)月(\d+)日", lambda m, _: f"{m[1]}-{int(m[2]):02}-{int(m[3]):02}"),
    ("ko", r"\b모레", in_days(2)),
    ("ko", r"(?<!\d)(?P<m>\d+)월 (?P<d>\d+)일", next_date(lambda m: int(m["m"]))),
    ("zh-Hans", r"后天", in_days(2)),
    ("zh-Hans", r"(?<![日号（])(?:周|星期|礼拜)([一二三四五六日])", next_weekday(list("一二三四五六日"))),
]
# Dates that other patterns would misread: a day after a year is no "next occurrence".
AFTER_A_YEAR = {"ja": r"\d{4}年", "ko": r"\d{4}년"}

TIMES: list[tuple[str, str, Callable[[re.Match[str]], str]]] = [
    ("en", r"\b(\d+):(\d\d) ?am\b", lambda m: f"{int(m[1]) % 12:02}:{m[2]}"),
    ("en", r"\b(\d+):(\d\d) ?pm\b", lambda m: f"{int(m[1]) % 12 + 12:02}:{m[2]}"),
    ("en", r"\bat noon\b", lambda _: "12:00"),
    ("de", r"\b[Uu]m (\d+) Uhr\b(?! (?:\d|morgens|abends))", lambda m: f"{int(m[1]):02}:00"),
    ("de", r"\b[Uu]m (\d+) Uhr abends\b", lambda m: f"{int(m[1]) + 12}:00"),
    ("fr", r"\b(\d+)h(\d\d)\b", lambda m: f"{int(m[1]):02}:{m[2]}"),
    ("fr", r"\b(\d+) heures et demie\b", lambda m: f"{int(m[1]):02}:30"),
    ("da", r"\b[Kk]l\. (\d+)\.(\d\d)\b", lambda m: f"{int(m[1]):02}:{m[2]}"),
    ("es", r"\ba las (\d+) de la tarde\b", lambda m: f"{int(m[1]) + 12}:00"),
    ("ja", r"午後(\d+)時(?!\d|半)", lambda m: f"{int(m[1]) + 12}:00"),
    ("ja", r"午前(\d+)時半", lambda m: f"{int(m[1]):02}:30"),
    ("ko", r"오후 (\d+)시(?! \d| 반)", lambda m: f"{int(m[1]) % 12 + 12}:00"),
    ("ko", r"오전 (\d+)시 반", lambda m: f"{int(m[1]):02}:30"),
    ("zh-Hans", r"下午(\d+)点半", lambda m: f"{int(m[1]) + 12}:30"),
    ("zh-Hant", r"下午(\d+)點半", lambda m: f"{int(m[1]) + 12}:30"),
    ("vi", r"\b(\d+) giờ tối\b", lambda m: f"{int(m[1]) + 12}:00"),
]


@pytest.mark.parametrize(("language", "pattern", "read"), DATES)
def test_dates_are_right(language: str, pattern: str, read: Reader) -> None:
    num_read = 0
    for today, message, event in events(language, "train", 2500):
        match = re.search(pattern, message)
        if match is None or re.search(AFTER_A_YEAR.get(language, r"\0"), message[: match.start()]):
            continue
        assert event.get("date") == read(match, today), (today, message)
        num_read += 1
    assert num_read >= 8


@pytest.mark.parametrize(("language", "pattern", "read"), TIMES)
def test_times_are_right(language: str, pattern: str, read: Callable[[re.Match[str]], str]) -> None:
    matches = [(re.search(pattern, message), message, event) for _, message, event in events(language, "train", 2500)]
    found = [(match, message, event) for match, message, event in matches if match]
    assert len(found) >= 5
    for match, message, event in found:
        assert event.get("time") == read(match), message


@pytest.mark.parametrize("language", LANGUAGES)
def test_titles_and_places_are_spans_and_absent_fields_are_left_out(language: str) -> None:
    shapes = set()
    for today, message, event in [*events(language, "train", 2500), *events(language, "held_out", 1000)]:
        assert event["title"] in message
        assert event["title"].strip() == event["title"] != ""
        if "location" in event:
            assert event["location"] in message
            assert event["location"].strip() == event["location"] != ""
        if "date" in event:
            assert datetime.date.fromisoformat(event["date"]) >= today
        shapes.add(tuple(event))
    assert len(shapes) == 8  # every subset of date, time and location


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_splits_share_no_title_and_no_place(language: str) -> None:
    train, held_out = events(language, "train", 2500), events(language, "held_out", 1000)
    for field in ("title", "location"):
        seen = {event[field].casefold() for _, _, event in train if field in event}
        new = {event[field].casefold() for _, _, event in held_out if field in event}
        assert not seen & new
        assert len(new) > 60
        assert len(seen) > 200


def test_every_reference_year_occurs() -> None:
    assert {today.year for today, _, _ in events("en", "train", 2500)} == set(range(2024, 2030))


def test_the_instructions_list_the_coming_week() -> None:
    assert event_instructions(datetime.date(2026, 11, 21)) == (
        "Extract the event. Today is Sat 2026-11-21; "
        "Sun 11-22, Mon 11-23, Tue 11-24, Wed 11-25, Thu 11-26, Fri 11-27, Sat 11-28."
    )
    assert event_instructions(datetime.date(2024, 12, 28)) == (
        "Extract the event. Today is Sat 2024-12-28; "
        "Sun 12-29, Mon 12-30, Tue 12-31, Wed 2025-01-01, Thu 2025-01-02, Fri 2025-01-03, Sat 2025-01-04."
    )
    assert event_instructions_today_only(datetime.date(2028, 2, 29)) == "Extract the event. Today is Tue 2028-02-29."


def test_the_schema_has_the_shape_of_the_framework() -> None:
    assert list(EVENT_SCHEMA["properties"]) == EVENT_SCHEMA["x-order"] == ["title", "date", "time", "location"]
    assert EVENT_SCHEMA["required"] == ["title"]
    assert EVENT_SCHEMA["additionalProperties"] is False
