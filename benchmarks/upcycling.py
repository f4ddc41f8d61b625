"""Benefits and costs of sparse upcycling and of distilling the last tenth of a run (report 4.3).

A dense decoder trains on the built-in corpus for 90 % of its tokens. From there the run continues to its end in three ways,
with the same rows, optimizer state and schedule:

    dense                 the same training
    from_upcycled         cached logits of a teacher, the dense model at 90 % upcycled and trained on 1/14 of the tokens
    from_scratch_teacher  cached logits of a teacher of the same size, trained from scratch on as many tokens as `dense`

The learning rate decays in the last tenth, for the upcycled teacher over its fourteenth.

Losses are next-token cross entropy on held-out examples, means over seeds of weights and data order, with the standard
deviation over seeds; `minus_dense` is the mean of the differences per seed. Costs are floating-point operations by
arithmetic: `teacher` is the training of the teacher, `logits` its pass over the student's data, `total` all computation of
the arm.

`teacher_cost_saving` is 1 - cost of training the upcycled teacher / that of the one from scratch; the report states 0.9.
`step0_max_abs_diff` is the largest difference of logits between the dense and the upcycled model before its first step.

Scale: a model of 1.0 M weights (teachers of 16 experts: 5.9 M), 0.41 M tokens for `dense`, 3 seeds. That is 0.4 tokens per
weight; the report's model had 4,500. A full run takes about 11 minutes on one thread and writes
docs/benchmarks/upcycling.json. `--quick` runs the same code with a few steps and two seeds and claims nothing.

    python benchmarks/upcycling.py [--quick] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from openafm.bundle import Bundle, write_bundle
from openafm.core.files import write_json
from openafm.data.documents import ChatDocument, texts_of
from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.data.pack import PackConfig, pack_synthetic
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.models.accounting import num_parameters, training_flops
from openafm.models.decoder import Decoder
from openafm.models.initialization.upcycling import upcycle
from openafm.models.initialization.upcycling_config import UpcyclingConfig, upcycled_config
from openafm.models.sizes import shared_kv_decoder
from openafm.tokenizer.bpe import Tokenizer, TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.training.budgets import StepBudget
from openafm.training.config import CheckpointConfig, TrainerConfig
from openafm.training.initialization import fresh_state
from openafm.training.objectives.base import NextToken
from openafm.training.objectives.config import CachedDistillationConfig, NextTokenConfig, ObjectiveConfig
from openafm.training.objectives.teacher_logits import write_teacher_logits
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.run import load_trained, train
from openafm.training.schedules import WarmupStableDecay
from openafm.training.trainer import Trainer

REPORT = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "upcycling.json"
VOCAB_SIZE = 1024
MODEL = shared_kv_decoder(
    vocab_size=VOCAB_SIZE,
    dim=96,
    num_own_layers=5,
    num_shared_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=24,
    hidden_dim=288,
    context_length=256,
)
UPCYCLING = UpcyclingConfig(num_experts=16)
TEACHER = upcycled_config(MODEL, UPCYCLING)
LAST, EXTRA = 1 / 10, 1 / 14  # shares of the dense model's tokens: of the student's last part, of the upcycled teacher
# A new optimizer needs a warm-up; after it the learning rate decays, as that of the student.
UPCYCLED: dict[str, Any] = {"schedule": WarmupStableDecay(warmup_fraction=0.1, decay_fraction=0.9)}
ARMS = ("dense", "from_upcycled", "from_scratch_teacher")
TEACHERS = ("upcycled_teacher", "scratch_teacher")


@dataclass(frozen=True, kw_only=True)
class Size:
    """`steps` of the dense model's training, 2,048 tokens each."""

    steps: int
    seeds: int
    examples: int
    held_out_batches: int


FULL = Size(steps=200, seeds=3, examples=20_000, held_out_batches=40)
QUICK = Size(steps=20, seeds=2, examples=1_000, held_out_batches=4)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The data and model of all runs of the benchmark."""

    tokenizer: Tokenizer
    train: LoaderConfig
    held_out: LoaderConfig


@dataclass(frozen=True, kw_only=True)
class Seed:
    """The results of a seed: held-out losses and floating-point operations by name, and the difference at step 0."""

    losses: dict[str, float]
    flops: dict[str, int]
    step0: float


def corpus(size: Size, folder: Path) -> Corpus:
    texts = [text for c in generate(SyntheticConfig(), 2_000) for text in texts_of(ChatDocument(conversation=c))]
    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=VOCAB_SIZE), texts)
    loaders = []
    for split, num_examples in (("train", size.examples), ("held_out", 40 * size.held_out_batches)):
        config = PackConfig(source=split, learn="everything")
        pack_synthetic(SyntheticConfig(split=split), num_examples, folder / split, tokenizer, ChatTemplate(), config)
        source = SourceConfig(name=split, path=str(folder / split))
        loaders.append(LoaderConfig(sources=(source,), rows_per_step=8, row_tokens=256))
    return Corpus(tokenizer=tokenizer, train=loaders[0], held_out=loaders[1])


def measured(size: Size, seed: int, data: Corpus, folder: Path) -> Seed:
    """Train all arms with one seed."""

    def kept(model: Decoder, name: str) -> Bundle:
        tensors = {key: tensor.detach().numpy() for key, tensor in model.state_dict().items()}
        return write_bundle(
            folder / f"{name}.bundle",
            config=model.config,
            tokenizer=data.tokenizer,
            template=ChatTemplate(),
            tensors=tensors,
        )

    def trained(name: str, config: TrainerConfig) -> Decoder:
        train(config, folder / name)
        model = load_trained(folder / name)
        losses[name], flops[name] = held_out_loss(model, data.held_out, size), training_cost(config)
        return model

    losses: dict[str, float] = {}
    flops: dict[str, int] = {}
    num_last = round(LAST * size.steps)
    whole = run_config(MODEL, replace(data.train, seed=2 * seed), size.steps, seed)
    last = replace(whole, data=replace(data.train, seed=2 * seed + 1), budget=StepBudget(num_steps=num_last))

    trunk = Trainer(whole, fresh_state(whole, "cpu"), whole.data.build())
    while trunk.state.step < size.steps - num_last:
        trunk.update(trunk.source.batch(trunk.state.step))
    snapshot, flops["trunk"] = trunk.state.snapshot(), training_cost(whole, size.steps - num_last)

    def finished(name: str, objective: ObjectiveConfig) -> None:
        """Train the last tenth, from the state of the trunk."""
        config = replace(whole, objective=objective)
        trainer = Trainer(config, fresh_state(config, "cpu"), last.data.build())
        trainer.state.restore(snapshot)
        for step in range(num_last):
            trainer.update(trainer.source.batch(step))
        losses[name] = held_out_loss(trainer.state.model, data.held_out, size)
        flops[name] = training_cost(last)

    begun = kept(trunk.state.model, "trunk")
    unseen = replace(data.train, seed=1_000 + seed)  # other rows than the student's
    further = run_config(TEACHER, unseen, round(EXTRA * size.steps), seed)
    further = replace(further, from_bundle=str(begun.path), upcycle=UPCYCLING, **UPCYCLED)
    kept(trained("upcycled_teacher", further), "upcycled_teacher")
    kept(trained("scratch_teacher", replace(whole, model=TEACHER)), "scratch_teacher")

    finished("dense", NextTokenConfig())
    for name, teacher in (("from_upcycled", "upcycled_teacher"), ("from_scratch_teacher", "scratch_teacher")):
        objective = CachedDistillationConfig(
            teacher=str(folder / f"{teacher}.bundle"), cache=str(folder / f"{teacher}.logits"), num_tokens=VOCAB_SIZE
        )
        flops[f"{teacher}_logits"] = write_teacher_logits(replace(last, objective=objective)).manifest.flops
        finished(name, objective)
    return Seed(losses=losses, flops=flops, step0=step0_difference(trunk.state.model, data.held_out))


def run_config(model: Any, data: LoaderConfig, num_steps: int, seed: int) -> TrainerConfig:
    return TrainerConfig(
        model=model,
        data=data,
        budget=StepBudget(num_steps=num_steps),
        optimizer=AdamWConfig(learning_rate=4e-3),
        schedule=WarmupStableDecay(warmup_fraction=0.05, decay_fraction=LAST),
        checkpoint=CheckpointConfig(every_seconds=None),
        num_threads=1,
        seed=seed,
    )


@torch.no_grad()
def held_out_loss(model: Decoder, data: LoaderConfig, size: Size) -> float:
    loader, objective = data.build(), NextToken()
    total, count = 0.0, 0
    for step in range(size.held_out_batches):
        losses = objective(model, loader.batch(step))
        parts = losses.parts or {"cross_entropy": losses.total}
        total += float(parts["cross_entropy"])
        count += losses.count
    return total / count


@torch.no_grad()
def step0_difference(dense: Decoder, data: LoaderConfig) -> float:
    tokens_BS = torch.from_numpy(data.build().batch(0).tokens_BS)
    return float((dense(tokens_BS) - upcycle(dense, UPCYCLING)(tokens_BS)).abs().max())


def training_cost(config: TrainerConfig, num_steps: int | None = None) -> int:
    """Return the floating-point operations of a run's first steps, forward and backward, without a teacher's."""
    assert isinstance(config.budget, StepBudget)
    loader = config.data.build()
    batches = (loader.batch(step) for step in range(num_steps or config.budget.num_steps))
    return sum(training_flops(config.model, [d.stop - d.start for d in b.documents], b.num_targets) for b in batches)


def figures(results: list[Seed]) -> dict[str, Any]:
    losses = {
        name: {
            "mean": round(statistics.fmean(r.losses[name] for r in results), 4),
            "std": round(statistics.stdev(r.losses[name] for r in results), 4),
            "by_seed": [round(r.losses[name], 4) for r in results],
            "minus_dense": round(statistics.fmean(r.losses[name] - r.losses["dense"] for r in results), 4),
            "minus_dense_std": round(statistics.stdev(r.losses[name] - r.losses["dense"] for r in results), 4),
        }
        for name in (*ARMS, *TEACHERS)
    }
    flops = {name: statistics.fmean(r.flops[name] for r in results) for name in results[0].flops}
    return {
        "step0_max_abs_diff": max(r.step0 for r in results),
        "teacher_cost_saving": round(1 - flops["upcycled_teacher"] / flops["scratch_teacher"], 4),
        "losses": losses,
        "flops": {arm: costs(arm, flops) for arm in ARMS},
    }


def costs(arm: str, flops: dict[str, float]) -> dict[str, float]:
    """Return the costs of teacher, logits and total, in 10^12 operations."""
    teacher = {"from_upcycled": "upcycled_teacher", "from_scratch_teacher": "scratch_teacher"}.get(arm)
    training = 0.0 if teacher is None else flops[teacher]
    logits = 0.0 if teacher is None else flops[f"{teacher}_logits"]
    student = flops["trunk"] + flops[arm]
    total = student + training + logits
    parts = {"teacher": training, "logits": logits, "student": student, "total": total}
    return {name: round(value / 1e12, 3) for name, value in parts.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code; claims nothing")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    torch.set_num_threads(1)
    start_s = process_time()
    with tempfile.TemporaryDirectory() as name:
        data = corpus(size, Path(name))
        results = [measured(size, seed, data, Path(name) / str(seed)) for seed in range(size.seeds)]
    report = {
        "figures": figures(results),
        "peer": "a teacher of the same size trained from nothing, and no teacher",
        "setting": {
            "quick": options.quick,
            **asdict(size),
            "tokens": size.steps * data.train.rows_per_step * data.train.row_tokens,
            "parameters": num_parameters(MODEL),
            "teacher_parameters": num_parameters(TEACHER),
            "experts": UPCYCLING.num_experts,
            "threads": 1,
            "cpu_seconds": round(process_time() - start_s),
        },
    }
    if not options.json:
        print_tables(report["figures"])
    if not options.quick:
        write_json(REPORT, report)
    print(json.dumps(report))
    return 0


def print_tables(found: dict[str, Any]) -> None:
    print(f"{'':22}{'held-out loss':>14}{'std':>8}{'- dense':>9}{'std':>8}{'teacher':>10}{'logits':>9}{'total':>9} TFLOP")
    for name, loss in found["losses"].items():
        cost = found["flops"].get(name)
        shown = "" if cost is None else f"{cost['teacher']:10.2f}{cost['logits']:9.2f}{cost['total']:9.2f}"
        print(
            f"{name:22}{loss['mean']:14.4f}{loss['std']:8.4f}{loss['minus_dense']:9.4f}{loss['minus_dense_std']:8.4f}{shown}"
        )
    print(f"saving in the teacher's training: {found['teacher_cost_saving']:.1%} (the report: 90 %)")
    print(f"largest difference at step 0: {found['step0_max_abs_diff']:.1e}")


if __name__ == "__main__":
    sys.exit(main())
