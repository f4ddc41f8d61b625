"""Refusals of questions about absent objects, and false refusals (report 4.4): a model with vision on unseen scenes.

Each scene has a question about an object that it does not show, and the same question, in the same words, about one that it
shows. Training asks about both kinds in these words; the objects are of kinds that it shows, since a model has no words for
others. `refused_absent` is the share of the first that the model refuses, `refused_present` that of the second. `constant`
is a model that always refuses. Answers are greedy; a refusal begins like the refusals of the drawings.

    python benchmarks/image_refusals.py --bundle NAME [--count N] [--quick] [--json]

A fitting bundle is one of `on_device.multimodal_sft`. A full run writes docs/benchmarks/image_refusals.json.
"""

from __future__ import annotations

import itertools
import os
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import benchmark_parser, hand_in

import openafm as fm
from openafm.bundle import open_bundle
from openafm.data.drawing.base import Drawn
from openafm.data.drawing.corpus import draw_document
from openafm.data.drawing.generators import generator_config
from openafm.data.drawing.scenes.texts import scene_texts
from openafm.framework.session.session import LanguageModelSession
from openafm.framework.transcripts.prompt import Prompt

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "image_refusals.json"
SEED = 20250717  # of the evaluation sets (data/drawing/evaluation.py)
MAX_TOKENS = 48
REFUSALS = ("refused_absent", "refused_present")
REFUSED = re.compile(r"\b(?:no|an?) (\w+ \w+)(?: in the image)?\.$")
"""The object that a refusal names, a color and a shape."""


def pairs(count: int) -> Iterator[tuple[Drawn, str, str, str]]:
    """Yield scenes with a question about an absent object, its refusal, and the question about a present object."""
    generator = generator_config("scenes").build()
    found = 0
    for number in itertools.count():
        drawn = draw_document(generator, "scenes", "en", "train", SEED, number)
        absent = next((each for each in drawn.questions if each.kind == "absent"), None)
        names = drawn.captions.get("keywords", "").split(", ")
        single = [name for name in names if is_single(name, drawn.captions.get("short", ""))]
        refused = absent and REFUSED.search(absent.answer)
        if absent is None or refused is None or not single or not says_nothing(absent.question, refused[1]):
            continue
        yield drawn, absent.question, absent.answer, absent.question.replace(refused[1], single[0])
        found += 1
        if found == count:
            return


def says_nothing(question: str, name: str) -> bool:
    """Return whether questions about present objects have these words, so that only the image tells the answer."""
    return any(question in scene_texts("en").all_lines(section, name) for section in ("ask.area", "ask.box"))


def is_single(name: str, caption: str) -> bool:
    return re.search(rf"\ban? {name}\b", caption) is not None


def is_refusal(answer: str, refusals: Sequence[str]) -> bool:
    """Return whether an answer begins with the first two words of a refusal."""
    return " ".join(answer.split()[:2]) in {" ".join(refusal.split()[:2]) for refusal in refusals}


def refusal_shares(bundle: str, count: int) -> dict[str, float]:
    """Return the shares of questions about absent and about present objects that a model refuses."""
    model = fm.SystemLanguageModel(bundle=bundle)
    options = fm.GenerationOptions(sampling=fm.SamplingMode.greedy(), maximum_response_tokens=MAX_TOKENS)

    def answer(drawn: Drawn, question: str) -> str:
        session = LanguageModelSession(model=model)
        return session.respond_blocking(Prompt(fm.Image(drawn.images[0].data), question), options=options)

    asked = list(pairs(count))
    refusals = [refusal for _, _, refusal, _ in asked]
    absent = [is_refusal(answer(drawn, question), refusals) for drawn, question, _, _ in asked]
    present = [is_refusal(answer(drawn, question), refusals) for drawn, _, _, question in asked]
    return {name: round(statistics.fmean(found), 4) for name, found in zip(REFUSALS, (absent, present), strict=True)}


def measure(bundle: str, count: int) -> dict[str, Any]:
    return {
        "benchmark": "image_refusals",
        "peer": "a model that always refuses",
        "setting": {"bundle": open_bundle(bundle).name, "scenes": count, "seed": SEED},
        "figures": {**refusal_shares(bundle, count), "constant_refused_present": 1.0},
    }


def main() -> None:
    parser = benchmark_parser(__doc__, "few scenes; claims nothing")
    parser.add_argument("--bundle", required=True, help="a multimodal bundle, by name or path")
    parser.add_argument("--count", type=int, help="scenes")
    options = parser.parse_args()
    bundle = str(open_bundle(options.bundle).path)
    hand_in(measure(bundle, options.count or (4 if options.quick else 200)), REPORT, options)


if __name__ == "__main__":
    main()
