"""The baselines of event extraction on hand-written messages."""

from __future__ import annotations

import datetime
from typing import Any

import jsonschema
import pytest

from openafm.data.synthetic import EVENT_SCHEMA
from openafm.evaluation.event_baselines import constant_event, regex_event

SATURDAY = datetime.date(2026, 11, 21)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "Dinner with Anna tomorrow at 7 pm at Café Luna.",
            {"title": "Dinner with Anna", "date": "2026-11-22", "time": "19:00", "location": "Café Luna"},
        ),
        (
            "The project review is on Friday at 09:30 in Room 4.",
            {"title": "project review", "date": "2026-11-27", "time": "09:30", "location": "Room 4"},
        ),
        ("Team meeting, 2027-01-05, 16:00", {"title": "Team meeting", "date": "2027-01-05", "time": "16:00"}),
        (
            "My dentist appointment: March 3rd at noon",
            {"title": "dentist appointment", "date": "2027-03-03", "time": "12:00"},
        ),
        ("Lunch today?", {"title": "Lunch", "date": "2026-11-21"}),
        ("We walk the dog", {"title": "walk"}),
    ],
)
def test_regular_expressions_on_english_messages(message: str, expected: dict[str, Any]) -> None:
    assert regex_event(message, SATURDAY) == expected


@pytest.mark.parametrize(
    ("message", "date"),
    [
        ("on Saturday", "2026-11-28"),  # strictly after the day of the message
        ("on Sunday", "2026-11-22"),
        ("the day after tomorrow", "2026-11-23"),
        ("21 November", "2026-11-21"),  # today is included
        ("20 November", "2027-11-20"),
        ("Nov. 5, 2029", "2029-11-05"),
        ("the 29th of February", "2028-02-29"),
        ("am 05.12.2026", "2026-12-05"),
        ("12/5", "2026-12-05"),
        ("25/12", "2026-12-25"),
        ("2026年12月5日", "2026-12-05"),
    ],
)
def test_dates(message: str, date: str) -> None:
    assert regex_event(message, SATURDAY)["date"] == date


@pytest.mark.parametrize(
    ("message", "time"),
    [
        ("at 7:05 pm", "19:05"),
        ("at 12 am", "00:00"),
        ("at 12:30 pm", "12:30"),
        ("half past 2 in the afternoon", "14:30"),
        ("à 18h30", "18:30"),
        ("um 19 Uhr", "19:00"),
        ("kl. 18.30", "18:30"),
        ("ends at 21:15.", "21:15"),
    ],
)
def test_times(message: str, time: str) -> None:
    assert regex_event(message, SATURDAY)["time"] == time


def test_absent_fields_are_left_out() -> None:
    assert regex_event("call me on 555 1234, version 1.2.3", SATURDAY).keys() <= {"title", "location"}
    assert regex_event("", SATURDAY) == {"title": ""}


def test_answers_follow_the_schema() -> None:
    for event in (constant_event(), regex_event("Brunch at the lake on 3/4/2027 at 10am", SATURDAY)):
        jsonschema.validate(event, EVENT_SCHEMA, format_checker=jsonschema.FormatChecker())
