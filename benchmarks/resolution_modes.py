"""Resolution modes (report 5.1): one model, trained in all of them, answers held-out questions in each.

`quality_MODE` is the share of answers that are exact under greedy decoding, on charts, flyers, scenes and signs whose
designs, fonts and names are held out. `tokens_MODE` are the tokens of an image, `cpu_s_MODE` the CPU seconds from its pixels
to the first logits of an answer. The model is a compact decoder with vision that learns questions and captions from scratch;
each mode is drawn for a third of the images.

    python benchmarks/resolution_modes.py [--quick] [--json] [--out FILE.png]

A full run (3 seeds, about 6 hours on one core) writes docs/benchmarks/resolution_modes.json. --out draws the curve.
"""

from __future__ import annotations

import os
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any, cast

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))
import torch
from shared.reporting import benchmark_parser, hand_in
from shared.vision_runs import FEW_KINDS, FEW_TOKENS, KINDS, draw, home, multimodal, trained, with_vocabulary

from openafm.bundle import Bundle
from openafm.bundle.decoder import load_decoder
from openafm.data.images.packing import ImagePackConfig, pack_image_corpus
from openafm.data.images.resolution import MODES, Mode
from openafm.evaluation.exact_answers import exact_answers
from openafm.models.attention.spans import EmbeddingSpan, ImageKey
from openafm.models.vision.image_modes import ImageModeConfig
from openafm.models.vision.multimodal import MultimodalDecoder
from openafm.recipes.config import RunConfig
from openafm.recipes.sources.drawn_corpus import ImageCorpusConfig
from openafm.recipes.vision.mixtures import RESOLUTIONS

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


def measure(
    folder: Path, kinds: tuple[str, ...], size: str, count: int, steps: int, seeds: range, vocabulary: int | None = None
) -> dict[str, Any]:
    train, held_out = draw(folder, kinds, count, "train"), draw(folder, kinds, max(5, count // 20), "held_out")
    exact: dict[Mode, list[float]] = {mode: [] for mode in MODES}
    rounds, row_tokens = (2 if size == "micro" else 9), 2048 if size == "nano" else 1024
    for seed in seeds:
        run = in_thirds(
            multimodal(size, train, held_out, learn=("captions", "questions"), mode="drawn", steps=steps, seed=seed)
        )
        bundle = trained(with_vocabulary(run, vocabulary), folder / f"run-{seed}", f"modes-{seed}")
        model = cast("MultimodalDecoder", load_decoder(bundle).eval())
        for mode in MODES:
            shards = packed(bundle, held_out, size, mode, folder / f"run-{seed}" / "modes")
            exact[mode].append(exact_answers(model, shards, row_tokens=row_tokens).exact)
    modes = {mode.name: mode for mode in model.config.image_modes}
    figures: dict[str, Any] = {}
    for mode in MODES:
        figures |= {
            f"quality_{mode}": round(statistics.fmean(exact[mode]), 4),
            f"tokens_{mode}": modes[mode].num_tokens,
            f"cpu_s_{mode}": round(seconds(model, modes[mode], rounds), 4),
        }
    return {
        "benchmark": "resolution_modes",
        "peer": "the same model in the other modes",
        "setting": {"size": size, "documents": len(kinds) * count, "steps": steps, "seeds": len(seeds)},
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
    options = parser.parse_args()
    with home() as folder:
        if options.quick:
            report = measure(folder, FEW_KINDS, "micro", count=20, steps=2, seeds=range(1), vocabulary=FEW_TOKENS)
        else:
            report = measure(folder, KINDS, "nano", count=2_000, steps=1_500, seeds=range(3))
    if options.out is not None:
        plot(report["figures"], options.out)
    hand_in(report, REPORT, options)


if __name__ == "__main__":
    main()
