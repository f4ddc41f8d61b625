"""FLIP masking in contrastive pre-training (report 4.2): pairs per CPU-second, and zero-shot accuracy at equal CPU time.

Half and three quarters of the patches are masked, against none. `flip_ratio` is the pairs per CPU-second with half of the
patches masked, divided by those without masking. Then all train for the CPU time of the steps without masking; the masked
runs encode all patches in their last tenth. `zero_shot_*` is the share of held-out images that pick their caption among 16
of their kind, and the reverse, averaged over seeds; designs, fonts and names are held out.

    python benchmarks/clip_flip.py [--quick] [--json]

A full run (3 seeds, about 2 hours on one core) writes docs/benchmarks/clip_flip.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import hand_in
from shared.vision_runs import FEW_TOKENS, contrastive, draw, home, pairs_per_cpu_second, trained, with_vocabulary

from openafm.data.images.shards import open_image_corpus
from openafm.evaluation.image_text import ImageTextEncoder, zero_shot
from openafm.models.vision.sizes import encoder_of
from openafm.training.objectives.config import ContrastiveConfig

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "clip_flip.json"
KINDS = ("charts", "flyers", "scenes", "signs")
QUICK_KINDS = ("scenes", "signs")
KEPT = (1.0, 0.5, 0.25)


def measure(
    folder: Path, kinds: tuple[str, ...], encoder: str, count: int, steps: int, seeds: range, vocabulary: int | None = None
) -> dict[str, Any]:
    train, held_out = draw(folder, kinds, count, "train"), draw(folder, kinds, max(20, count // 20), "held_out")
    vision = encoder_of(encoder)
    objectives = {kept: ContrastiveConfig(kept=kept, unmasked_share=0.0 if kept == 1 else 0.1) for kept in KEPT}
    rates, scores = dict[float, float](), dict[float, list[dict[str, Any]]]()
    for kept, objective in objectives.items():
        # The first run packs the data; all runs read the same.
        config = with_vocabulary(contrastive(vision, objective, train, held_out, 1, 0), vocabulary)
        trained(config, folder / f"rate-{kept}", f"rate-{kept}")
        rates[kept] = pairs_per_cpu_second(config, folder / f"rate-{kept}", 2 if count < 1000 else 8)
        # A tenth of the steps encodes all patches, at the rate without masking.
        share = 0.0 if kept == 1 else objective.unmasked_share
        equal_steps = round(steps / (share + (1 - share) * rates[1.0] / rates[kept]))
        for seed in seeds:
            name = f"kept-{kept}-{seed}"
            run = with_vocabulary(contrastive(vision, objective, train, held_out, equal_steps, seed), vocabulary)
            bundle = trained(run, folder / name, name)
            found = zero_shot(ImageTextEncoder(bundle), open_image_corpus(held_out))
            scores.setdefault(kept, []).append(found.to_dict() | {"steps": equal_steps})
    means = {
        kept: statistics.fmean((each["image_to_text"] + each["text_to_image"]) / 2 for each in found)
        for kept, found in scores.items()
    }
    return {
        "benchmark": "clip_flip",
        "peer": "the same encoder, data and CPU time without masking",
        "setting": {"encoder": encoder, "documents": len(kinds) * count, "steps_unmasked": steps, "seeds": len(seeds)},
        "scores": {f"{kept:g}": found for kept, found in scores.items()},
        "figures": {
            "flip_ratio": round(rates[0.5] / rates[1.0], 2),
            "flip_ratio_75": round(rates[0.25] / rates[1.0], 2),
            **{f"pairs_per_cpu_s_kept_{kept:g}": round(rate, 2) for kept, rate in rates.items()},
            **{f"zero_shot_kept_{kept:g}": round(mean, 4) for kept, mean in means.items()},
            "chance": round(1 / scores[1.0][0]["candidates"], 4),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few drawings and steps, one seed; claims nothing")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    with home() as folder:
        if options.quick:
            report = measure(
                folder, QUICK_KINDS, "rw_vitdet.micro", count=20, steps=2, seeds=range(1), vocabulary=FEW_TOKENS
            )
        else:
            report = measure(folder, KINDS, "rw_vitdet.nano", count=2_000, steps=400, seeds=range(3))
    hand_in(report, REPORT, options)


if __name__ == "__main__":
    main()
