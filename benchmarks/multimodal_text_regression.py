"""Text before and after multimodal adaptation (report 4.4: no regressions on text).

The stages run in order: text pre-training, continued text pre-training, the vision encoder, joint training, adaptation.
`text_loss_change` is the held-out text loss after adaptation minus the one before, in nats per token, averaged over seeds;
below 0 is better. `text_only_change` is the same for a decoder that continues on text alone for as many text tokens.

    python benchmarks/multimodal_text_regression.py [--quick] [--json] [--finished FILE]

A full run (3 seeds at size micro, about 1.5 hours on one core) writes docs/benchmarks/multimodal_text_regression.json.
"""

from __future__ import annotations

import os
import statistics
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))
from shared.finished import Finished, add_finished
from shared.reporting import benchmark_parser, hand_in
from shared.vision_runs import FEW_KINDS, FEW_TOKENS, KINDS, draw, home, trained, with_images, with_steps, with_vocabulary

from openafm.bundle import Bundle
from openafm.bundle.decoder import load_decoder
from openafm.evaluation.exact_answers import exact_answers
from openafm.recipes.config import RunConfig
from openafm.recipes.prepare import prepare_run
from openafm.training.config import VisionStart

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "multimodal_text_regression.json"
SIZE = "micro"
TEXT_SHARE = 0.6


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Optimizer steps of the stages, examples of each text corpus, drawings of each kind, and tokens of the vocabulary."""

    text: int
    continued: int
    clip: int
    joint: int
    adaptation: int
    examples: int
    count: int
    vocabulary: int | None = None


FULL = Steps(text=400, continued=200, clip=60, joint=150, adaptation=300, examples=12_000, count=500)
QUICK = Steps(text=2, continued=2, clip=1, joint=1, adaptation=2, examples=40, count=20, vocabulary=FEW_TOKENS)


def prepared(
    recipe: str, steps: int, seed: int, size: Steps, images: tuple[Path, Path], start: str | None = None
) -> RunConfig:
    config = prepare_run(recipe, SIZE, start=start)
    corpora = (
        replace(corpus, num_examples=min(corpus.num_examples, size.examples)) if hasattr(corpus, "num_examples") else corpus
        for corpus in config.corpora
    )
    config = with_steps(with_images(replace(config, corpora=tuple(corpora)), *images), steps, seed)
    config = with_vocabulary(config, size.vocabulary)
    return replace(config, trainer=replace(config.trainer, evaluation=None))


def losses_of_seed(folder: Path, seed: int, size: Steps, images: tuple[Path, Path]) -> dict[str, float]:
    def run(recipe: str, steps: int, name: str, start: str | None = None, eyes: Bundle | None = None) -> Bundle:
        config = prepared(recipe, steps, seed, size, images, start)
        if eyes is not None:
            vision = VisionStart(bundle=str(eyes.path), identity=eyes.identity)
            config = replace(config, trainer=replace(config.trainer, start=vision))
        if recipe == "on_device.multimodal":
            held_out = prepare_run(recipe, SIZE, start=start).trainer.evaluation  # packs the held-out text
            config = replace(config, trainer=replace(config.trainer, evaluation=held_out))
        return trained(config, folder / f"{name}-{seed}", f"{name}-{seed}")

    text = run("on_device.pretrain", size.text, "text")
    before = run("on_device.text_continued", size.continued, "continued", str(text.path))
    clip = run("vision.clip", size.clip, "clip")
    joint = run("vision.joint", size.joint, "joint", eyes=clip)
    after = run("on_device.multimodal", size.adaptation, "adapted", str(before.path), joint)
    control = run("on_device.text_continued", round(TEXT_SHARE * size.adaptation), "control", str(before.path))
    shards = folder / f"adapted-{seed}" / "data" / "held_out_text"
    bundles = {"before": before, "after": after, "text_only": control}
    return {
        name: exact_answers(load_decoder(bundle).eval(), shards, row_tokens=1024).loss for name, bundle in bundles.items()
    }


def measure(folder: Path, kinds: tuple[str, ...], size: Steps, seeds: range, finished: Finished) -> dict[str, Any]:
    images = draw(folder, kinds, size.count, "train"), draw(folder, kinds, max(5, size.count // 20), "held_out")
    losses = [finished.result(f"seed-{seed}", size, partial(losses_of_seed, folder, seed, size, images)) for seed in seeds]
    means = {name: statistics.fmean(loss[name] for loss in losses) for name in losses[0]}
    return {
        "benchmark": "multimodal_text_regression",
        "peer": "the decoder before adaptation, and one that continues on the text alone",
        "setting": {"size": SIZE, "steps": size.adaptation, "seeds": len(seeds)},
        "losses": losses,
        "figures": {
            "text_loss_change": round(means["after"] - means["before"], 4),
            "text_only_change": round(means["text_only"] - means["before"], 4),
            **{f"text_loss_{name}": round(loss, 4) for name, loss in means.items()},
        },
    }


def main() -> None:
    parser = benchmark_parser(__doc__, "few drawings and steps, one seed; claims nothing")
    add_finished(parser)
    options = parser.parse_args()
    finished = Finished(path=options.finished)
    with home() as folder:
        if options.quick:
            report = measure(folder, FEW_KINDS, QUICK, range(1), finished)
        else:
            report = measure(folder, KINDS, FULL, range(3), finished)
    hand_in(report, REPORT, options)


if __name__ == "__main__":
    main()
