"""Resolution modes (report 5.1): one model, trained in all of them, answers held-out questions in each.

`quality_MODE` is the share of answers that are exact under greedy decoding, on other scenes of the objects of training;
`refused_absent` and `refused_present` are those of `image_refusals.py`. `tokens_MODE` are the tokens of an image,
`cpu_s_MODE` the CPU seconds from its pixels to the first logits of an answer, with untrained weights. The model is a compact
decoder with vision that learns questions and captions; its encoder starts from contrastive training on the same drawings
(FLIP, three quarters masked). Each mode is drawn for a third of the images.

    python benchmarks/resolution_modes.py [--quick] [--json] [--out FILE.png] [--finished FILE]

A full run (3 seeds, about 3 hours on one core) writes docs/benchmarks/resolution_modes.json. --out draws the curve.
"""

from __future__ import annotations

import os
import statistics
import sys
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from time import process_time
from typing import Any, cast

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))
import torch
from image_refusals import REFUSALS, refusal_shares
from shared.finished import Finished, add_finished
from shared.reporting import benchmark_parser, hand_in
from shared.vision_runs import (
    FEW_KINDS,
    FEW_TOKENS,
    SCENE_TOKENS,
    SCENES,
    contrastive,
    draw,
    home,
    multimodal,
    trained,
    with_vocabulary,
)

from openafm.bundle import Bundle
from openafm.bundle.decoder import load_decoder
from openafm.data.images.packing import ImagePackConfig, Learned, pack_image_corpus
from openafm.data.images.resolution import MODES, Mode
from openafm.evaluation.exact_answers import exact_answers
from openafm.models.attention.spans import EmbeddingSpan, ImageKey
from openafm.models.vision.image_modes import ImageModeConfig
from openafm.models.vision.multimodal import MultimodalDecoder
from openafm.models.vision.sizes import encoder_of
from openafm.recipes.config import RunConfig
from openafm.recipes.sources.drawn_corpus import ImageCorpusConfig
from openafm.recipes.vision.mixtures import RESOLUTIONS
from openafm.training.objectives.config import ContrastiveConfig

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "resolution_modes.json"
QUESTION_TOKENS = 32


def in_thirds(config: RunConfig) -> RunConfig:
    """Return the run with each mode drawn for a third of the images: drawings are all larger than a view."""

    def changed(corpus: ImageCorpusConfig) -> ImageCorpusConfig:
        shares = {"rapid_share": 1 / 3, "rapid_share_of_high_resolution": 1 / 3, "balanced_share": 0.5}
        resolution = replace(corpus.packing.resolution, **shares)
        return replace(corpus, packing=replace(corpus.packing, resolution=resolution))

    return replace(config, corpora=tuple(changed(cast("ImageCorpusConfig", corpus)) for corpus in config.corpora))


def packed(bundle: Bundle, held_out: Path, size: str, mode: Mode, folder: Path) -> Path:
    config = ImagePackConfig(learn=("questions",), resolution=RESOLUTIONS[size], mode=mode)
    pack_image_corpus(held_out, folder / mode, bundle.tokenizer, bundle.template, config)
    return folder / mode


@torch.no_grad()
def seconds(model: MultimodalDecoder, mode: ImageModeConfig, rounds: int) -> float:
    """Return the median CPU seconds from the pixels of an image to the hidden state of the last token of a question."""
    key = ImageKey("00", mode.num_tokens)
    pixels = torch.zeros(mode.num_views, mode.side, mode.side, 3, dtype=torch.uint8)
    tokens_1S = torch.ones(1, mode.num_tokens + QUESTION_TOKENS, dtype=torch.long)
    times = []
    for _ in range(rounds + 1):
        start = process_time()
        inserted = model.embed_images([EmbeddingSpan(0, 0, mode.num_tokens, key.digest)], {key: pixels})
        model.last_hidden(tokens_1S, inserted=inserted)
        times.append(process_time() - start)
    return statistics.median(times[1:])  # the first round warms up


@dataclass(frozen=True, kw_only=True)
class Size:
    """A model, drawings of each kind, steps of both trainings, questions of refusals, rounds of timing, a vocabulary."""

    model: str
    kinds: tuple[str, ...]
    count: int
    contrastive_steps: int
    steps: int
    refusals: int
    rounds: int
    row_tokens: int
    vocabulary: int | None = None


FULL = Size(
    model="nano",
    kinds=SCENES,
    count=4_000,
    contrastive_steps=500,
    steps=1_500,
    refusals=100,
    rounds=9,
    row_tokens=2048,
    vocabulary=SCENE_TOKENS,
)
QUICK = Size(
    model="micro",
    kinds=FEW_KINDS,
    count=20,
    contrastive_steps=1,
    steps=2,
    refusals=2,
    rounds=2,
    row_tokens=1024,
    vocabulary=FEW_TOKENS,
)


@dataclass(frozen=True, kw_only=True)
class ModeRuns:
    """Runs of a size in all modes, on one drawn corpus in `folder`."""

    folder: Path
    size: Size

    @cached_property
    def train(self) -> Path:
        return draw(self.folder, self.size.kinds, self.size.count, "train")

    @cached_property
    def held_out(self) -> Path:
        """Other drawings of the kinds of objects that training shows: the model has no words for others."""
        return draw(self.folder, self.size.kinds, max(5, self.size.count // 20), "train", seed=1)

    @cached_property
    def eyes(self) -> Bundle:
        """An encoder of contrastive training."""
        vision, objective = encoder_of(f"rw_vitdet.{self.size.model}"), ContrastiveConfig(kept=0.25, unmasked_share=0.1)
        config = contrastive(vision, objective, self.train, self.held_out, self.size.contrastive_steps, seed=0)
        return trained(with_vocabulary(config, self.size.vocabulary), self.folder / "eyes", "eyes")

    def exact(self, seed: int) -> dict[str, float]:
        """Train with this seed and return the share of exact answers in each mode, and those of refusals."""
        learn: tuple[Learned, ...] = ("captions", "questions")
        model, steps = self.size.model, self.size.steps
        corpora = self.train, self.held_out
        run = in_thirds(multimodal(model, *corpora, learn=learn, mode="drawn", steps=steps, seed=seed, eyes=self.eyes))
        place = self.folder / f"run-{seed}"
        bundle = trained(with_vocabulary(run, self.size.vocabulary), place, f"modes-{seed}")
        decoder = load_decoder(bundle).eval()
        found = {}
        for mode in MODES:
            shards = packed(bundle, self.held_out, self.size.model, mode, place / "modes")
            found[str(mode)] = exact_answers(decoder, shards, row_tokens=self.size.row_tokens).exact
        return found | refusal_shares(str(bundle.path), self.size.refusals)

    def times(self) -> dict[str, list[float]]:
        """Return the tokens of an image in each mode, and the CPU seconds to the first logits, of untrained weights."""
        anywhere = self.folder / "none"
        run = multimodal(self.size.model, anywhere, anywhere, learn=("questions",), mode="drawn", steps=1, seed=0)
        model = cast("MultimodalDecoder", run.trainer.model.build().eval())
        return {m.name: [m.num_tokens, round(seconds(model, m, self.size.rounds), 4)] for m in model.config.image_modes}


def measure(folder: Path, size: Size, seeds: range, finished: Finished) -> dict[str, Any]:
    runs = ModeRuns(folder=folder, size=size)
    times = finished.result("times", size, runs.times)
    exact = [finished.result(f"exact-{seed}", size, partial(runs.exact, seed)) for seed in seeds]
    figures: dict[str, Any] = {}
    for mode in MODES:
        tokens, cpu_s = times[mode]
        quality = statistics.fmean(found[mode] for found in exact)
        figures |= {f"quality_{mode}": round(quality, 4), f"tokens_{mode}": tokens, f"cpu_s_{mode}": cpu_s}
    for name in REFUSALS:
        figures[name] = round(statistics.fmean(found[name] for found in exact), 4)
    return {
        "benchmark": "resolution_modes",
        "peer": "the same model in the other modes",
        "setting": {
            "size": size.model,
            "documents": len(size.kinds) * size.count,
            "steps": size.steps,
            "seeds": len(seeds),
        },
        "exact": exact,
        "figures": figures,
    }


def plot(figures: dict[str, Any], out: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    points = [(figures[f"cpu_s_{mode}"], 100 * figures[f"quality_{mode}"], mode) for mode in MODES]
    axes.plot([x for x, _, _ in points], [y for _, y, _ in points], marker="o")
    for x, y, mode in points:
        text = f"{mode}: {figures[f'tokens_{mode}']} tokens"
        axes.annotate(text, (x, y), xytext=(-8, 4), textcoords="offset points", ha="right")
    axes.set_xscale("log")
    axes.set_xticks([x for x, _, _ in points], labels=[f"{x:.2g}" for x, _, _ in points])
    axes.minorticks_off()
    axes.margins(0.3)
    axes.set_xlabel("CPU seconds from the image to the first token")
    axes.set_ylabel("exact answers, %")
    figure.savefig(out, dpi=150)


def main() -> None:
    parser = benchmark_parser(__doc__, "few drawings and steps, one seed; claims nothing")
    parser.add_argument("--out", type=Path, help="a PNG of the trade-off between quality and time")
    add_finished(parser)
    options = parser.parse_args()
    finished = Finished(path=options.finished)
    with home() as folder:
        size, seeds = (QUICK, range(1)) if options.quick else (FULL, range(3))
        report = measure(folder, size, seeds, finished)
    if options.out is not None:
        plot(report["figures"], options.out)
    hand_in(report, REPORT, options)


if __name__ == "__main__":
    main()
