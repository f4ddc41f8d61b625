"""Independent check of a flyer: its text is drawn again, and its event is read again from the texts."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from typing import Any

from openafm.data.drawing.base import Drawn
from openafm.data.drawing.recheck import box_errors, ink_errors, text_of_commands, transcription_errors, without_space
from openafm.data.images.grounding import boxes_of

_FIELDS = ("title", "date", "time", "location")


def flyer_errors(drawn: Drawn) -> list[str]:
    """Return what is wrong with a flyer's truth."""
    log: dict[str, Any] = dict(drawn.log)
    texts = [*ink_errors(drawn), *transcription_errors(drawn), *_field_errors(log)]
    return [*texts, *_event_errors(log), *_question_errors(drawn, log)]


def _field_errors(log: dict[str, Any]) -> Iterator[str]:
    everything = without_space(text_of_commands(log["commands"], log["words"], set()))
    for field in _FIELDS:
        if without_space(log["shown"][field]) not in everything:
            yield f"the {field} {log['shown'][field]!r} is not drawn"


def _event_errors(log: dict[str, Any]) -> Iterator[str]:
    event, shown = log["event"], log["shown"]
    for field in ("title", "location"):
        if event[field] != shown[field]:
            yield f"the {field} {event[field]!r} of the event is not the drawn one, {shown[field]!r}"
    day = datetime.date.fromisoformat(event["date"])
    numbers = [int(number) for number in re.findall(r"\d+", shown["date"])]
    if numbers and day.day not in numbers:
        yield f"{shown['date']!r} does not name day {day.day}"
    if any(number > 1900 and number != day.year for number in numbers):
        yield f"{shown['date']!r} names another year than {day.year}"
    hour = int(event["time"][:2])
    told = [int(number) for number in re.findall(r"\d{1,2}", shown["time"])]
    if told and not {hour, hour % 12, (hour - 1) % 12 + 1, (hour + 1) % 24, hour % 12 + 1} & set(told):
        yield f"{shown['time']!r} does not name hour {hour}"


def _question_errors(drawn: Drawn, log: dict[str, Any]) -> Iterator[str]:
    image = drawn.images[0]
    regions = {region.label: region for region in image.regions if region.kind in _FIELDS}
    for question in drawn.questions:
        if question.kind == "event" and json.loads(question.answer) != log["event"]:
            yield f"the answer {question.answer} is not the event"
        if question.kind in ("ground.box", "refer.box"):
            is_ground = question.kind == "ground.box"
            named = max((label for label in regions if label in question.question), key=len, default="")
            text = named if is_ground else question.answer
            boxes = list(boxes_of(question.answer if is_ground else question.question, image.width, image.height))
            if text not in regions or len(boxes) != 1:
                yield f"{question.question!r} names no drawn text or no box"
            else:
                yield from box_errors(boxes[0][1], regions[text].box, text)
