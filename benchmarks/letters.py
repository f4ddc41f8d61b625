"""Letters that an encoder names by place on held-out flyers and signs, after equal time on one core.

    convolutions    the encoder of the recipe, `reader.nano`
    patches         two transformer layers in windows after a linear patch embedding, as in the report

Both train by the recipe `vision.letters` on the same English drawings, without its pages of words. `letters_...` is the
share of the letters of held-out drawings whose class is right; fonts, designs and camera conditions of these are not in
training.

    python benchmarks/letters.py [--minutes M] [--train FOLDER --held-out FOLDER] [--bundle NAME] [--quick] [--json]

`--train` and `--held-out` are image corpora, drawn before; `--bundle` scores a bundle of `vision.letters` and trains
nothing. Give the benchmark a core of its own. A full run (12 minutes of drawing, then 8 of each encoder) writes
docs/benchmarks/letters.json.
"""

from __future__ import annotations

import json
import math
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
from shared.vision_runs import draw, home, trained, with_images, with_steps

from openafm.bundle import Bundle, open_bundle
from openafm.bundle.decoder import load_decoder
from openafm.data.images.decoding import pixels
from openafm.data.images.letters import has_words, letter_tokens
from openafm.data.images.resolution import image_views
from openafm.data.images.shards import ImageCorpus, open_image_corpus
from openafm.models.vision.config import VisionConfig
from openafm.models.vision.letters import NO_LETTER
from openafm.models.vision.letters_adapter import LettersAdapter
from openafm.models.vision.letters_adapter_config import LettersAdapterConfig
from openafm.models.vision.multimodal import MultimodalDecoder
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.sizes import encoder_of, raised, windowed_encoder
from openafm.recipes.catalog import build_run
from openafm.recipes.config import RunConfig
from openafm.recipes.sources.mixtures import sources
from openafm.recipes.vision.reader import KINDS
from openafm.training.budgets import TimeBudget

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "letters.json"
PATCHES = {
    "micro": raised(encoder_of("rw_vitdet.micro"), 168),
    "nano": windowed_encoder(
        image_side=448, patch_side=16, window_side=4, dim=128, num_layers=2, num_heads=4, mlp_dim=512, num_global_layers=1
    ),
}


def run_of(size: str, vision: VisionConfig, train: Path, held_out: Path) -> RunConfig:
    """Return the run `vision.letters` with another encoder on these drawings."""
    run = with_images(build_run("vision.letters", size), train, held_out)
    model = cast("MultimodalConfig", run.trainer.model)
    token_side = vision.image_side // math.isqrt(model.image_modes[0].tokens)
    adapter = LettersAdapterConfig(patch_side=vision.patch_side, factor=token_side // vision.patch_side)
    model = replace(model, vision=vision, adapter=adapter)
    data = replace(run.trainer.data, sources=sources(letters=1.0))
    return replace(
        run,
        corpora=tuple(corpus for corpus in run.corpora if corpus.name != "word_letters"),
        trainer=replace(run.trainer, model=model, data=data, evaluation=None),
    )


@torch.no_grad()
def letters_read(bundle: Bundle, corpus: ImageCorpus) -> tuple[float, int]:
    """Return the share of the letters that a model names, and how many there are."""
    model = cast("MultimodalDecoder", load_decoder(bundle)).eval()
    adapter = cast("LettersAdapter", model.adapter)
    mode, num_right, num_letters = model.config.image_modes[0], 0, 0
    for document in corpus.documents():
        if not has_words(document):
            continue
        (digest,) = document.digests
        numbers = torch.tensor(letter_tokens(document, corpus.size(digest), mode.side)).reshape(-1, 3)
        row_L, column_L, letter_L = numbers[numbers[:, 2] != NO_LETTER].unbind(1)
        if not len(letter_L):
            continue
        view_1YXC = torch.tensor(image_views(pixels(corpus.image(digest)), mode))
        logits_LK = adapter.letter_logits(model.vision(view_1YXC), torch.zeros_like(row_L), row_L, column_L)
        num_right += int((logits_LK.argmax(-1) == letter_L).sum())
        num_letters += len(letter_L)
    return num_right / max(num_letters, 1), num_letters


def measure(folder: Path, size: str, train: Path, held_out: Path, minutes: float | None) -> dict[str, Any]:
    encoders = {"convolutions": encoder_of(f"reader.{size}"), "patches": PATCHES[size]}
    shares, seconds, num_letters = {}, {}, 0
    for name, vision in encoders.items():
        run = run_of(size, vision, train, held_out)
        run = (
            with_steps(run, 2, seed=0)
            if minutes is None
            else replace(run, trainer=replace(run.trainer, budget=TimeBudget(seconds=60 * minutes)))
        )
        start = process_time()
        bundle = trained(run, folder / name, name)
        seconds[name] = process_time() - start
        shares[name], num_letters = letters_read(bundle, open_image_corpus(held_out))
    return {
        "benchmark": "letters",
        "peer": "transformer layers after a linear patch embedding",
        "setting": {"minutes": minutes, "letters": num_letters},
        "figures": {f"letters_{name}": round(share, 4) for name, share in shares.items()}
        | {f"cpu_s_{name}": round(value) for name, value in seconds.items()},
    }


def main() -> None:
    parser = benchmark_parser(__doc__, "few drawings and steps; claims nothing")
    parser.add_argument("--minutes", type=float, default=8.0, help="of training of each encoder")
    parser.add_argument("--train", type=Path, help="an image corpus to train on; default: draw one")
    parser.add_argument("--held-out", type=Path, help="an image corpus to score on; default: draw one")
    parser.add_argument("--bundle", help="score this bundle only")
    options = parser.parse_args()
    bundle = None if options.bundle is None else open_bundle(options.bundle)
    if bundle is not None and not isinstance(getattr(bundle.config, "adapter", None), LettersAdapterConfig):
        parser.error(f"{options.bundle} classifies no letters; name a bundle of vision.letters")
    with home() as folder:
        held_out = options.held_out or draw(folder, KINDS, 6 if options.quick else 150, "held_out")
        if bundle is not None:
            share, num_letters = letters_read(bundle, open_image_corpus(held_out))
            print(json.dumps({"bundle": bundle.name, "letters": num_letters, "letters_bundle": round(share, 4)}))
            return
        train = options.train or draw(folder, KINDS, 12 if options.quick else 3_000, "train")
        size, minutes = ("micro", None) if options.quick else ("nano", options.minutes)
        hand_in(measure(folder, size, train, held_out, minutes), REPORT, options)


if __name__ == "__main__":
    main()
