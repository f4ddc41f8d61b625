"""Conversations about flyers and signs, as a text model sees them: what a reader of pages finds, and the event or none.

    python -m openafm.recipes.shipping.pages --reader FOLDER --out pages.jsonl --eval held_out.jsonl
    openafm adapter train --base nano --data pages.jsonl --eval held_out.jsonl --name pages

Other flyers than for the reader are drawn, in the designs, fonts and conditions of training. Their text has the errors of
the reader. Titles and places of the answers are the lines of this text that are nearest to the true ones, as
`GenerationOptions.copies_lines` writes them: an adapter learns which lines matter, and not to guess what they should be.
Flyers have few kinds of titles and places, so each is asked about a second time with those of a message.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import ascii_lowercase, capwords
from textwrap import wrap
from typing import Any

from openafm.core.edit_distance import edits
from openafm.core.progress import progress
from openafm.data.drawing.base import Drawn
from openafm.data.drawing.corpus import draw_document
from openafm.data.drawing.flyers import FlyersConfig
from openafm.data.drawing.signs import SignsConfig
from openafm.data.synthetic import EVENT_SCHEMA, reference_week
from openafm.data.synthetic.calendar import draw_reference_day
from openafm.data.synthetic.schemas import nullable
from openafm.data.synthetic.text_files.posters import poster_texts
from openafm.framework.schema.copied_lines import copied_lines
from openafm.models.vision.image_modes import Mode
from openafm.reading.page import PageReader, open_reader

SEED = 20261129  # other flyers than those of `vision.letters`
RANDOM_SHARE = 0.2
SIGNS_SHARE, NULLABLE_SHARE = 0.12, 0.3
"""Shares of signs, which announce no event, and of flyers whose schema allows for none."""
HELD_OUT = 100
DETAILS: tuple[Mode, ...] = ("high", "balanced", "balanced")
MOST_ERRORS = 1 / 3
"""Of the characters of a title or a place; with more it was not read."""
MISREAD_SHARE = 0.3
_PLACES = ("{place}", "{place}", "{place}, {city}", "{place}, {street}", "{street}")
_WIDTHS, _WIDEST = (12, 16, 24), 36
"""Letters of a line of a title, and of other lines."""
_REQUESTS = ("Extract the event.", "Put this in my calendar", "Add this event to my calendar", "What event is this?")


def conversations(reader: PageReader, numbers: range, languages: tuple[str, ...] = ("en",)) -> Iterator[dict[str, Any]]:
    """Yield conversations about each flyer whose title was read, and about signs, in the format of fine-tuning."""
    flyers, signs = FlyersConfig(random_share=RANDOM_SHARE).build(), SignsConfig().build()
    with progress("read flyers", len(numbers)) as bar:
        for count, number in enumerate(numbers, start=1):
            rng, language = random.Random(f"{SEED}:{number}"), languages[number % len(languages)]
            is_sign = rng.random() < SIGNS_SHARE
            kind = "signs" if is_sign else "flyers"
            drawn = draw_document(signs if is_sign else flyers, kind, language, "train", SEED, number)
            text = reader.read(drawn.images[0].data, rng.choice(DETAILS)).markdown
            event = None if is_sign else _read_event(json.loads(drawn.metadata["event"]), text)
            if text and (is_sign or event):
                yield _conversation(_question(drawn, rng), text, event, rng)
                if event is not None:
                    text, event = _renamed(text, event, rng, language)
                yield _conversation(_question(drawn, rng), text, event, rng)
            bar.update(count, f"{count:,} pages")


def _read_event(event: Mapping[str, str], text: str) -> dict[str, str] | None:
    """Return the event with the lines of a text that are nearest to its title and place; None if the title is in none."""
    lines, found = copied_lines(text), dict(event)
    for field in ("title", "location"):
        true = event[field].casefold()
        nearest = min(lines, key=lambda line: edits(true, line.casefold()), default="")
        if edits(true, nearest.casefold()) <= MOST_ERRORS * len(true):
            found[field] = nearest
        else:
            del found[field]
    return found if "title" in found else None


def _renamed(text: str, event: dict[str, str], rng: random.Random, language: str) -> tuple[str, dict[str, str]]:
    """Return a page with a title and a place of messages in place of its own, and its event."""
    frames = poster_texts(language, "train").frames
    title = frames.draw_title(rng)[1] if rng.random() < 0.7 else frames.draw_open_title(rng)
    title = rng.choice((str.upper, capwords, capwords, capwords))(title)
    place = rng.choice(_PLACES).format(
        place=frames.draw_place(rng)[1], city=frames.draw_word(rng, "city"), street=frames.draw_word(rng, "street")
    )
    lines, renamed = text.splitlines(), dict(event)
    for field, new in (("title", _misread(title, rng)), ("location", _misread(place[:1].upper() + place[1:], rng))):
        if field in event and (at := _lines_of(lines, event[field])) is not None:
            mark = "# " if lines[at.start].startswith("# ") else ""
            lines[at] = [mark + part for part in wrap(new, rng.choice(_WIDTHS) if mark else _WIDEST)[:4]]
            renamed[field] = new
    changed = "\n".join(lines)
    return (changed, renamed) if _copied(renamed) <= set(copied_lines(changed)) else (text, event)


def _copied(event: Mapping[str, str]) -> set[str]:
    return {event[field] for field in ("title", "location") if field in event}


def _lines_of(lines: list[str], value: str) -> slice | None:
    """Return which lines have a value together."""
    for count in range(1, 5):
        for start in range(len(lines) - count + 1):
            if " ".join(line.removeprefix("# ").strip() for line in lines[start : start + count]) == value:
                return slice(start, start + count)
    return None


def _misread(text: str, rng: random.Random) -> str:
    """Return a text of which one letter may be wrong, as of a reader."""
    if rng.random() > MISREAD_SHARE:
        return text
    at = rng.randrange(len(text))
    return f"{text[:at]}{rng.choice(ascii_lowercase)}{text[at + 1 :]}".strip()


def _question(drawn: Drawn, rng: random.Random) -> str:
    """Return the question for an event: that of the flyer, or of a week without a flyer."""
    asked = next((question.question for question in drawn.questions if question.kind == "event"), None)
    return asked or f"Extract the event. {reference_week(draw_reference_day(rng))}"


def _conversation(asked: str, text: str, event: Mapping[str, str] | None, rng: random.Random) -> dict[str, Any]:
    """Return a conversation: the week in the instructions or after the page, with and without another request."""
    request, form = rng.choice(_REQUESTS), rng.random()
    if form < 0.4:
        system, user = asked, text
    elif form < 0.7:
        system, user = asked.removeprefix("Extract the event. "), f"{text}\n{request}"
    else:
        system, user = "", f"{text}\n{asked}"
    schema = nullable(EVENT_SCHEMA) if event is None or rng.random() < NULLABLE_SHARE else dict(EVENT_SCHEMA)
    return {
        "messages": [
            *([{"role": "system", "content": system}] if system else []),
            {"role": "user", "content": user},
            {"role": "assistant", "content": json.dumps(event, ensure_ascii=False, separators=(",", ":"))},
        ],
        "response_format": {"type": "json_schema", "json_schema": {"name": "event", "schema": schema}},
    }


def _write(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reader", type=Path, required=True, help="folder of a reader of pages")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--eval", type=Path, required=True)
    parser.add_argument("--count", type=int, default=3_000)
    parser.add_argument("--first", type=int, default=0, help="pages of training that other processes read")
    options = parser.parse_args()
    reader = open_reader(options.reader)
    first = HELD_OUT + options.first
    _write(options.eval, conversations(reader, range(HELD_OUT)))
    _write(options.out, conversations(reader, range(first, first + options.count)))


if __name__ == "__main__":
    main()
