"""Retrieval beyond the trained length, with and without positions in the global layers (report 2.2).

Three decoders of the same size train on the same documents in the same order: finding needles in text of one length, and
copying, which trains the retrieval. They differ in attention only:

  local_nope   3 local layers with rotation : 1 global layer without positions, the server model's
  local_rope   the same, the global layer with rotation
  rope         every layer global, with rotation

Each is then evaluated on held-out text of once, twice and four times that length. A needle is found if each of its tokens is
the most likely one; by chance that never happens. The figures beyond the trained length of an arm that has not learned the
task at that length have no meaning: see `learned`.

    python benchmarks/length_generalization.py [--quick] [--json] [--out FILE.png]

A full run writes docs/benchmarks/length_generalization.json. `--quick` runs a few steps of the same code and claims nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from openafm.core.files import write_json
from openafm.data.copies import CopiesConfig, pack_copies
from openafm.data.documents import ChatDocument, texts_of
from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.data.needles import NeedlesConfig, pack_needles
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.models.accounting import num_parameters
from openafm.models.attention.context import PackedDocuments
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    LayerConfig,
    OwnKeysValuesConfig,
    RotaryConfig,
)
from openafm.models.decoder import Decoder
from openafm.tokenizer.bpe import Tokenizer, TokenizerConfig, train_tokenizer
from openafm.training.budgets import StepBudget
from openafm.training.config import InductionStart, TrainerConfig
from openafm.training.optimizer_config import AdamWConfig, MuonConfig
from openafm.training.run import load_trained, train
from openafm.training.schedules import WarmupStableDecay

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "length_generalization.json"
ARMS = ("local_nope", "local_rope", "rope")
TRAINED_TOKENS, FACTORS = 256, (1, 2, 4)
LEARNED = 0.9  # accuracy at the trained length
VOCAB, DIM, NUM_LAYERS, NUM_HEADS, WINDOW = 512, 64, 4, 2, 16
COPIED = (8, 12, 16)  # tokens of a copy: mostly beyond the window, so that a global layer must learn it
NUM_NEEDLES, NEEDLE_TOKENS, ROWS_PER_STEP, COPIES_SHARE = 8, 4, 8, 0.5


@dataclass(frozen=True, kw_only=True)
class Work:
    """The extent: seeds, steps of a run, training documents, and held-out documents of each length."""

    seeds: int
    steps: int
    documents: int
    held_out: int


FULL = Work(seeds=3, steps=1_100, documents=3_600, held_out=50)
QUICK = Work(seeds=1, steps=4, documents=40, held_out=2)


def decoder(arm: str) -> DecoderConfig:
    """Return four layers, three of them local unless the arm has none."""

    def layer(index: int) -> LayerConfig:
        is_global = index % 4 == 3
        attention = AttentionConfig(
            num_heads=NUM_HEADS,
            head_dim=DIM // NUM_HEADS,
            keys_values=OwnKeysValuesConfig(num_heads=NUM_HEADS),
            window=None if is_global or arm == "rope" else WINDOW,
            position=None if is_global and arm == "local_nope" else RotaryConfig(),
        )
        return LayerConfig(attention=attention, feed_forward=DenseFeedForwardConfig(hidden_dim=2 * DIM))

    return DecoderConfig(
        vocab_size=VOCAB,
        dim=DIM,
        layers=tuple(layer(index) for index in range(NUM_LAYERS)),
        context_length=TRAINED_TOKENS * max(FACTORS),
    )


def text(split: str) -> SyntheticConfig:
    return SyntheticConfig(split=split, languages={"en": 1.0})  # type: ignore[arg-type]


def small_tokenizer() -> Tokenizer:
    conversations = generate(text("train"), 2_000)
    return train_tokenizer(
        TokenizerConfig(vocab_size=VOCAB, spaces="apart"),
        [part for conversation in conversations for part in texts_of(ChatDocument(conversation=conversation))],
    )


def needles(length: int, split: str, seed: int) -> NeedlesConfig:
    return NeedlesConfig(
        lengths=(length,), num_needles=NUM_NEEDLES, needle_tokens=NEEDLE_TOKENS, text=text(split), seed=seed
    )


def loader(folder: Path, row_tokens: int, rows: int, seed: int = 0, **weights: float) -> LoaderConfig:
    sources = tuple(SourceConfig(name=name, path=str(folder / name), weight=weight) for name, weight in weights.items())
    return LoaderConfig(sources=sources, rows_per_step=rows, row_tokens=row_tokens, seed=seed)


def trained(arm: str, folder: Path, work: Work, seed: int) -> Decoder:
    """Train one arm on the data in `folder`."""
    weights = {"needles": 1 - COPIES_SHARE, "copies": COPIES_SHARE}
    config = TrainerConfig(
        model=decoder(arm),
        data=loader(folder, TRAINED_TOKENS, ROWS_PER_STEP, seed, **weights),
        budget=StepBudget(num_steps=work.steps),
        optimizer=MuonConfig(learning_rate=0.02, weight_decay=0.0, adamw=AdamWConfig(learning_rate=4e-3, weight_decay=0.0)),
        schedule=WarmupStableDecay(decay_fraction=0.3),
        start=InductionStart(),
        num_threads=1,
        seed=seed,
        log_every=max(1, work.steps // 10),
    )
    train(config, folder / arm)
    return load_trained(folder / arm)


@torch.no_grad()
def found(model: Decoder, config: LoaderConfig, num_documents: int) -> float:
    """Return the share of needles whose tokens are all predicted correctly, given the tokens before each."""
    source, hits, count = config.build(), 0, 0
    for step in range(num_documents):
        batch = source.batch(step)
        indices_N = torch.from_numpy(batch.loss_mask_BS).flatten().nonzero()[:, 0]
        context = PackedDocuments(batch.documents, *batch.tokens_BS.shape)
        logits_NV = model.head(model.hidden_at(torch.from_numpy(batch.tokens_BS), context, indices_N))[0]
        targets_N = torch.from_numpy(batch.targets_BS).flatten()[indices_N]
        right_NK = (logits_NV.argmax(-1) == targets_N).view(-1, NEEDLE_TOKENS - 1)
        hits, count = hits + int(right_NK.all(1).sum()), count + len(right_NK)
    return hits / count


def one_seed(tokenizer: Tokenizer, work: Work, seed: int) -> dict[str, dict[str, float]]:
    """Return the share of needles that each arm finds at each length; all arms have the same rows in the same order."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pack_needles(needles(TRAINED_TOKENS, "train", seed), work.documents, folder / "needles", tokenizer)
        pack_copies(CopiesConfig(lengths=COPIED, seed=seed), 10 * work.documents, folder / "copies", tokenizer)
        for factor in FACTORS:
            held_out = needles(factor * TRAINED_TOKENS, "held_out", seed)
            pack_needles(held_out, work.held_out, folder / f"{factor}x", tokenizer)
        result = {}
        for arm in ARMS:
            model = trained(arm, folder, work, seed)
            result[arm] = {
                f"{factor}x": found(model, loader(folder, factor * TRAINED_TOKENS, 1, **{f"{factor}x": 1.0}), work.held_out)
                for factor in FACTORS
            }
        return result


def figures(work: Work) -> dict[str, Any]:
    """Return means over seeds by arm and length, the values of each seed, and whether every seed has learned the task."""
    tokenizer = small_tokenizer()
    seeds = [one_seed(tokenizer, work, seed) for seed in range(work.seeds)]
    lengths = [f"{factor}x" for factor in FACTORS]
    by_seed = {arm: {length: [round(s[arm][length], 4) for s in seeds] for length in lengths} for arm in ARMS}
    means = {arm: {x: round(statistics.fmean(values), 4) for x, values in by_seed[arm].items()} for arm in ARMS}
    return {
        "retrieval_accuracy": means,
        "by_seed": by_seed,
        "learned": {arm: min(by_seed[arm]["1x"]) >= LEARNED for arm in ARMS},
    }


def plot(report: dict[str, Any], out: Path) -> None:
    """Plot accuracy over length, a line per arm and a point per seed."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(6, 4), layout="constrained")
    axes = drawn.subplots()
    lengths = [TRAINED_TOKENS * factor for factor in FACTORS]
    for arm, values in report["figures"]["retrieval_accuracy"].items():
        (line,) = axes.plot(lengths, list(values.values()), label=arm)
        for length, points in zip(lengths, report["figures"]["by_seed"][arm].values(), strict=True):
            axes.plot([length] * len(points), points, "o", color=line.get_color(), markersize=4)
    axes.axvline(TRAINED_TOKENS, color="0.7", linestyle=":", label="trained length")
    axes.set(xlabel="tokens of a document", ylabel="needles found", xscale="log", xticks=lengths, xticklabels=lengths)
    axes.minorticks_off()
    axes.set_ylim(-0.03, 1.03)
    axes.legend()
    drawn.savefig(out, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code, under a minute")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    parser.add_argument("--out", type=Path, help="also draw the figures into this PNG file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    work = QUICK if options.quick else FULL
    started_s = process_time()
    report = {
        "figures": figures(work),
        "peer": "the same decoder, training and data with rotation in the global layers, or global layers only",
        "setting": {
            "quick": options.quick,
            "trained_tokens": TRAINED_TOKENS,
            "seeds": work.seeds,
            "steps": work.steps,
            "tokens_per_step": ROWS_PER_STEP * TRAINED_TOKENS,
            "copies_share": COPIES_SHARE,
            "needles_per_document": NUM_NEEDLES,
            "held_out_needles": work.held_out * NUM_NEEDLES,
            "parameters": num_parameters(decoder(ARMS[0])),
            "window": WINDOW,
            "cpu_seconds": round(process_time() - started_s),
            "threads": 1,
            "torch": torch.__version__,
            "machine": platform.machine(),
        },
    }
    if not options.quick:
        write_json(REPORT, report)
    if options.out:
        plot(report, options.out)
    if not options.json:
        print_table(report)
    print(json.dumps(report))


def print_table(report: dict[str, Any]) -> None:
    print(f"{'needles found':16}" + "".join(f"{f'{f}x':>8}" for f in FACTORS) + "   learned")
    for arm, values in report["figures"]["retrieval_accuracy"].items():
        learned = "yes" if report["figures"]["learned"][arm] else "no: says nothing"
        print(f"{arm:16}" + "".join(f"{value:8.2f}" for value in values.values()) + f"   {learned}")


if __name__ == "__main__":
    main()
