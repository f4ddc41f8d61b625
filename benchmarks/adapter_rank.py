"""The rank of a recovery adapter: held-out loss restored per byte.

Adapters of rank 2, 4, 8 and 16 are trained on one compressed bundle by `on_device.recovery_adapter`, with the same steps,
data, optimizer and seed. Bytes are those of the stored files. The loss is that of the stored adapter on the answers of the
recipe's held-out corpus. The gain is relative to the bundle without an adapter, with its standard error over held-out rows.
The chosen rank is the smallest with at least 90 % of the largest gain; none if the largest gain is within two standard
errors of zero.

    python benchmarks/adapter_rank.py [--bundle NAME] [--steps N] [--quick] [--json]

A full run writes docs/benchmarks/adapter_rank.json. `--quick` runs the same code on a tiny model and claims nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from torch import Tensor

from openafm.adapters.config import LoRAConfig
from openafm.adapters.lora import adapter_weights
from openafm.bundle import Bundle, RecoveryAdapter, bundle_place, open_bundle, write_bundle
from openafm.bundle.decoder import load_decoder
from openafm.core.progress import progress
from openafm.data.documents import ChatDocument, texts_of
from openafm.data.loading.batch import Batch
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.models.sizes import shared_kv_decoder
from openafm.recipes.compression.compress import compress
from openafm.recipes.compression.formats import compression_config, corpus_batches
from openafm.recipes.config import RunConfig
from openafm.recipes.prepare import prepare_run
from openafm.recipes.sources.corpora import CopiesCorpusConfig, SyntheticCorpusConfig, pack_corpus
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.training.budgets import StepBudget
from openafm.training.config import TrainerConfig
from openafm.training.initialization import fresh_state
from openafm.training.objectives.base import NextToken
from openafm.training.trainer import Trainer

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "adapter_rank.json"
RANKS = (2, 4, 8, 16)
ENOUGH = 0.9  # of the largest gain
NOISE = 2.0  # standard errors
ROW_TOKENS = 1024


@dataclass(frozen=True, kw_only=True)
class Size:
    """Size of training and evaluation. A step reads about ten conversations, none of them twice."""

    steps: int
    held_out_conversations: int
    conversations_per_step: int = 40


FULL = Size(steps=200, held_out_conversations=400)
QUICK = Size(steps=2, held_out_conversations=16)


@dataclass(frozen=True, kw_only=True)
class RowLosses:
    """Summed loss over the answers' tokens of each held-out row, in nats, and the number of tokens."""

    losses_R: Tensor
    counts_R: Tensor

    @property
    def mean(self) -> float:
        return float(self.losses_R.sum() / self.counts_R.sum())


@dataclass(frozen=True, kw_only=True)
class RankFigures:
    """Loss and gain of an adapter in nats per token, and bytes of its files."""

    rank: int
    bytes: int
    loss: float
    gain: float
    gain_error: float

    @property
    def gain_per_100_kb(self) -> float:
        return self.gain / self.bytes * 100_000

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self) | {"gain_per_100_kb": self.gain_per_100_kb}
        return {name: round(value, 6) for name, value in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", default="on_device.qat-nano", help="a compressed bundle without an adapter")
    parser.add_argument("--steps", type=int, default=FULL.steps, help="steps that every adapter is trained")
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code, under a minute")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if options.quick:
            os.environ["OPENAFM_HOME"] = folder
        size = QUICK if options.quick else replace(FULL, steps=options.steps)
        bundle = tiny_bundle() if options.quick else open_bundle(options.bundle)
        if bundle.recovery_adapter is not None or not bundle.numerics.is_compressed:
            parser.error(f"{bundle.path} is not a compressed bundle without an adapter; give that of on_device.qat")
        report = measure(bundle, size, Path(folder))
    if not options.quick:
        REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if not options.json:
        print_table(report["figures"])
    print(json.dumps(report))


def measure(bundle: Bundle, size: Size, folder: Path) -> dict[str, Any]:
    """Train adapters of every rank on one bundle and return their figures and the chosen rank."""
    run = recipe(bundle, size)
    for corpus in run.corpora_read:
        pack_corpus(corpus, folder / "data" / corpus.name, bundle.tokenizer, bundle.template)
    batches = held_out_batches(bundle, run, size.held_out_conversations)
    without = row_losses(bundle, batches)
    ranks = []
    for rank in RANKS:
        adapted = train(bundle, with_rank(run.trainer, rank, folder / "data"), folder / f"rank-{rank}")
        ranks.append(figures(rank, adapted, row_losses(adapted, batches), without))
    return {
        "figures": {
            "loss_without_adapter": round(without.mean, 6),
            "ranks": [rank.to_dict() for rank in ranks],
            "rank_to_take": rank_to_take(ranks),
        },
        "peer": "the bundle without an adapter",
        "setting": {
            "bundle": bundle.name,
            "signature": bundle.signature,
            "recipe": run.recipe,
            "steps": size.steps,
            "tokens_per_step": run.trainer.data.rows_per_step * run.trainer.data.row_tokens,
            "held_out_tokens": int(without.counts_R.sum()),
            "enough": ENOUGH,
            "noise_in_standard_errors": NOISE,
            "seed": run.trainer.seed,
            "threads": 1,
            "torch": torch.__version__,
            "machine": platform.machine(),
        },
    }


def recipe(bundle: Bundle, size: Size) -> RunConfig:
    """Return the recipe for this bundle, with as many conversations as the steps read."""
    run = prepare_run("on_device.recovery_adapter", "nano", start=str(bundle.path))
    corpora = tuple(
        replace(corpus, num_examples=min(corpus.num_examples, size.conversations_per_step * size.steps))
        for corpus in run.corpora
        if isinstance(corpus, SyntheticCorpusConfig | CopiesCorpusConfig)
    )
    trainer = replace(run.trainer, budget=StepBudget(num_steps=size.steps), evaluation=None)
    return replace(run, corpora=corpora, trainer=trainer)


def with_rank(trainer: TrainerConfig, rank: int, data: Path) -> TrainerConfig:
    """Return the run with an adapter of this rank, on the shards in `data`."""
    sources = tuple(replace(source, path=str(data / source.name)) for source in trainer.data.sources)
    adapter = replace(trainer.adapter or LoRAConfig(), rank=rank)
    return replace(trainer, adapter=adapter, data=replace(trainer.data, sources=sources))


def train(bundle: Bundle, config: TrainerConfig, place: Path) -> Bundle:
    """Write the bundle to `place`, with an adapter trained on it."""
    assert config.adapter is not None
    trainer = Trainer(config, fresh_state(config, "cpu"), config.data.build())
    with progress(f"adapter of rank {config.adapter.rank}", trainer.state.num_steps) as bar:
        for step in range(trainer.state.num_steps):
            update = trainer.update(trainer.source.batch(step))
            bar.update(step + 1, f"loss {update.loss:.3f}")
    weights = {name: weight.numpy() for name, weight in adapter_weights(trainer.state.model).items()}
    return write_bundle(
        place,
        config=bundle.config,
        tokenizer=bundle.tokenizer,
        template=bundle.template,
        tensors=bundle.tensors(),
        numerics=bundle.numerics,
        recovery=RecoveryAdapter(config=config.adapter, weights=weights),
    )


def held_out_batches(bundle: Bundle, run: RunConfig, num_conversations: int) -> list[Batch]:
    """Return the first conversations of the recipe's held-out corpus, one row of 1,024 tokens per batch."""
    held_out = next(c for c in run.corpora if isinstance(c, SyntheticCorpusConfig) and c.synthetic.split == "held_out")
    return corpus_batches(bundle, held_out.synthetic, num_conversations, ROW_TOKENS)


@torch.no_grad()
def row_losses(bundle: Bundle, batches: Sequence[Batch]) -> RowLosses:
    """Return the losses of the stored bundle with its adapter."""
    decoder = load_decoder(bundle, adapter=bundle.recovery_adapter)
    objective = NextToken()
    with progress(f"loss of {bundle.name}", len(batches)) as bar:
        rows = []
        for done, batch in enumerate(batches, start=1):
            losses = objective(decoder, batch)
            rows.append((losses.total.item(), losses.count))
            bar.update(done)
    losses_R, counts_R = torch.tensor(rows, dtype=torch.float64).unbind(1)
    return RowLosses(losses_R=losses_R, counts_R=counts_R)


def figures(rank: int, bundle: Bundle, rows: RowLosses, without: RowLosses) -> RankFigures:
    """Return figures with gains computed row by row, so that the difficulty of a row cancels in the standard error."""
    assert bundle.recovery_adapter is not None
    gain = without.mean - rows.mean
    deviations_R = without.losses_R - rows.losses_R - gain * rows.counts_R
    return RankFigures(
        rank=rank,
        bytes=sum(file.stat().st_size for file in bundle.recovery_adapter.path.rglob("*") if file.is_file()),
        loss=rows.mean,
        gain=gain,
        gain_error=math.sqrt(len(deviations_R) * float(deviations_R.var())) / float(rows.counts_R.sum()),
    )


def rank_to_take(ranks: Sequence[RankFigures]) -> int | None:
    """Return the smallest rank with nearly the largest gain; None if that gain is not significant."""
    best = max(ranks, key=lambda figures: figures.gain)
    if best.gain <= NOISE * best.gain_error:
        return None
    return min(figures.rank for figures in ranks if figures.gain >= ENOUGH * best.gain)


def print_table(figures: dict[str, Any]) -> None:
    print(f"held-out loss without an adapter: {figures['loss_without_adapter']:.4f}")
    print(f"{'rank':>4} {'bytes':>10} {'loss':>8} {'gain':>18} {'gain per 100 kB':>16}")
    for row in figures["ranks"]:
        gain = f"{row['gain']:.4f} +- {row['gain_error']:.4f}"
        print(f"{row['rank']:>4} {row['bytes']:>10,} {row['loss']:>8.4f} {gain:>18} {row['gain_per_100_kb']:>16.4f}")
    rank = figures["rank_to_take"]
    print("no adapter: none gains anything" if rank is None else f"rank to take: {rank}")


def tiny_bundle() -> Bundle:
    """Return an untrained decoder of three layers, rounded to two bits."""
    config = shared_kv_decoder(
        vocab_size=700,
        dim=32,
        num_own_layers=2,
        num_shared_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        hidden_dim=48,
        context_length=1024,
    )
    texts = [t for c in generate(SyntheticConfig(), 200) for t in texts_of(ChatDocument(conversation=c))]
    source = write_bundle(
        bundle_place("tiny"),
        config=config,
        tokenizer=train_tokenizer(TokenizerConfig(vocab_size=config.vocab_size), texts),
        template=ChatTemplate(),
        tensors={name: tensor.numpy() for name, tensor in config.build().state_dict().items()},
    )
    return open_bundle(compress(source, compression_config("int2"), "tiny-int2").bundle)


if __name__ == "__main__":
    main()
