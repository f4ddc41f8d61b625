"""Notices: the text of a flyer, an invitation or a web page, line by line, and the event that it announces.

A notice has lines around its event, with other dates, times and names. Drawn flyers (`data/drawing/flyers`) have the
same texts: what text recognition finds in their images is such a notice.
"""

from __future__ import annotations

import random

from openafm.data.synthetic.announcements import NO_CAPITALS, Announcement, draw_announcement
from openafm.data.synthetic.languages import Split
from openafm.data.synthetic.reference import event_instructions, fill, reference_week
from openafm.data.synthetic.tasks.events import EVENT_SCHEMA
from openafm.data.synthetic.text_files.frames import frames_of
from openafm.tokenizer.conversation import AssistantTurn, Instructions, Turn, UserTurn
from openafm.tokenizer.schema_text import compact_json

_CANONICAL_SHARE, _LABELED_SHARE, _ONE_LINE_SHARE = 0.6, 0.3, 0.3
_TITLE_FIRST_SHARE, _HOST_SHARE, _FREE_SHARE, _BLANK_LINE_SHARE = 0.6, 0.5, 0.6, 0.15
_MOST_LINES = 3


def notice_turns(rng: random.Random, language: str, split: Split) -> tuple[Turn, ...]:
    """Return the text of a notice and its event."""
    notice = draw_announcement(rng, language, split)
    if rng.random() < _CANONICAL_SHARE:
        instructions = event_instructions(notice.today)
    else:
        task = fill(rng, rng.choice(frames_of("en", split).instructions["event"]))
        instructions = f"{task} {reference_week(notice.today)}"
    return (
        Instructions(text=instructions),
        UserTurn(text=_lay_out(rng, notice), response_format=EVENT_SCHEMA),
        AssistantTurn(text=compact_json(notice.event)),
    )


def _lay_out(rng: random.Random, notice: Announcement) -> str:
    """The lines of a notice: its event in one to three blocks, other lines before, between and after them."""
    when = _when(rng, notice)
    place = _labeled(rng, notice, "place", notice.place)
    facts = [[*when, place] if rng.random() < 0.7 else [place, *when]]
    if rng.random() < 0.4:
        facts = [[line] for line in facts[0]]
    extras = [[line] for line in notice.lines[: rng.randint(0, _MOST_LINES)]]
    extras += [[notice.free]] if rng.random() < _FREE_SHARE else []
    extras += [[notice.host]] if rng.random() < _HOST_SHARE else []
    rng.shuffle(extras)
    num_above = 0 if rng.random() < _TITLE_FIRST_SHARE else rng.randint(0, min(2, len(extras)))
    above, below = extras[:num_above], [*facts, *extras[num_above:]]
    if rng.random() < 0.4:
        rng.shuffle(below)
    blocks = [*above, [notice.title], *below]
    gap = "\n\n" if rng.random() < _BLANK_LINE_SHARE else "\n"
    return gap.join("\n".join(block) for block in blocks)


def _when(rng: random.Random, notice: Announcement) -> list[str]:
    """Date and time, in one line or two."""
    if rng.random() < _ONE_LINE_SHARE:
        between = rng.choice((" ", ", ", " | ", " · ", " - "))
        both = (notice.date, notice.time)
        return [between.join(both if rng.random() < 0.8 else both[::-1])]
    return [_labeled(rng, notice, "date", notice.date), _labeled(rng, notice, "time", notice.time)]


def _labeled(rng: random.Random, notice: Announcement, field: str, text: str) -> str:
    if rng.random() >= _LABELED_SHARE:
        return text
    label = notice.labels[field]
    title = label if notice.language in NO_CAPITALS else label.upper()
    return rng.choice((f"{label}: {text}", f"{label} {text}", f"{label}\n{text}", f"{title}: {text}"))
