"""The objective on held-out data while a run goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from openafm.training.config import EvaluationConfig
from openafm.training.objectives import Objective
from openafm.training.state import TrainingState


class Evaluator:
    """Computes the losses on the same held-out batches each time, with the averaged weights where the run keeps them."""

    def __init__(self, config: EvaluationConfig, objective: Objective) -> None:
        self.every_steps = config.every_steps
        self._objective = objective
        loader = config.data.build()
        self._batches = [loader.batch(step) for step in range(config.num_batches)]

    @torch.no_grad()
    def losses(self, state: TrainingState) -> dict[str, float]:
        """Means over all items of the held-out batches, as `held_out_loss` and `held_out_<part>`."""
        sums: Counter[str] = Counter()
        count = 0
        with _averaged_weights(state):
            for batch in self._batches:
                losses = self._objective(state.model, batch)
                sums.update({"loss": losses.total.item()} | {name: part.item() for name, part in losses.parts.items()})
                count += losses.count
        return {f"held_out_{name}": value / max(count, 1) for name, value in sums.items()}


@contextmanager
def _averaged_weights(state: TrainingState) -> Iterator[None]:
    """Swap the average in while the block runs; storage is exchanged, nothing is copied."""
    if state.ema is None:
        yield
        return
    parameters = dict(state.model.named_parameters())
    trained = {name: parameters[name].data for name in state.ema}
    try:
        for name, average in state.ema.items():
            parameters[name].data = average
        yield
    finally:
        for name, tensor in trained.items():
            parameters[name].data = tensor
