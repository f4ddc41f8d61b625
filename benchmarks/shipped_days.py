"""Right dates by the way of writing the day: bundles on messages of the built-in corpus, of training and held-out frames.

Fresh messages show that dates are wrong, this table why: a day that a model does not even find in the frames of its
training needs more practice, not more frames. English, German, Spanish and Japanese, the instructions with a week.

    python benchmarks/shipped_days.py [BUNDLE ...] [--count 12] [--quick] [--json]

`--count` is the number of messages for each way, language and split. A full run writes docs/benchmarks/shipped_days.json,
which keeps the rows of bundles that it does not measure.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import benchmark_parser, hand_in, with_former_rows

import openafm as fm
from openafm.bundle import open_bundle
from openafm.data.synthetic import EVENT_SCHEMA, event_instructions
from openafm.data.synthetic.calendar import draw_reference_day
from openafm.data.synthetic.languages import Split
from openafm.data.synthetic.tasks.messages import draw_message
from openafm.data.synthetic.text_files.frames import frames_of
from openafm.framework.errors import DecodingFailureError
from openafm.framework.session.session import LanguageModelSession

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "shipped_days.json"
KINDS = ("today", "tomorrow", "day_after_tomorrow", "weekday", "in_weeks", "day_month", "numeric_year", "iso")
LANGUAGES = ("en", "de", "es", "ja")
SPLITS: tuple[Split, ...] = ("train", "held_out")


def dated_messages(kind: str, language: str, split: Split, count: int) -> Iterator[tuple[str, str, str]]:
    """Yield instructions, a message whose day is written in this way, and its date."""
    rng, frames = random.Random(5), frames_of(language, split)
    found = 0
    while found < count:
        today = draw_reference_day(rng)
        message = draw_message(rng, frames, today, date_shares={kind: 1.0})
        if message.event and "date" in message.event:
            found += 1
            yield event_instructions(today), message.text, message.event["date"]


def share_right(model: fm.SystemLanguageModel, kind: str, split: Split, count: int) -> float:
    """Return the share of right dates of greedy answers."""
    options = fm.GenerationOptions(sampling=fm.SamplingMode.greedy(), maximum_response_tokens=120)
    right = []
    for language in LANGUAGES:
        for instructions, text, date in dated_messages(kind, language, split, count):
            session = LanguageModelSession(instructions, model)
            try:
                content = session.respond_blocking(text, json_schema=EVENT_SCHEMA, options=options).to_json()
            except DecodingFailureError:  # cut off by the limit of tokens
                content = "{}"
            right.append(json.loads(content).get("date") == date)
    return round(statistics.fmean(right), 4)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("bundles", nargs="*", default=["nano"], metavar="BUNDLE")
    parser.add_argument("--count", type=int, default=12)
    options = parser.parse_args()
    count = 1 if options.quick else options.count
    rows = [measure(name, count) for name in options.bundles]
    if not options.quick:
        rows = with_former_rows(rows, REPORT)
    report = {"benchmark": "shipped_days", "messages": count * len(LANGUAGES), "languages": LANGUAGES, "rows": rows}
    hand_in(report | {"figures": {row["model"]: row["days"] for row in rows}}, REPORT, options)


def measure(name: str, count: int) -> dict[str, Any]:
    """Return the shares of right dates of a bundle by the way of writing the day, and its signature."""
    model = fm.SystemLanguageModel(bundle=name)
    days = [{"day": kind} | {split: share_right(model, kind, split, count) for split in SPLITS} for kind in KINDS]
    bundle = open_bundle(name)
    return {"model": bundle.name, "signature": bundle.signature, "days": days}


if __name__ == "__main__":
    main()
