"""Evaluation of the objective on held-out data during a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from openafm.data.loading.batch import Batch
from openafm.training.config import EvaluationConfig
from openafm.training.distributed.parallel import Parallelism
from openafm.training.distributed.processes import machine_share
from openafm.training.loss_sums import LossAccumulator, LossSums
from openafm.training.objectives.base import Objective
from openafm.training.state import TrainingState


class Evaluator:
    """Compute the losses on the same held-out batches each time, with the averaged weights if the run keeps them.

    Every process reads its own rows and gets the losses of all.
    """

    def __init__(self, config: EvaluationConfig, objective: Objective, parallelism: Parallelism) -> None:
        self.every_steps = config.every_steps
        self._objective = objective
        rank, world = parallelism.data_rank, parallelism.data_world
        parallelism.processes.run_on_all(lambda: config.data.prepare(*machine_share()))
        loader = parallelism.processes.run_on_all(lambda: config.data.build(rank, world, verification="first_use"))
        batches = parallelism.processes.run_on_all(lambda: [loader.batch(step) for step in range(config.num_batches)])
        self._by_source = {
            source.name: [parallelism.part_of_rows(_rows_of(batch, source.name)) for batch in batches]
            for source in loader.sources
        }

    @torch.no_grad()
    def losses(self, state: TrainingState) -> dict[str, float]:
        """Return means over all items as `held_out_loss` and `held_out_<part>`; with several sources also those of each.

        A source is named as in `held_out_loss/chat` or, with languages, `held_out_loss/chat/de`.
        """
        with averaged_weights(state):
            sums = {name: self._sums(state, batches) for name, batches in self._by_source.items()}
        total = LossSums.total(sums.values())
        means = {f"held_out_{key}": value for key, value in total.means.items()}
        if len(sums) > 1:
            means |= {f"held_out_loss/{name}": one.means["loss"] for name, one in sums.items() if one.count}
        return means

    def _sums(self, state: TrainingState, batches: list[Batch]) -> LossSums:
        accumulator = LossAccumulator()
        for batch in batches:
            accumulator.add(state.parallelism.losses(self._objective, state.model, batch), batch.num_real_tokens)
        return accumulator.read().over_processes(state.parallelism)


def _rows_of(batch: Batch, source: str) -> Batch:
    """Return the rows of one source; a row holds documents of one source only."""
    rows = {document.row for document, origin in zip(batch.documents, batch.origins, strict=True) if origin.source == source}
    return batch.select(np.array(sorted(rows), dtype=np.int64))


@contextmanager
def averaged_weights(state: TrainingState) -> Iterator[None]:
    """Use the averaged weights in the model while the block runs, if the run keeps them."""
    _exchange(state)
    try:
        yield
    finally:
        _exchange(state)


def _exchange(state: TrainingState) -> None:
    """Swap weights and average tensor by tensor, without a second copy of the model."""
    for name, average in (state.ema or {}).items():
        weight = state.parameters[name].detach()
        trained = weight.clone()
        weight.copy_(average)
        average.copy_(trained)
    state.parallelism.free_gathered(state.model)
