"""Resolution modes (report 5.1): one model, trained in all of them, names the objects of held-out scenes in each.

`quality_MODE` is the share of scenes whose kinds of objects, such as "black star, red circle", are exact under greedy
decoding, on other scenes of the objects of training. `exact` has it by the number of kinds in a scene and for all, `runs`
for each seed; `quality_without_eyes` is the share of the most frequent answer. `tokens_MODE` are the tokens of an image,
`cpu_s_MODE` the CPU seconds from its pixels to the first logits of an answer, with untrained weights.

The model is a compact decoder with vision, whose encoder starts from contrastive training on the same drawings (FLIP, half
of the patches masked). Each mode is drawn for a third of the images.

    python benchmarks/resolution_modes.py [--quick] [--json] [--out FILE.png] [--finished FILE]

A full run (3 seeds, about 50 minutes on one core) writes docs/benchmarks/resolution_modes.json. --out draws the curve.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from time import process_time
from typing import Any, cast

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))
import torch
from shared.finished import Finished, add_finished
from shared.reporting import benchmark_parser, hand_in
from shared.selected_images import named_objects
from shared.vision_runs import contrastive, home, multimodal, trained, with_vocabulary

from openafm.bundle import Bundle
from openafm.bundle.decoder import load_decoder
from openafm.data.drawing.corpus import DrawingConfig, draw_corpus
from openafm.data.drawing.scenes import ScenesConfig
from openafm.data.images.packing import ImagePackConfig, pack_image_corpus
from openafm.data.images.resolution import MODES, Mode
from openafm.data.images.shards import open_image_corpus
from openafm.evaluation.exact_answers import exact_answers
from openafm.models.attention.spans import EmbeddingSpan, ImageKey
from openafm.models.decoder import Decoder
from openafm.models.vision.image_modes import ImageModeConfig
from openafm.models.vision.multimodal import MultimodalDecoder
from openafm.models.vision.sizes import encoder_of
from openafm.recipes.config import RunConfig
from openafm.recipes.sources.drawn_corpus import ImageCorpusConfig
from openafm.recipes.vision.mixtures import RESOLUTIONS
from openafm.training.objectives.config import ContrastiveConfig
from openafm.training.optimizer_config import AdamWConfig, MuonConfig

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "resolution_modes.json"
QUESTION_TOKENS = 32
SMALL_SCENES = ScenesConfig(least=1, most=4, pairs=0.0, marks=0.0)
NUM_KINDS = (1, 2, 3, 4)
"""Kinds of objects of a scene."""
VOCABULARY = 350
"""The names of objects give hardly more tokens."""
OPTIMIZER = MuonConfig(learning_rate=0.02, weight_decay=0.0, adamw=AdamWConfig(learning_rate=3e-3, weight_decay=0.0))


def in_thirds(config: RunConfig) -> RunConfig:
    """Return the run with each mode drawn for a third of the images: drawings are all larger than a view."""

    def changed(corpus: ImageCorpusConfig) -> ImageCorpusConfig:
        shares = {"rapid_share": 1 / 3, "rapid_share_of_high_resolution": 1 / 3, "balanced_share": 0.5}
        resolution = replace(corpus.packing.resolution, **shares)
        return replace(corpus, packing=replace(corpus.packing, resolution=resolution))

    return replace(config, corpora=tuple(changed(cast("ImageCorpusConfig", corpus)) for corpus in config.corpora))


def packed(bundle: Bundle, scenes: Path, size: str, mode: Mode, folder: Path) -> Path:
    config = ImagePackConfig(learn=("captions",), resolution=RESOLUTIONS[size], mode=mode)
    pack_image_corpus(scenes, folder, bundle.tokenizer, bundle.template, config)
    return folder


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
    """A model, drawings, steps of both trainings, rows of a step, and rounds of timing."""

    model: str
    count: int
    contrastive_steps: int
    steps: int
    rows: int
    rounds: int


FULL = Size(model="micro", count=8_000, contrastive_steps=600, steps=300, rows=4, rounds=9)
QUICK = Size(model="micro", count=100, contrastive_steps=1, steps=2, rows=1, rounds=2)


@dataclass(frozen=True, kw_only=True)
class ModeRuns:
    """Runs of a size in all modes, on one drawn corpus in `folder`."""

    folder: Path
    size: Size

    @cached_property
    def drawn(self) -> Path:
        return self._draw("train", self.size.count, seed=0)

    @cached_property
    def train(self) -> Path:
        return named_objects(self.drawn, self.folder / "learned")

    @cached_property
    def held_out(self) -> Path:
        """Other drawings of the kinds of objects that training shows: the model has no words for others."""
        return self._draw("held_out", max(10, self.size.count // 20), seed=1)

    @cached_property
    def judged(self) -> dict[str, Path]:
        """The held-out scenes by their number of kinds."""
        counts = Counter(
            document.captions["keywords"].count(",") + 1 for document in open_image_corpus(self.held_out).documents()
        )
        return {
            str(number): named_objects(self.held_out, self.folder / f"kinds-{number}", number)
            for number in NUM_KINDS
            if counts[number]
        }

    @cached_property
    def eyes(self) -> Bundle:
        """An encoder of contrastive training."""
        vision, objective = encoder_of(f"rw_vitdet.{self.size.model}"), ContrastiveConfig(kept=0.5, unmasked_share=0.1)
        config = contrastive(vision, objective, self.drawn, self.held_out, self.size.contrastive_steps, seed=0)
        return trained(with_vocabulary(config, VOCABULARY), self.folder / "eyes", "eyes")

    def exact(self, seed: int) -> dict[str, dict[str, float]]:
        """Train with this seed and return the shares of exact answers by mode and number of kinds, and of all scenes."""
        bundle = trained(self._config(seed), self.folder / f"run-{seed}", f"modes-{seed}")
        decoder = load_decoder(bundle).eval()
        return {str(mode): self._shares(bundle, decoder, mode, self.folder / f"judged-{seed}-{mode}") for mode in MODES}

    def without_eyes(self) -> float:
        """Return the share of the most frequent answer of all scenes."""
        names = open_image_corpus(named_objects(self.held_out, self.folder / "all")).documents()
        found = Counter(document.captions["keywords"] for document in names)
        return round(max(found.values()) / found.total(), 4)

    def times(self) -> dict[str, list[float]]:
        """Return the tokens of an image in each mode, and the CPU seconds to the first logits, of untrained weights."""
        anywhere = self.folder / "none"
        run = multimodal(self.size.model, anywhere, anywhere, learn=("questions",), mode="drawn", steps=1, seed=0)
        model = cast("MultimodalDecoder", run.trainer.model.build().eval())
        return {m.name: [m.num_tokens, round(seconds(model, m, self.size.rounds), 4)] for m in model.config.image_modes}

    def _draw(self, name: str, count: int, seed: int) -> Path:
        out = self.folder / name
        draw_corpus(DrawingConfig(generators=(SMALL_SCENES,), languages=("en",), count=count, seed=seed), out)
        return out

    def _config(self, seed: int) -> RunConfig:
        size = self.size
        run = multimodal(
            size.model,
            self.train,
            self.held_out,
            learn=("captions",),
            mode="drawn",
            steps=size.steps,
            seed=seed,
            eyes=self.eyes,
        )
        data = replace(run.trainer.data, rows_per_step=size.rows)
        run = replace(run, trainer=replace(run.trainer, data=data, optimizer=OPTIMIZER))
        return with_vocabulary(in_thirds(run), VOCABULARY)

    def _shares(self, bundle: Bundle, decoder: Decoder, mode: Mode, folder: Path) -> dict[str, float]:
        found = {}
        for name, path in self.judged.items():
            shards = packed(bundle, path, self.size.model, mode, folder / name)
            found[name] = exact_answers(decoder, shards, row_tokens=1024)
        exact = sum(scores.exact * scores.num_answers for scores in found.values())
        shares = {name: round(scores.exact, 4) for name, scores in found.items()}
        return shares | {"all": round(exact / sum(scores.num_answers for scores in found.values()), 4)}


def measure(folder: Path, size: Size, seeds: range, finished: Finished) -> dict[str, Any]:
    runs = ModeRuns(folder=folder, size=size)
    times = finished.result("times", size, runs.times)
    found = [finished.result(f"exact-{seed}", size, partial(runs.exact, seed)) for seed in seeds]
    exact = {mode: _means([each[mode] for each in found]) for mode in MODES}
    figures: dict[str, Any] = {}
    for mode in MODES:
        tokens, cpu_s = times[mode]
        figures |= {f"quality_{mode}": exact[mode]["all"], f"tokens_{mode}": tokens, f"cpu_s_{mode}": cpu_s}
    figures["quality_without_eyes"] = finished.result("without eyes", size, runs.without_eyes)
    return {
        "benchmark": "resolution_modes",
        "peer": "the same model in the other modes, and the most frequent answer",
        "setting": {"size": size.model, "documents": size.count, "steps": size.steps, "seeds": len(seeds)},
        "exact": exact,
        "runs": found,
        "figures": figures,
    }


def _means(shares: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {kind: round(statistics.fmean(each[kind] for each in shares), 4) for kind in shares[0]}


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
    axes.set_ylim(bottom=0)
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
