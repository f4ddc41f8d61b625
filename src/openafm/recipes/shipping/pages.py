"""Conversations about flyers, as a text model sees them: what a reader of pages finds, and the event.

    python -m openafm.recipes.shipping.pages --reader BUNDLE --out pages.jsonl --eval held_out.jsonl
    openafm adapter train --base nano --data pages.jsonl --eval held_out.jsonl --name pages

Other flyers than for the reader are drawn, in the designs, fonts and conditions of training. Their text has the errors of
the reader, so an adapter learns which lines matter and what a wrong letter may be.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openafm.bundle import open_bundle
from openafm.core.progress import progress
from openafm.data.drawing.base import Drawn
from openafm.data.drawing.corpus import draw_document
from openafm.data.drawing.flyers import FlyersConfig
from openafm.data.synthetic import EVENT_SCHEMA
from openafm.models.vision.image_modes import Mode
from openafm.reading.page import PageReader, reader_of

SEED = 20261129  # other flyers than those of `vision.letters`
RANDOM_SHARE = 0.3
HELD_OUT = 100
DETAIL: Mode = "high"
_REQUESTS = ("Extract the event.", "Put this in my calendar", "Add this event to my calendar", "What event is this?")


def conversations(reader: PageReader, numbers: range, languages: tuple[str, ...] = ("en",)) -> Iterator[dict[str, Any]]:
    """Yield a conversation about each flyer, in the format of fine-tuning."""
    generator = FlyersConfig(random_share=RANDOM_SHARE).build()
    with progress("read flyers", len(numbers)) as bar:
        for count, number in enumerate(numbers, start=1):
            drawn = draw_document(generator, "flyers", languages[number % len(languages)], "train", SEED, number)
            text = reader.read(drawn.images[0].data, DETAIL).markdown
            if text:
                yield _conversation(drawn, text, random.Random(f"{SEED}:{number}"))
            bar.update(count, f"{count:,} flyers")


def _conversation(drawn: Drawn, text: str, rng: random.Random) -> dict[str, Any]:
    """Return a conversation: the week in the instructions or after the page, with and without another request."""
    asked = next(question.question for question in drawn.questions if question.kind == "event")
    event, request = json.loads(drawn.metadata["event"]), rng.choice(_REQUESTS)
    form = rng.random()
    if form < 0.4:
        system, user = asked, text
    elif form < 0.7:
        system, user = asked.removeprefix("Extract the event. "), f"{text}\n{request}"
    else:
        system, user = "", f"{text}\n{asked}"
    schema = dict(EVENT_SCHEMA)
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
    parser.add_argument("--reader", required=True, help="a bundle of vision.letters")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--eval", type=Path, required=True)
    parser.add_argument("--count", type=int, default=3_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first flyer, to divide the work")
    options = parser.parse_args()
    reader = reader_of(open_bundle(options.reader))
    _write(options.eval, conversations(reader, range(options.first, options.first + HELD_OUT)))
    _write(options.out, conversations(reader, range(options.first + HELD_OUT, options.first + HELD_OUT + options.count)))


if __name__ == "__main__":
    main()
