"""Events from held-out flyers (report 8): designs, fonts, names and camera conditions that flyers of training never have.

Contestants read the same English flyers. A field is right if it equals the truth without regard to case and white space;
`..._exact` is the mean over title, date, time and location.

    constant                the best constant answer
    text_only               our model without the image
    tesseract_regex         tesseract, then regular expressions
    tesseract_text_nano     tesseract, then our text model
    reader_regex            the model's reader of pages, then regular expressions
    fields                  our model with the image

`fields_exact_clean` and `tesseract_regex_exact_clean` count flyers that no camera was simulated for. `line_errors` are the
character errors of the lines of the text, each compared with the nearest line that was read. `refused_absent` is the share
of held-out signs, which announce no event, that our model answers with null where the schema allows for it, and
`refused_present` that of the flyers with the same schema.

    python benchmarks/flyers.py [--bundle NAME] [--adapter NAME] [--image-detail MODE] [--first N] [--count N] [--quick]
                                [--json]

`--bundle` is a model that takes images, by default the shipped one. A full run (300 flyers, 2 s each) writes
docs/benchmarks/flyers.json.
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
from shared.reporting import benchmark_parser, hand_in

import openafm as fm
from openafm.bundle import open_bundle, shipped_bundle
from openafm.bundle.files import PAGES_ADAPTER
from openafm.core.edit_distance import edits
from openafm.data.drawing.base import Drawn
from openafm.data.drawing.corpus import draw_document
from openafm.data.drawing.generators import generator_config
from openafm.data.synthetic import EVENT_SCHEMA, reference_week
from openafm.data.synthetic.calendar import draw_reference_day
from openafm.data.synthetic.schemas import nullable
from openafm.evaluation.event_baselines import constant_event
from openafm.evaluation.events import FIELDS
from openafm.evaluation.flyer_baseline import ReadLine, flyer_event, read_lines
from openafm.framework.errors import DecodingFailureError
from openafm.framework.options import ImageDetail
from openafm.framework.session.session import LanguageModelSession
from openafm.framework.transcripts.prompt import Prompt
from openafm.reading.page import DEFAULT_DETAIL, PageReader, open_reader

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "flyers.json"
SEED = 20250717  # of the evaluation sets (data/drawing/evaluation.py)
FIRST = 300
"""Number of the first flyer. The reader's rules were written with an eye on flyers before number 60."""
CLEAN = "reencoded"
"""The held-out condition without a camera."""
MAX_TOKENS = 120
REQUEST = "Put this in my calendar"

Contestant = Callable[[Drawn], Mapping[str, Any] | None]


def asked(drawn: Drawn) -> str:
    """Return the question for the event of a flyer, with the reference day; of a sign, with some day."""
    found = (question.question for question in drawn.questions if question.kind == "event")
    return next(found, "") or f"Extract the event. {reference_week(draw_reference_day(random.Random(drawn.transcription)))}"


def asked_model(
    model: fm.SystemLanguageModel,
    part: Callable[[Drawn], fm.Image | str | None],
    detail: ImageDetail | None = None,
    schema: Mapping[str, Any] = EVENT_SCHEMA,
) -> Contestant:
    """Return our model: it gets a part of the flyer, the question for the event, and the schema of events.

    Of text, strings are whole lines.
    """

    def read(drawn: Drawn) -> Mapping[str, Any] | None:
        seen = part(drawn)
        options = fm.GenerationOptions(
            sampling=fm.SamplingMode.greedy(),
            maximum_response_tokens=MAX_TOKENS,
            image_detail=detail if isinstance(seen, fm.Image) else None,
            copies_lines=isinstance(seen, str) or (seen is not None and model.described().reader is not None),
        )
        try:
            session = LanguageModelSession(asked(drawn), model)
            prompt = Prompt(*(() if seen is None else (seen,)), REQUEST)
            content = session.respond_blocking(prompt, json_schema=dict(schema), options=options)
        except (DecodingFailureError, fm.ExceededContextWindowSizeError):
            return {}
        event = json.loads(content.to_json())
        assert event is None or isinstance(event, dict)
        return event

    return read


def page_lines(reader: PageReader, drawn: Drawn, detail: ImageDetail | None) -> list[ReadLine]:
    page = reader.read(drawn.images[0].data, detail or DEFAULT_DETAIL)
    return [ReadLine(line.text, line.font_size) for line in page.lines]


def event_of(lines: Sequence[ReadLine], drawn: Drawn) -> Mapping[str, Any]:
    return flyer_event(lines, drawn.language, datetime.date.fromisoformat(drawn.metadata["today"]))


def tesseract_lines(drawn: Drawn) -> list[ReadLine]:
    return _tesseract(drawn.images[0].data)


@functools.lru_cache(maxsize=1)
def _tesseract(image: bytes) -> list[ReadLine]:
    return read_lines(image, "eng")


def line_errors(drawn: Drawn, lines: Sequence[ReadLine]) -> tuple[int, int]:
    """Return the character errors of the lines of a flyer, and their characters."""
    truth = [compact(line) for line in drawn.transcription.splitlines()]
    found = [compact(line.text) for line in lines]
    nearest = (min((edits(line, other) for other in found), default=len(line)) for line in truth)
    return sum(min(errors, len(line)) for errors, line in zip(nearest, truth, strict=True)), sum(map(len, truth))


def tesseract_text(drawn: Drawn) -> str:
    return "\n".join(line.text for line in tesseract_lines(drawn)) or "?"


def compact(value: object) -> str:
    return "".join(str(value).split()).casefold()


def refusals(model: fm.SystemLanguageModel, numbers: range, kind: str, detail: ImageDetail | None) -> float:
    """Return the share of drawings of a kind in which a model finds no event."""
    read = asked_model(model, lambda drawn: fm.Image(drawn.images[0].data), detail, nullable(EVENT_SCHEMA))
    generator = generator_config(kind).build()
    refused = [read(draw_document(generator, kind, "en", "held_out", SEED, number)) is None for number in numbers]
    return round(sum(refused) / len(refused), 4)


def measure(model: fm.SystemLanguageModel, numbers: range, detail: ImageDetail | None) -> dict[str, Any]:
    generator = generator_config("flyers").build()
    flyers = [draw_document(generator, "flyers", "en", "held_out", SEED, number) for number in numbers]
    contestants: dict[str, Contestant] = {
        "constant": lambda _: constant_event(),
        "text_only": asked_model(model, lambda _: None),
        "tesseract_regex": lambda drawn: event_of(tesseract_lines(drawn), drawn),
        "tesseract_text_nano": asked_model(model, tesseract_text),
        "fields": asked_model(model, lambda drawn: fm.Image(drawn.images[0].data), detail),
    }
    readers: dict[str, Callable[[Drawn], list[ReadLine]]] = {"tesseract_line_errors": tesseract_lines}
    if (folder := model.described().reader) is not None:
        reader = open_reader(folder)
        readers["line_errors"] = lambda drawn: page_lines(reader, drawn, detail)
        contestants["reader_regex"] = lambda drawn: event_of(page_lines(reader, drawn, detail), drawn)
    right: dict[str, dict[str, list[bool]]] = {name: defaultdict(list) for name in contestants}
    by_field: dict[str, dict[str, list[bool]]] = {name: defaultdict(list) for name in contestants}
    errors = {name: np.zeros(2, int) for name in readers}
    for drawn in flyers:
        truth = json.loads(drawn.metadata["event"])
        for name, read in readers.items():
            errors[name] += line_errors(drawn, read(drawn))
        for name, contestant in contestants.items():
            found = contestant(drawn) or {}
            for field in FIELDS:
                is_right = compact(found.get(field, "")) == compact(truth[field])
                right[name][drawn.metadata["condition"]].append(is_right)
                by_field[name][field].append(is_right)
    figures: dict[str, Any] = {}
    for name, conditions in right.items():
        everything = [each for found in conditions.values() for each in found]
        figures[f"{name}_exact"] = round(sum(everything) / len(everything), 4)
        if CLEAN in conditions:
            figures[f"{name}_exact_clean"] = round(sum(conditions[CLEAN]) / len(conditions[CLEAN]), 4)
    few = numbers[: max(len(numbers) // 3, 1)]
    figures["refused_absent"], figures["refused_present"] = (
        refusals(model, few, kind, detail) for kind in ("signs", "flyers")
    )
    for name, (wrong, characters) in errors.items():
        figures[name] = round(float(wrong / characters), 4)
    return {
        "benchmark": "flyers",
        "peer": "tesseract with regular expressions, and with the text model",
        "setting": {
            "bundle": model.name,
            "flyers": len(numbers),
            "first": numbers.start,
            "seed": SEED,
            "image_detail": detail,
        },
        "by_condition": {
            name: {condition: round(sum(found) / len(found), 4) for condition, found in sorted(conditions.items())}
            for name, conditions in right.items()
        },
        "by_field": {
            name: {field: round(sum(found) / len(found), 4) for field, found in fields.items()}
            for name, fields in by_field.items()
        },
        "figures": figures,
    }


def main() -> None:
    parser = benchmark_parser(__doc__, "few flyers; claims nothing")
    parser.add_argument("--bundle", help="a model that takes images, by name or path; default: the shipped one")
    parser.add_argument("--adapter", help="an adapter for it, by name or path; default: its own for pages")
    parser.add_argument("--image-detail", choices=get_args(ImageDetail))
    parser.add_argument("--count", type=int, help="flyers to read")
    parser.add_argument("--first", type=int, default=FIRST, help="number of the first flyer")
    options = parser.parse_args()
    bundle = options.bundle or shipped_bundle()
    if bundle is None:
        parser.error("no model ships with this installation; pass --bundle")
    adapter = options.adapter or (PAGES_ADAPTER if open_bundle(bundle).pages_adapter is not None else None)
    model = fm.SystemLanguageModel(bundle=bundle, adapter=adapter)
    count = options.count or (4 if options.quick else 300)
    hand_in(measure(model, range(options.first, options.first + count), options.image_detail), REPORT, options)


if __name__ == "__main__":
    main()
