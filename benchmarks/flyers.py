"""Events from held-out flyers (report 8): designs, fonts, names and camera conditions that training never shows.

Contestants read the same English flyers. A field is right if it equals the truth without regard to case and white space;
`..._exact` is the mean over title, date, time and location.

    constant                the best constant answer
    text_only               our model without the image
    tesseract_regex         tesseract, then regular expressions
    tesseract_text_nano     tesseract, then the shipped text model
    fields                  our model: the image and the question of its training

`fields_exact_clean` and `tesseract_regex_exact_clean` count flyers that no camera was simulated for.

    python benchmarks/flyers.py [--bundle NAME] [--count N] [--quick] [--json]

`--bundle` is a multimodal bundle; by default one is trained first by `vision.letters`, `.transcribe` and `.reader`.
A full run (3,000 steps, hours on one core, and 2 s a flyer) writes docs/benchmarks/flyers.json.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import benchmark_parser, hand_in
from shared.vision_runs import home, trained, with_steps

import openafm as fm
from openafm.bundle import open_bundle, shipped_bundle
from openafm.data.drawing.base import Drawn
from openafm.data.drawing.corpus import draw_document
from openafm.data.drawing.generators import generator_config
from openafm.data.synthetic import EVENT_SCHEMA
from openafm.evaluation.event_baselines import constant_event
from openafm.evaluation.events import FIELDS, EventExample, model_extractor
from openafm.evaluation.flyer_baseline import flyer_event, read_lines
from openafm.framework.errors import DecodingFailureError
from openafm.framework.session.session import LanguageModelSession
from openafm.framework.transcripts.prompt import Prompt
from openafm.recipes.prepare import prepare_run

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "flyers.json"
SEED = 20250717  # of the evaluation sets (data/drawing/evaluation.py)
CLEAN = "reencoded"
"""The held-out condition without a camera."""
MAX_TOKENS = 120

Contestant = Callable[[Drawn], Mapping[str, Any]]


def asked(drawn: Drawn) -> str:
    """Return the question for the event of a flyer, with the reference day."""
    return next(question.question for question in drawn.questions if question.kind == "event")


def reader(bundle: str, *, sees: bool) -> Contestant:
    """Return our model, which is asked as in its training: the image, the question and the schema of events."""
    model = fm.SystemLanguageModel(bundle=bundle)
    options = fm.GenerationOptions(sampling=fm.SamplingMode.greedy(), maximum_response_tokens=MAX_TOKENS)

    def read(drawn: Drawn) -> Mapping[str, Any]:
        image = (fm.Image(drawn.images[0].data),) if sees else ()
        try:
            session = LanguageModelSession(model=model)
            content = session.respond_blocking(Prompt(*image, asked(drawn)), json_schema=dict(EVENT_SCHEMA), options=options)
        except DecodingFailureError:
            return {}  # no end within the limit
        event = json.loads(content.to_json())
        assert isinstance(event, dict)
        return event

    return read


def tesseract_regex(drawn: Drawn) -> Mapping[str, Any]:
    today = datetime.date.fromisoformat(drawn.metadata["today"])
    return flyer_event(read_lines(drawn.images[0].data, "eng"), drawn.language, today)


def tesseract_text(bundle: str) -> Contestant:
    extract = model_extractor(fm.SystemLanguageModel(bundle=bundle))

    def read(drawn: Drawn) -> Mapping[str, Any]:
        message = "\n".join(line.text for line in read_lines(drawn.images[0].data, "eng"))
        example = EventExample(
            instructions=asked(drawn),
            message=message or "?",
            schema=dict(EVENT_SCHEMA),
            reference_day=datetime.date.fromisoformat(drawn.metadata["today"]),
            language=drawn.language,
            gold={},
        )
        return extract(example)

    return read


def compact(value: object) -> str:
    return "".join(str(value).split()).casefold()


def measure(bundle: str, count: int) -> dict[str, Any]:
    generator = generator_config("flyers").build()
    flyers = [draw_document(generator, "flyers", "en", "held_out", SEED, number) for number in range(count)]
    contestants: dict[str, Contestant] = {
        "constant": lambda _: constant_event(),
        "text_only": reader(bundle, sees=False),
        "tesseract_regex": tesseract_regex,
        "fields": reader(bundle, sees=True),
    }
    shipped = shipped_bundle()
    if shipped is not None:
        contestants["tesseract_text_nano"] = tesseract_text(str(shipped))
    right: dict[str, dict[str, list[bool]]] = {name: defaultdict(list) for name in contestants}
    by_field: dict[str, dict[str, list[bool]]] = {name: defaultdict(list) for name in contestants}
    for drawn in flyers:
        truth = json.loads(drawn.metadata["event"])
        for name, contestant in contestants.items():
            found = contestant(drawn)
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
    return {
        "benchmark": "flyers",
        "peer": "tesseract with regular expressions, and with the shipped text model",
        "setting": {"bundle": open_bundle(bundle).name, "flyers": count, "seed": SEED},
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


def trained_reader(folder: Path, size: str, count: int, steps: int) -> str:
    """Return a bundle of `vision.letters`, `.transcribe` and `.reader`, one after the other, a third of the steps each."""
    start = None
    for recipe in ("vision.letters", "vision.transcribe", "vision.reader"):
        run = with_steps(prepare_run(recipe, size, start=start), steps // 3, seed=0)
        corpora = (replace(each, drawing=replace(each.drawing, count=count)) for each in run.corpora)
        run = replace(run, corpora=tuple(corpora), trainer=replace(run.trainer, evaluation=None))
        start = str(trained(run, folder / recipe, recipe).path)
    assert start is not None
    return start


def main() -> None:
    parser = benchmark_parser(__doc__, "a tiny model and few flyers; claims nothing")
    parser.add_argument("--bundle", help="a multimodal bundle, by name or path; default: train one first")
    parser.add_argument("--count", type=int, help="flyers to read")
    parser.add_argument("--steps", type=int, default=3_000, help="steps of training without --bundle")
    options = parser.parse_args()
    bundle = None if options.bundle is None else str(open_bundle(options.bundle).path)
    with home() as folder:
        if options.quick:
            report = measure(bundle or trained_reader(folder, "micro", 12, 3), options.count or 4)
        else:
            report = measure(bundle or trained_reader(folder, "nano", 20_000, options.steps), options.count or 300)
    hand_in(report, REPORT, options)


if __name__ == "__main__":
    main()
