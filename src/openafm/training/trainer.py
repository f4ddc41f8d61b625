"""The trainer: steps, precision, accumulation, metrics. It knows nothing of what the model is trained for.

Shapes: B rows of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from openafm.core.errors import OpenAFMError
from openafm.core.progress import Progress
from openafm.data.loader import Batch, Loader, Origin, prefetch
from openafm.training.checkpoints.writer import CheckpointWriter
from openafm.training.config import TrainerConfig
from openafm.training.distributed.watchdog import Watchdog
from openafm.training.evaluation import Evaluator
from openafm.training.observability.goodput import Ledger
from openafm.training.observability.live import LiveView
from openafm.training.observability.metrics import MetricsLog
from openafm.training.signals import StopRequest
from openafm.training.state import TrainingState
from openafm.training.sums import Adder, Sums


class NonFiniteError(OpenAFMError):
    """A loss or a gradient that is not a finite number. The weights are as they were before the step."""

    shared = True

    def __init__(self, what: str, step: int, origins: tuple[Origin, ...]) -> None:
        shown = ", ".join(f"{o.source} shard {o.shard} [{o.start}:{o.stop}]" for o in origins[:4])
        rest = f" and {len(origins) - 4} more" if len(origins) > 4 else ""
        super().__init__(
            f"the {what} of step {step} is not finite; look at the documents of its batch ({shown}{rest}) "
            "or lower the learning rate"
        )
        self.step, self.origins = step, origins


@dataclass(frozen=True, kw_only=True)
class Update:
    """What one optimizer step did. `loss` and `parts` are means over the step's items; the norm is before clipping.

    A step without a single item to learn counts as a step and changes no weight; its loss and norm are 0. Everything is of
    all processes; `expert_tokens` are the tokens that each expert of each track got, [T, E], by layer.
    """

    loss: float
    parts: dict[str, float]
    gradient_norm: float
    learning_rate: float
    num_tokens: int
    flops: int
    expert_tokens: Mapping[int, Tensor]


class Trainer:
    """Carries a state forward, one batch of the loader at a time."""

    def __init__(self, config: TrainerConfig, state: TrainingState, loader: Loader) -> None:
        self.config, self.state, self.loader = config, state, loader
        self.objective = config.objective.build()
        if config.compile is not None:
            config.compile.apply(state.model)

    def run(
        self,
        stop: StopRequest,
        writer: CheckpointWriter,
        log: MetricsLog,
        evaluator: Evaluator | None,
        bar: Progress,
        ledger: Ledger,
        dog: Watchdog,
    ) -> None:
        """Train to the last step, or until asked to stop, and save the last state.

        The ledger learns where the time went, the watchdog that there is progress.

        Raises:
            NonFiniteError: a loss or gradient is not finite.
            OutOfSpaceError: a checkpoint does not fit on the disk.
        """
        shape, device = self.state.parallelism.shape, self.state.model.device.type
        view = LiveView(self.config.precision.compute_dtype, device, shape)
        saved_step, saved_s = self.state.step, perf_counter()
        agreed = self.state.parallelism.processes.any
        (stopping,) = agreed(stop.requested)
        with closing(prefetch(self.loader, self.state.step)) as batches:
            while self.state.step < self.state.num_steps and not stopping:
                with ledger.spending("data_wait"):
                    batch = next(batches)
                update = self.update(batch)
                ledger.step(self.state.step)
                dog.alive()
                view.add(update.num_tokens, update.flops, update.expert_tokens)
                bar.update(self.state.step, view.status(update.loss))
                if self._due(self.config.log_every):
                    experts = {"expert_tokens": view.expert_tokens}
                    log.write(self.state.step, self._scalars(update) | view.take(ledger.goodput), experts)
                if evaluator is not None and self._due(evaluator.every_steps):
                    dog.alive_before_long_work()
                    with ledger.spending("evaluation"):
                        losses = evaluator.losses(self.state)
                    dog.alive()
                    log.write(self.state.step, losses)
                    bar.note(f"step {self.state.step:,}: held-out loss {losses['held_out_loss']:.4f}")
                stopping, saving, failed = agreed(stop.requested, self._save_due(saved_s), writer.has_failed)
                if failed:
                    writer.wait()
                if saving:
                    with ledger.spending("checkpoint"):
                        writer.submit(self.state.snapshot())
                    saved_step, saved_s = self.state.step, perf_counter()
        if self.state.step != saved_step:
            with ledger.spending("checkpoint"):
                writer.submit(self.state.snapshot())

    def update(self, batch: Batch) -> Update:
        """One optimizer step on a batch: the update of the whole batch, however it is cut into microbatches.

        Raises:
            NonFiniteError: before anything is changed.
        """
        start_s = perf_counter()
        state = self.state
        state.begin_step()
        sums = self._accumulate_gradients(batch)
        norm = self._average_and_clip_gradients(sums.count)
        if not math.isfinite(norm):
            raise NonFiniteError("gradient", state.step, self._everywhere(batch.origins))
        factor = self.config.schedule.factor(state.step, state.num_steps)
        for optimizer in state.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor
            optimizer.step()
            optimizer.zero_grad()
        state.step += 1
        state.update_ema()
        state.num_tokens += sums.num_tokens
        state.seconds += perf_counter() - start_s
        means = sums.means
        return Update(
            loss=means.pop("loss"),
            parts=means,
            gradient_norm=norm,
            learning_rate=self.config.optimizer.learning_rate * factor,
            num_tokens=sums.num_tokens,
            flops=sums.flops,
            expert_tokens=sums.expert_tokens,
        )

    def _accumulate_gradients(self, batch: Batch) -> Sums:
        """Add up losses, and their gradients in the parameters, over the microbatches.

        Every process takes as many microbatches as the one with the most rows: they wait for each other in each.
        """
        adder, broken = Adder(), tuple[Origin, ...]()
        model, parallelism = self.state.model, self.state.parallelism
        most_rows = -(-self.loader.config.rows_per_step // self.loader.world)
        pieces = list(microbatches(batch, self.config.microbatch_rows, most_rows))
        for piece in pieces:
            losses = parallelism.losses(self.objective, model, piece)
            if losses.total.requires_grad:
                parallelism.before_backward(model, is_last=piece is pieces[-1])
                losses.total.backward()
            if not math.isfinite(adder.add(losses, piece.num_real_tokens)):
                broken = broken or piece.origins
        sums = adder.over_processes(parallelism)
        if not math.isfinite(sums.loss):
            raise NonFiniteError("loss", self.state.step, self._everywhere(broken))
        parallelism.collect_gradients()
        return sums

    def _average_and_clip_gradients(self, count: int) -> float:
        """Turn gradients of sums over `count` items into those of means, clipped; returns the norm before clipping."""
        gradients = {name: p.grad for name, p in self.state.parameters.items() if p.grad is not None}
        if count == 0 or not gradients:
            for optimizer in self.state.optimizers:
                optimizer.zero_grad()
            return 0.0
        norm = self.state.parallelism.total_norm(gradients) / count
        clip = self.config.optimizer.gradient_clip
        factor = 1.0 if clip is None or norm <= clip else clip / norm
        torch._foreach_mul_(list(gradients.values()), factor / count)
        return norm

    def _everywhere(self, origins: tuple[Origin, ...]) -> tuple[Origin, ...]:
        """Those of all processes, each once."""
        found = self.state.parallelism.processes.gathered(origins)
        return tuple(dict.fromkeys(origin for some in found for origin in some))

    def _scalars(self, update: Update) -> dict[str, float]:
        """The values of a line of the log; tokens and seconds are those of the whole run so far."""
        return {
            "loss": update.loss,
            **update.parts,
            "learning_rate": update.learning_rate,
            "gradient_norm": update.gradient_norm,
            "num_tokens": self.state.num_tokens,
            "seconds": self.state.seconds,
        }

    def _due(self, every_steps: int) -> bool:
        return self.state.step % every_steps == 0 or self.state.step == self.state.num_steps

    def _save_due(self, saved_s: float) -> bool:
        steps, seconds = self.config.checkpoint.every_steps, self.config.checkpoint.every_seconds
        by_steps = steps is not None and self.state.step % steps == 0
        return by_steps or (seconds is not None and perf_counter() - saved_s >= seconds)


def microbatches(batch: Batch, num_rows: int | None, most_rows: int = 0) -> Iterator[Batch]:
    """A batch cut into pieces of at most `num_rows` rows; None leaves it whole.

    As many pieces as a batch of `most_rows` would give; those beyond the batch are empty.
    """
    total = len(batch.tokens_BS)
    num_rows = num_rows or max(total, most_rows)
    if num_rows >= max(total, most_rows):
        yield batch
        return
    for first in range(0, max(total, most_rows), num_rows):
        rows = slice(first, first + num_rows)
        inside = [i for i, span in enumerate(batch.documents) if rows.start <= span.row < rows.stop]
        yield Batch(
            tokens_BS=batch.tokens_BS[rows],
            targets_BS=batch.targets_BS[rows],
            loss_mask_BS=batch.loss_mask_BS[rows],
            documents=tuple(batch.documents[i]._replace(row=batch.documents[i].row - first) for i in inside),
            origins=tuple(batch.origins[i] for i in inside),
        )
