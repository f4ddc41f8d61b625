"""Training speed and that of transformers.Trainer: real tokens per CPU-second at equal work, in one alternating run.

Both train the same model (a Qwen3 shape, the same initial weights) on the same documents in every optimizer update, in the
same precision, with fused AdamW, uncompiled, on one thread. Ours packs the documents of an update into 4 rows of 512. The
reference splits them into 2 batches of about 8 (its default batch size), pads each to its longest document and
accumulates. The losses of both are compared to check that they do the same work. Further figures are for other batches of
the reference.

    python benchmarks/training_throughput.py [--quick] [--rounds N] [--json]

A full run writes docs/benchmarks/training_throughput.json. `--quick` runs the same code on few updates and claims nothing.
"""

from __future__ import annotations

import itertools
import logging
import os
import platform
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
import transformers
from shared.reporting import benchmark_parser, hand_in
from torch import Tensor

from openafm.bundle.hugging_face.weights import decoder_name
from openafm.data.loading.batch import Batch
from openafm.data.loading.loader import Loader, LoaderConfig, SourceConfig
from openafm.data.shards.writer import write_shards
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    LayerConfig,
    OwnKeysValuesConfig,
    QKNormConfig,
    RotaryConfig,
)
from openafm.training.budgets import StepBudget
from openafm.training.config import BFloat16Config, Float32Config, PrecisionConfig, TrainerConfig
from openafm.training.initialization import fresh_state
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.schedules import Constant
from openafm.training.trainer import Trainer

DIM, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, HIDDEN_DIM = 256, 4, 2, 64, 704
ROWS, ROW_TOKENS, NORM_EPS, THETA = 4, 512, 1e-6, 10_000.0
PRECISIONS = {"fp32": Float32Config(), "bf16": BFloat16Config()}
OPTIMIZER = AdamWConfig(learning_rate=3e-4, weight_decay=0.0)
REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "training_throughput.json"


@dataclass(frozen=True, kw_only=True)
class Run:
    """Losses of consecutive updates, and the CPU seconds from the end of the first to the end of the last."""

    losses: list[float]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Case:
    """A corpus, and the batches of the reference: their number per update, and whether documents are sorted by length."""

    name: str
    corpus: str
    peer_batches: int
    by_length: bool = False


@dataclass(frozen=True, kw_only=True)
class Size:
    """The extent: `rounds` alternations of `updates` timed updates, and the size of the model."""

    rounds: int
    updates: int
    num_layers: int
    vocab_size: int


FULL = Size(rounds=5, updates=3, num_layers=8, vocab_size=16_384)
QUICK = Size(rounds=1, updates=1, num_layers=1, vocab_size=2048)

CASES = (
    Case(name="variable_length", corpus="variable", peer_batches=2),
    Case(name="variable_length_one_batch", corpus="variable", peer_batches=1),
    Case(name="variable_length_batches_of_4", corpus="variable", peer_batches=4),
    Case(name="variable_length_sorted", corpus="variable", peer_batches=2, by_length=True),
    Case(name="full_rows", corpus="full", peer_batches=1),
)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=FULL.rounds, help="alternations of a full run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    size = QUICK if options.quick else replace(FULL, rounds=options.rounds)

    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        loaders = {
            "variable": write_corpus(Path(folder) / "variable", variable_lengths(4000), size.vocab_size),
            "full": write_corpus(Path(folder) / "full", [ROW_TOKENS] * 400, size.vocab_size),
        }
        setting = describe(loaders["variable"], size)
        for precision in PRECISIONS:
            for case in CASES:
                figures |= compare(case, precision, loaders[case.corpus], size)
    report = {"figures": figures, "peer": f"transformers.Trainer {transformers.__version__}", "setting": setting}
    hand_in(report, REPORT, options)


def compare(case: Case, precision: str, loader: Loader, size: Size) -> dict[str, float]:
    """Alternate the two; each round starts both from the same weights, on the next documents."""
    ratios, ours_rates, peer_rates, gaps = [], [], [], []
    initial = peer_model(size).state_dict()
    for round_index in range(size.rounds):
        first = round_index * (size.updates + 1)
        steps = range(first, first + size.updates + 1)
        batches = [loader.batch(step) for step in steps]
        num_tokens = sum(batch.num_real_tokens for batch in batches[1:])
        ours = run_ours(size, initial, PRECISIONS[precision], loader, steps)
        peer = run_peer(size, initial, precision, batches, case)
        ratios.append(peer.seconds / ours.seconds)
        ours_rates.append(num_tokens / ours.seconds)
        peer_rates.append(num_tokens / peer.seconds)
        gaps += [abs(a - b) for a, b in zip(ours.losses, peer.losses, strict=True)]
    suffix = "" if precision == "fp32" else f"_{precision}"
    return {
        f"{case.name}_ratio{suffix}": round(statistics.median(ratios), 3),
        f"{case.name}_tokens_per_cpu_second{suffix}": round(statistics.median(ours_rates), 1),
        f"{case.name}_peer_tokens_per_cpu_second{suffix}": round(statistics.median(peer_rates), 1),
        f"{case.name}_largest_loss_gap{suffix}": float(f"{max(gaps):.2g}"),
    }


def run_ours(size: Size, weights: dict[str, Tensor], precision: PrecisionConfig, loader: Loader, steps: range) -> Run:
    config = TrainerConfig(
        model=our_model(size),
        data=loader.config,
        budget=StepBudget(num_steps=len(steps)),
        optimizer=OPTIMIZER,
        schedule=Constant(warmup_fraction=0.0),
        precision=precision,
    )
    state = fresh_state(config, "cpu")
    state.model.load_state_dict(our_weights(weights))
    trainer = Trainer(config, state, loader)
    losses, ends_s = [], []
    for step in steps:
        losses.append(trainer.update(loader.batch(step)).loss)
        ends_s.append(process_time())
    return Run(losses=losses, seconds=ends_s[-1] - ends_s[0])


def run_peer(size: Size, weights: dict[str, Tensor], precision: str, batches: Sequence[Batch], case: Case) -> Run:
    model = peer_model(size)
    model.load_state_dict(weights)
    items = [item for batch in batches for item in peer_items(batch, case)]
    ends_s: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends_s.append(process_time())

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            bf16=precision == "bf16",
            max_steps=len(batches),
            per_device_train_batch_size=1,  # an item is already a padded batch
            gradient_accumulation_steps=case.peer_batches,
            train_sampling_strategy="sequential",
            learning_rate=OPTIMIZER.learning_rate,
            adam_beta1=OPTIMIZER.betas[0],
            adam_beta2=OPTIMIZER.betas[1],
            adam_epsilon=OPTIMIZER.eps,
            weight_decay=OPTIMIZER.weight_decay,
            max_grad_norm=OPTIMIZER.gradient_clip,
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = transformers.Trainer(
            model=model, args=arguments, train_dataset=items, data_collator=pad, callbacks=[Clock()]
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return Run(losses=losses, seconds=ends_s[-1] - ends_s[0])


def peer_items(batch: Batch, case: Case) -> list[list[list[int]]]:
    """Return the documents of an update in the batches of the reference."""
    documents = [batch.tokens_BS[span.row, span.start : span.stop].tolist() for span in batch.documents]
    random.Random(0).shuffle(documents)  # ours are ordered by row, the longest of each first
    if case.by_length:
        documents.sort(key=len)
    cuts = [len(documents) * i // case.peer_batches for i in range(case.peer_batches + 1)]
    return [documents[start:stop] for start, stop in itertools.pairwise(cuts)]


def pad(items: list[list[list[int]]]) -> dict[str, Tensor]:
    """Pad to the longest document of the batch, as the collators of transformers do."""
    (documents,) = items
    longest = max(map(len, documents))
    padded = [document + [0] * (longest - len(document)) for document in documents]
    labels = [document + [-100] * (longest - len(document)) for document in documents]
    mask = [[1] * len(document) + [0] * (longest - len(document)) for document in documents]
    return {"input_ids": torch.tensor(padded), "attention_mask": torch.tensor(mask), "labels": torch.tensor(labels)}


def variable_lengths(count: int) -> list[int]:
    """Log-normal, capped to a row, about 130 tokens in the mean."""
    lengths = np.random.default_rng(0).lognormal(mean=4.6, sigma=0.8, size=count)
    return [int(length) for length in lengths.clip(8, ROW_TOKENS)]


def write_corpus(folder: Path, lengths: Sequence[int], vocab_size: int) -> Loader:
    generator = np.random.default_rng(1)
    with write_shards(folder, tokenizer_digest="benchmark", vocab_size=vocab_size) as writer:
        for length in lengths:
            writer.add((generator.zipf(1.3, length) % (vocab_size - 1) + 1).tolist())
    source = SourceConfig(name=folder.name, path=str(folder))
    return LoaderConfig(sources=(source,), rows_per_step=ROWS, row_tokens=ROW_TOKENS).build()


def describe(loader: Loader, size: Size) -> dict[str, Any]:
    """Return the setting of the figures."""
    source = loader.sources[0]
    return {
        "headline": "variable_length_ratio and full_rows_ratio, in fp32; figures in bf16 end in _bf16",
        "claims": "nothing, a smoke run" if size is QUICK else "the figures of this machine",
        "model": f"{size.num_layers} layers, dim {DIM}, {NUM_HEADS}/{NUM_KV_HEADS} heads x {HEAD_DIM}, FFN {HIDDEN_DIM}, "
        f"vocabulary {size.vocab_size}, tied, {sum(p.numel() for p in peer_model(size).parameters()):,} parameters",
        "documents": f"log-normal, mean {source.num_tokens / source.num_documents:.0f} tokens, cap {ROW_TOKENS}",
        "ours": f"{ROWS} rows of {ROW_TOKENS}, {source.fill:.1%} full",
        "peer_batches_per_update": {case.name: case.peer_batches for case in CASES},
        "rounds": size.rounds,
        "timed_updates_per_round": size.updates,
        "statistic": "median over rounds of the ratio of CPU seconds for the same updates, the first of a round untimed",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cpu": cpu_name(),
    }


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def our_model(size: Size) -> DecoderConfig:
    attention = AttentionConfig(
        num_heads=NUM_HEADS,
        head_dim=HEAD_DIM,
        keys_values=OwnKeysValuesConfig(num_heads=NUM_KV_HEADS),
        position=RotaryConfig(theta=THETA, layout="half"),
        qk_norm=QKNormConfig(eps=NORM_EPS, order="before_position"),
    )
    layer = LayerConfig(attention=attention, feed_forward=DenseFeedForwardConfig(hidden_dim=HIDDEN_DIM))
    return DecoderConfig(
        vocab_size=size.vocab_size, dim=DIM, layers=(layer,) * size.num_layers, norm_eps=NORM_EPS, context_length=ROW_TOKENS
    )


def peer_model(size: Size) -> transformers.Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=size.vocab_size,
        hidden_size=DIM,
        intermediate_size=HIDDEN_DIM,
        num_hidden_layers=size.num_layers,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        rms_norm_eps=NORM_EPS,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        max_position_embeddings=ROW_TOKENS,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return transformers.Qwen3ForCausalLM(config)


def our_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of the reference under our names; the head is tied."""
    return {
        name: tensor for theirs, tensor in weights.items() if (name := decoder_name(theirs)) not in (None, "output.weight")
    }


if __name__ == "__main__":
    main()
