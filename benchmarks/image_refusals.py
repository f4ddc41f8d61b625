"""Refusals of questions about absent objects, and false refusals (report 4.4): a model with vision on unseen scenes.

Each scene has a question about an object that it does not show, and the same question, in the same words, about one that it
shows. Training asks about both kinds in these words; the objects are of kinds that it shows, since a model has no words for
others. `refused_absent` is the share of the first that the model refuses, `refused_present` that of the second. `constant`
is a model that always refuses. Answers are greedy; a refusal begins like the refusals of the drawings.

Without `--bundle` a compact decoder of size micro is trained on scenes of one to four shapes, from a contrastive encoder:
captions of names, and in each scene one question where an object is, present or absent, in the same words.

    python benchmarks/image_refusals.py [--bundle NAME] [--count N] [--quick] [--json]

A full run (about half an hour on one core) writes docs/benchmarks/image_refusals.json, with `--bundle`
image_refusals_of_bundle.json.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))
from resolution_modes import FULL, OPTIMIZER, QUICK, SMALL_SCENES, VOCABULARY, ModeRuns, Size
from shared.reporting import benchmark_parser, hand_in
from shared.selected_images import asked_objects, refused_object
from shared.vision_runs import home, multimodal, trained, with_vocabulary

import openafm as fm
from openafm.bundle import Bundle, open_bundle
from openafm.data.drawing.base import Drawn
from openafm.data.drawing.corpus import draw_document
from openafm.data.drawing.scenes import ScenesConfig
from openafm.framework.session.session import LanguageModelSession
from openafm.framework.transcripts.prompt import Prompt

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "image_refusals.json"
SEED = 20250717  # of the evaluation sets (data/drawing/evaluation.py)
MAX_TOKENS = 48
STEPS = 200
MOST_TRIES = 50  # scenes for each that is asked for
REFUSALS = ("refused_absent", "refused_present")


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A trained model with vision in `folder`: drawings and steps of its contrastive and of its multimodal training."""

    folder: Path
    size: Size
    steps: int

    def bundle(self) -> Bundle:
        runs = ModeRuns(folder=self.folder, size=self.size)
        train = asked_objects(runs.drawn, self.folder / "asked")
        run = multimodal(
            self.size.model,
            train,
            asked_objects(runs.held_out, self.folder / "asked-held-out"),
            learn=("captions", "questions"),
            mode="balanced",
            steps=self.steps,
            seed=0,
            eyes=runs.eyes,
        )
        data = replace(run.trainer.data, rows_per_step=self.size.rows)
        run = replace(run, trainer=replace(run.trainer, data=data, optimizer=OPTIMIZER))
        return trained(with_vocabulary(run, VOCABULARY), self.folder / "run", "refusals")


def pairs(count: int, scenes: ScenesConfig) -> Iterator[tuple[Drawn, str, str]]:
    """Yield scenes with a question about an absent object, and the question about a present object."""
    generator = scenes.build()
    found = 0
    for number in range(count * MOST_TRIES):
        drawn = draw_document(generator, "scenes", "en", "train", SEED, number)
        absent = next((each for each in drawn.questions if each.kind == "absent"), None)
        names = drawn.captions.get("keywords", "").split(", ")
        single = [name for name in names if is_single(name, drawn.captions.get("short", ""))]
        refused = absent and refused_object(absent)
        if absent is None or refused is None or not single:
            continue
        yield drawn, absent.question, absent.question.replace(refused, single[0])
        found += 1
        if found == count:
            return
    raise RuntimeError(f"{found} of {count * MOST_TRIES} scenes have a question about an absent object; asked for {count}")


def is_single(name: str, caption: str) -> bool:
    return re.search(rf"\ban? {name}\b", caption) is not None


def is_refusal(answer: str) -> bool:
    """Return whether an answer is a refusal of the drawings, of any object."""
    return answer.startswith(("There is no ", "I cannot say that"))


def refusal_shares(bundle: str, count: int, scenes: ScenesConfig) -> dict[str, float]:
    """Return the shares of questions about absent and about present objects that a model refuses."""
    model = fm.SystemLanguageModel(bundle=bundle)
    options = fm.GenerationOptions(sampling=fm.SamplingMode.greedy(), maximum_response_tokens=MAX_TOKENS)

    def answer(drawn: Drawn, question: str) -> str:
        session = LanguageModelSession(model=model)
        return session.respond_blocking(Prompt(fm.Image(drawn.images[0].data), question), options=options)

    asked = list(pairs(count, scenes))
    absent = [is_refusal(answer(drawn, question)) for drawn, question, _ in asked]
    present = [is_refusal(answer(drawn, question)) for drawn, _, question in asked]
    return {name: round(statistics.fmean(found), 4) for name, found in zip(REFUSALS, (absent, present), strict=True)}


def measure(bundle: str, count: int, scenes: ScenesConfig, setting: dict[str, Any]) -> dict[str, Any]:
    return {
        "benchmark": "image_refusals",
        "peer": "a model that always refuses",
        "setting": {"bundle": open_bundle(bundle).name, "scenes": count, "seed": SEED, **setting},
        "figures": {**refusal_shares(bundle, count, scenes), "constant_refused_present": 1.0},
    }


def main() -> None:
    parser = benchmark_parser(__doc__, "few scenes, drawings and steps; claims nothing")
    parser.add_argument("--bundle", help="a multimodal bundle, by name or path; default: one that is trained")
    parser.add_argument("--count", type=int, help="scenes")
    options = parser.parse_args()
    count = options.count or (4 if options.quick else 200)
    if options.bundle is not None:
        bundle = str(open_bundle(options.bundle).path)
        return hand_in(measure(bundle, count, ScenesConfig(), {}), REPORT.with_stem("image_refusals_of_bundle"), options)
    size, steps = (QUICK, 2) if options.quick else (FULL, STEPS)
    with home() as folder:
        bundle = str(Trained(folder=folder, size=size, steps=steps).bundle().path)
        setting = {"size": size.model, "documents": size.count, "steps": steps}
        report = measure(bundle, count, SMALL_SCENES, setting)
    return hand_in(report, REPORT, options)


if __name__ == "__main__":
    main()
