"""The objective on held-out data while a run goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from openafm.training.config import EvaluationConfig
from openafm.training.distributed.parallel import Parallelism
from openafm.training.loss_sums import LossAccumulator
from openafm.training.objectives.base import Objective
from openafm.training.state import TrainingState


class Evaluator:
    """Computes the losses on the same held-out batches each time, with the averaged weights where the run keeps them.

    Every process of the run takes rows of its own and gets the losses of all.
    """

    def __init__(self, config: EvaluationConfig, objective: Objective, parallelism: Parallelism) -> None:
        self.every_steps = config.every_steps
        self._objective = objective
        loader = config.data.build(parallelism.data_rank, parallelism.data_world)
        self._batches = [loader.batch(step) for step in range(config.num_batches)]

    @torch.no_grad()
    def losses(self, state: TrainingState) -> dict[str, float]:
        """Means over all items of the held-out batches, as `held_out_loss` and `held_out_<part>`."""
        adder = LossAccumulator()
        with _averaged_weights(state):
            for batch in self._batches:
                adder.add(state.parallelism.losses(self._objective, state.model, batch), batch.num_real_tokens)
        means = adder.over_processes(state.parallelism).means
        return {f"held_out_{name}": value for name, value in means.items()}


@contextmanager
def _averaged_weights(state: TrainingState) -> Iterator[None]:
    """Put the average in the weights' place while the block runs."""
    _exchange(state)
    try:
        yield
    finally:
        _exchange(state)


def _exchange(state: TrainingState) -> None:
    """Weights and average, one tensor after the other: no second copy of the model is made."""
    for name, average in (state.ema or {}).items():
        weight = state.parameters[name].detach()
        trained = weight.clone()
        weight.copy_(average)
        average.copy_(trained)
    state.parallelism.free_gathered(state.model)
