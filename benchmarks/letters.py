"""Letters that the encoder of `vision.letters` finds on held-out flyers and signs, after training on one core.

`letters_right` is the share of the letters, and of the spaces between words, whose class is right in their cells, in views
of the three sides of training. Fonts, designs and camera conditions of the drawings are not in training.

    python benchmarks/letters.py [--minutes M] [--bundle NAME] [--quick] [--json]

`--bundle` scores a bundle of `vision.letters` and trains nothing. Give the benchmark a core of its own. A full run (some
20 minutes of drawing, then 8 of training) writes docs/benchmarks/letters.json.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any, cast

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))
import torch
from shared.reporting import benchmark_parser, hand_in
from shared.vision_runs import draw, home, trained, with_steps

from openafm.bundle import Bundle, open_bundle
from openafm.bundle.decoder import load_decoder
from openafm.data.images.decoding import pixels
from openafm.data.images.letters import has_words, letter_tokens
from openafm.data.images.resolution import image_views
from openafm.data.images.shards import ImageCorpus, open_image_corpus
from openafm.models.vision.image_modes import ImageModeConfig
from openafm.models.vision.letters_model import LettersModel
from openafm.models.vision.multimodal_config import LettersModelConfig
from openafm.recipes.catalog import build_run
from openafm.recipes.config import RunConfig
from openafm.recipes.sources.drawn_corpus import DrawnCorpusConfig
from openafm.recipes.vision.letters import KINDS
from openafm.training.budgets import TimeBudget

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "letters.json"


def run_of(size: str, count: int, minutes: float | None) -> RunConfig:
    """Return the run `vision.letters` of this duration, or of two steps, with `count` drawings of each kind."""
    run = build_run("vision.letters", size)
    corpora = (cast("DrawnCorpusConfig", corpus) for corpus in run.corpora)
    counted = tuple(replace(each, drawing=replace(each.drawing, count=count)) for each in corpora)
    run = replace(run, corpora=counted, trainer=replace(run.trainer, evaluation=None))
    if minutes is None:
        return with_steps(run, 2, seed=0)
    return replace(run, trainer=replace(run.trainer, budget=TimeBudget(seconds=60 * minutes)))


@torch.no_grad()
def letters_right(bundle: Bundle, corpus: ImageCorpus) -> tuple[float, int]:
    """Return the share of the letters and spaces that a model finds, and how many there are."""
    model = cast("LettersModel", load_decoder(bundle)).eval()
    num_right, num_letters = 0, 0
    for document in filter(has_words, corpus.documents()):
        (digest,) = document.digests
        for part in (1, 2, 4):
            side = model.config.vision.image_side // part
            numbers = torch.tensor(letter_tokens(document, corpus.size(digest), side), dtype=torch.long)
            row_L, column_L, letter_L = numbers.reshape(-1, 3).unbind(1)
            view_1YXC = image_views(pixels(corpus.image(digest)), ImageModeConfig(name="balanced", side=side, tokens=1))
            logits_LK = model.letter_logits(torch.tensor(view_1YXC))[0, row_L, column_L]
            num_right += int((logits_LK.argmax(-1) == letter_L).sum())
            num_letters += len(letter_L)
    return num_right / max(num_letters, 1), num_letters


def main() -> None:
    parser = benchmark_parser(__doc__, "few drawings and steps; claims nothing")
    parser.add_argument("--minutes", type=float, default=8.0, help="of training")
    parser.add_argument("--bundle", help="score this bundle only")
    options = parser.parse_args()
    bundle = None if options.bundle is None else open_bundle(options.bundle)
    if bundle is not None and not isinstance(bundle.config, LettersModelConfig):
        parser.error(f"{options.bundle} classifies no letters; name a bundle of vision.letters")
    with home() as folder:
        held_out = open_image_corpus(draw(folder, KINDS, 6 if options.quick else 150, "held_out"))
        if bundle is not None:
            share, num_letters = letters_right(bundle, held_out)
            print(json.dumps({"bundle": bundle.name, "letters": num_letters, "letters_right": round(share, 4)}))
            return
        size, count, minutes = ("micro", 6, None) if options.quick else ("nano", 3_000, options.minutes)
        start = process_time()
        share, num_letters = letters_right(trained(run_of(size, count, minutes), folder / "run", "letters"), held_out)
        report: dict[str, Any] = {
            "benchmark": "letters",
            "setting": {"minutes": minutes, "letters": num_letters},
            "figures": {"letters_right": round(share, 4), "cpu_s": round(process_time() - start)},
        }
        hand_in(report, REPORT, options)


if __name__ == "__main__":
    main()
