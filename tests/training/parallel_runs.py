"""Runs of tiny models over processes, in combinations of axes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tiny_runs import VOCAB_SIZE, tiny_model, tiny_run

from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.models.config import DecoderConfig, TrackNormConfig
from openafm.models.parallel.row_layout import BalancedLayout, ConsecutiveLayout, RowLayoutConfig
from openafm.models.sizes import parallel_track_decoder
from openafm.training.config import ActivationCheckpointingConfig, EMAConfig, EvaluationConfig, TrainerConfig
from openafm.training.distributed.config import ParallelConfig
from openafm.training.distributed.parallel import Parallelism
from openafm.training.distributed.processes import Processes
from openafm.training.evaluation import Evaluator
from openafm.training.initialization import fresh_state
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.trainer import Trainer

NUM_STEPS = 5


def track_model() -> DecoderConfig:
    """Four tracks of four layers in two blocks, with experts in every second and a norm before tracks are combined."""
    config = parallel_track_decoder(
        vocab_size=VOCAB_SIZE + 3,  # divides over two and four tracks
        dim=32,
        num_tracks=4,
        num_layers=4,
        block_depth=2,
        num_heads=2,
        head_dim=8,
        window=8,
        dense_dim=24,
        num_experts=4,
        expert_dim=16,
        context_length=64,
    )
    assert config.tracks is not None
    return replace(config, tracks=replace(config.tracks, norm=TrackNormConfig()))


@dataclass(frozen=True, kw_only=True)
class Combination:
    """A way to divide a run; five rows per step are uneven for two and for four processes."""

    model: str
    axes: Mapping[str, int] = field(default_factory=dict)
    microbatch_rows: int | None = None
    context_layout: RowLayoutConfig = field(default_factory=ConsecutiveLayout)

    @property
    def name(self) -> str:
        axes = " ".join(f"{axis}={size}" for axis, size in self.axes.items())
        more = ["microbatches"] * (self.microbatch_rows is not None) + ["balanced"] * self.is_balanced
        return " ".join((self.model, axes or "alone", *more))

    @property
    def is_balanced(self) -> bool:
        return isinstance(self.context_layout, BalancedLayout)

    def config(self, corpus: Path) -> TrainerConfig:
        data = LoaderConfig(sources=(SourceConfig(name="count", path=str(corpus)),), rows_per_step=5, row_tokens=48)
        return tiny_run(
            data,
            NUM_STEPS,
            model=tiny_model() if self.model == "plain" else track_model(),
            parallel=ParallelConfig(**self.axes, context_layout=self.context_layout),
            # With a small epsilon AdamW amplifies rounding in gradients near 0.
            optimizer=AdamWConfig(learning_rate=3e-3, eps=1e-4),
            ema=EMAConfig(decay=0.9),
            evaluation=EvaluationConfig(data=replace(data, rows_per_step=4, seed=1), num_batches=2),
            microbatch_rows=self.microbatch_rows,
            activation_checkpointing=None if self.microbatch_rows is None else ActivationCheckpointingConfig(),
        )


COMBINATIONS: dict[int, list[Combination]] = {
    1: [Combination(model="plain"), Combination(model="tracks")],
    2: [
        Combination(model="plain", axes={"replicate": 2}),
        Combination(model="plain", axes={"shard": 2}, microbatch_rows=2),
        Combination(model="tracks", axes={"replicate": 2}, microbatch_rows=2),
        Combination(model="tracks", axes={"shard": 2}),
        Combination(model="tracks", axes={"expert": 2}, microbatch_rows=2),
        Combination(model="tracks", axes={"track": 2}),
        Combination(model="plain", axes={"context": 2}, microbatch_rows=1),
        Combination(model="tracks", axes={"context": 2}),
        Combination(model="plain", axes={"context": 2}, context_layout=BalancedLayout()),
        Combination(model="tracks", axes={"context": 2}, microbatch_rows=1, context_layout=BalancedLayout()),
    ],
    4: [
        Combination(model="plain", axes={"shard": 4}),
        Combination(model="plain", axes={"replicate": 2, "shard": 2}, microbatch_rows=1),
        Combination(model="plain", axes={"context": 4}),
        Combination(model="tracks", axes={"context": 4}, context_layout=BalancedLayout()),
        Combination(model="plain", axes={"context": 2, "shard": 2}, microbatch_rows=1),
        Combination(model="tracks", axes={"replicate": 2, "context": 2}, microbatch_rows=1),
        Combination(model="tracks", axes={"context": 2, "track": 2}),
        Combination(model="tracks", axes={"context": 2, "expert": 2}, microbatch_rows=2),
        Combination(model="tracks", axes={"track": 4}),
        Combination(model="tracks", axes={"expert": 4}),
        Combination(model="tracks", axes={"replicate": 2, "track": 2}),
        Combination(model="tracks", axes={"replicate": 2, "shard": 2}, microbatch_rows=1),
        Combination(model="tracks", axes={"shard": 2, "track": 2}, microbatch_rows=2),
        Combination(model="tracks", axes={"shard": 2, "expert": 2}),
        Combination(model="tracks", axes={"expert": 2, "track": 2}, microbatch_rows=2),
    ],
}


def train(config: TrainerConfig, processes: Processes) -> dict[str, Any]:
    """Losses, norms and counts of each step, the held-out losses in the middle, and the weights at the end."""
    parallelism = Parallelism(config.parallel, config.model, processes)
    state = fresh_state(config, "cpu", parallelism)
    trainer = Trainer(config, state, config.data.build(parallelism.data_rank, parallelism.data_world))
    assert config.evaluation is not None
    evaluator = Evaluator(config.evaluation, trainer.objective, parallelism)
    updates, held_out = [], {}
    for step in range(NUM_STEPS):
        updates.append(trainer.update(trainer.source.batch(step)))
        if step == NUM_STEPS // 2:
            held_out = evaluator.losses(state)
    held_out |= {f"{name} at the end": value for name, value in evaluator.losses(state).items()}
    whole = {name: whole_tensor(parallelism, name, tensor) for name, tensor in state.parameters.items()}
    return {
        "losses": [update.loss for update in updates],
        "norms": [update.gradient_norm for update in updates],
        "parts": [update.parts for update in updates],
        "flops": [update.flops for update in updates],
        "num_tokens": state.num_tokens,
        "expert_tokens": {layer: counts.tolist() for layer, counts in updates[0].expert_tokens.items()},
        "held_out": held_out,
        "weights": {name: [tensor.sum().item(), tensor.norm().item()] for name, tensor in whole.items()},
        "held": sum(tensor.numel() for tensor in state.parameters.values()) / sum(t.numel() for t in whole.values()),
    }


def whole_tensor(parallelism: Parallelism, name: str, tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if parallelism.world == 1:
        return tensor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two gathers instead of one
        return parallelism.global_view(name, tensor).full_tensor()


def train_all(combinations: Sequence[Combination], corpus: Path, results: Path, processes: Processes) -> None:
    """Train each combination and write `{name: losses and the rest}` from the first process."""
    found = {combination.name: train(combination.config(corpus), processes) for combination in combinations}
    if processes.is_main:
        results.write_text(json.dumps(found), encoding="utf-8")
