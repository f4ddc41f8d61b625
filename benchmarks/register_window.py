"""Register-Window against plain windows and global attention (report 2.3), at equal operations, by contrastive training.

    register_window   registers attend in every window and in global layers: our reading of the report
    plain_window      registers attend in global layers only (ViTDet with registers)
    no_registers      ViTDet as published; the mean of the patches is the image's vector
    all_global        every layer is global, fewer steps for the same operations

`rw_gain` is the zero-shot accuracy with Register-Window minus that of plain windows: the share of held-out images that pick
their caption among 16 of their kind, and the reverse, averaged over seeds.

    python benchmarks/register_window.py [--quick] [--json]

A full run (3 seeds, about 3 hours on one core) writes docs/benchmarks/register_window.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import hand_in
from shared.vision_runs import FEW_TOKENS, contrastive, draw, home, pairs_per_cpu_second, trained, with_vocabulary

from openafm.data.images.shards import open_image_corpus
from openafm.evaluation.image_text import ImageTextEncoder, zero_shot
from openafm.models.vision.config import GlobalScopeConfig, ScopeConfig, VisionConfig, WindowScopeConfig
from openafm.models.vision.sizes import encoder_of, raised
from openafm.training.objectives.config import ContrastiveConfig

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "register_window.json"
KINDS = ("charts", "flyers", "scenes", "signs")
QUICK_KINDS = ("scenes", "signs")


def variants(base: VisionConfig) -> dict[str, VisionConfig]:
    plain = with_scope(base, WindowScopeConfig())
    return {
        "register_window": base,
        "plain_window": plain,
        "no_registers": replace(plain, num_registers=0),
        "all_global": with_scope(base, GlobalScopeConfig()),
    }


def with_scope(vision: VisionConfig, scope: ScopeConfig) -> VisionConfig:
    """Return the encoder with another scope in the layers that are not global."""
    layers = (
        layer if isinstance(layer.scope, GlobalScopeConfig) else replace(layer, scope=scope) for layer in vision.layers
    )
    return replace(vision, layers=tuple(layers))


def measure(
    folder: Path,
    kinds: tuple[str, ...],
    base: VisionConfig,
    count: int,
    steps: int,
    seeds: range,
    vocabulary: int | None = None,
) -> dict[str, Any]:
    train, held_out = draw(folder, kinds, count, "train"), draw(folder, kinds, max(20, count // 20), "held_out")
    objective = ContrastiveConfig()
    rates, means, scores = dict[str, float](), dict[str, float](), dict[str, list[dict[str, Any]]]()
    for name, vision in variants(base).items():
        equal_steps = max(1, round(steps * base.flops(base.image_side) / vision.flops(vision.image_side)))
        for seed in seeds:
            run = with_vocabulary(contrastive(vision, objective, train, held_out, equal_steps, seed), vocabulary)
            bundle = trained(run, folder / f"{name}-{seed}", f"{name}-{seed}")
            found = zero_shot(ImageTextEncoder(bundle), open_image_corpus(held_out))
            scores.setdefault(name, []).append(found.to_dict() | {"steps": equal_steps})
        rates[name] = pairs_per_cpu_second(run, folder / f"{name}-{seeds[-1]}", 2 if count < 1000 else 8)
        means[name] = statistics.fmean((each["image_to_text"] + each["text_to_image"]) / 2 for each in scores[name])
    return {
        "benchmark": "register_window",
        "peer": "the same encoder with plain windows, without registers, and with global attention",
        "setting": {"image_side": base.image_side, "documents": len(kinds) * count, "steps": steps, "seeds": len(seeds)},
        "scores": scores,
        "figures": {
            "rw_gain": round(means["register_window"] - means["plain_window"], 4),
            **{f"zero_shot_{name}": round(mean, 4) for name, mean in means.items()},
            **{f"pairs_per_cpu_s_{name}": round(rate, 2) for name, rate in rates.items()},
            "chance": round(1 / scores["register_window"][0]["candidates"], 4),
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
                folder, QUICK_KINDS, encoder_of("rw_vitdet.micro"), count=20, steps=2, seeds=range(1), vocabulary=FEW_TOKENS
            )
        else:
            report = measure(
                folder, KINDS, raised(encoder_of("rw_vitdet.nano"), 336), count=2_000, steps=400, seeds=range(3)
            )
    hand_in(report, REPORT, options)


if __name__ == "__main__":
    main()
