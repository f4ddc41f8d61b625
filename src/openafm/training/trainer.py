"""The trainer: optimizer steps, precision, gradient accumulation. Independent of the objective.

Shapes: B rows of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter

import torch

from openafm.core.errors import OpenAFMError
from openafm.data.loading.batch import Batch, BatchSource, Origin
from openafm.training.config import TrainerConfig
from openafm.training.evaluation import Evaluator
from openafm.training.loss_sums import LossAccumulator, LossSums
from openafm.training.objectives.base import ScheduledObjective
from openafm.training.observers import Observer, Observers, StepResult
from openafm.training.pace import Pace
from openafm.training.state import TrainingState


class NonFiniteError(OpenAFMError):
    """A loss or a gradient is not finite. The weights are those before the step."""

    shared = True

    def __init__(self, what: str, step: int, origins: tuple[Origin, ...]) -> None:
        shown = ", ".join(f"{o.source} shard {o.shard} [{o.start}:{o.stop}]" for o in origins[:4])
        rest = f" and {len(origins) - 4} more" if len(origins) > 4 else ""
        super().__init__(
            f"the {what} of step {step} is not finite; check the documents of its batch ({shown}{rest}) "
            "or lower the learning rate"
        )
        self.step, self.origins = step, origins


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """The next batch of this rank, or the error of reading it."""

    batch: Batch | None = None
    failure: Exception | None = None

    def result(self) -> Batch:
        if self.batch is None:
            assert self.failure is not None
            raise self.failure
        return self.batch


class Trainer:
    """Advance a training state, one batch of the source at a time."""

    def __init__(self, config: TrainerConfig, state: TrainingState, source: BatchSource) -> None:
        self.config, self.state, self.source = config, state, source
        self.objective = config.objective.build()
        if config.compile is not None:
            config.compile.apply(state.model)
        self._data_wait_s = self._local_s = 0.0

    def run(self, observers: Sequence[Observer] = (), evaluator: Evaluator | None = None, pace: Pace | None = None) -> None:
        """Train to the last step or until an observer requests a stop; evaluate, also before the first step; save.

        With `pace` the last step is the one before a deadline.

        Raises:
            RemoteRankError: another rank cannot read its next batch; that rank raises the error of its data.
            NonFiniteError: a loss or gradient is not finite.
            OutOfSpaceError: a checkpoint does not fit on the disk.
        """
        state, events = self.state, Observers(observers, self.state.parallelism.processes)
        if evaluator is not None and state.step == 0:
            self._evaluate(evaluator, events)
        saved_step = state.step
        # Several ranks combine their requests after they have read: a rank that cannot read then ends all of them.
        # Answers of a policy, which take long and fail on all ranks, are not waited for before a checkpoint or a stop.
        reads_first = state.parallelism.world > 1 and not self.source.fails_together
        with closing(self.source.batches(state.step)) as batches:
            while True:
                if pace is not None:
                    pace.update(state)
                is_last = state.step >= state.num_steps
                reading = self._read(batches, events) if reads_first and not is_last else None
                requests = events.requests(reading is not None and reading.failure is not None)
                if requests.save and state.step != saved_step:
                    self._save(events)
                    saved_step = state.step
                if is_last or requests.stop:
                    break
                reading = reading or self._read(batches, events)
                batch = events.raised_together(reading.result) if requests.is_broken else reading.result()
                result = self.update(batch)
                events.on_step(result)
                if evaluator is not None and result.is_due(evaluator.every_steps):
                    self._evaluate(evaluator, events)
        if state.step != saved_step:
            self._save(events)

    def _read(self, batches: Iterator[Batch], events: Observers) -> _Reading:
        with events.phase("data_wait"):
            wait_start_s = perf_counter()
            try:
                reading = _Reading(batch=next(batches))
            except Exception as failure:
                reading = _Reading(failure=failure)
            self._data_wait_s = perf_counter() - wait_start_s
        return reading

    def _evaluate(self, evaluator: Evaluator, events: Observers) -> None:
        with events.phase("evaluation"):
            losses = evaluator.losses(self.state)
        events.on_evaluation(self.state.step, losses)

    def _save(self, events: Observers) -> None:
        with events.phase("checkpoint"):
            events.on_save(self.state.snapshot())

    def update(self, batch: Batch) -> StepResult:
        """Do one optimizer step on a batch. The update does not depend on the split into microbatches.

        Raises:
            NonFiniteError: a loss or gradient is not finite; nothing has changed.
        """
        start_s = perf_counter()
        state = self.state
        state.begin_step()
        if isinstance(self.objective, ScheduledObjective):
            self.objective.progress = state.step / state.num_steps
        sums = self._accumulate_gradients(batch, start_s)
        norm = self._average_and_clip_gradients(sums.count)
        if not math.isfinite(norm):
            raise NonFiniteError("gradient", state.step, self._gather_origins(batch.origins))
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
        return StepResult(
            step=state.step,
            num_steps=state.num_steps,
            count=sums.count,
            loss=means.pop("loss"),
            parts=means,
            gradient_norm=norm,
            learning_rate=self.config.optimizer.learning_rate * factor,
            num_tokens=sums.num_tokens,
            total_tokens=state.num_tokens,
            total_seconds=state.seconds,
            flops=sums.flops,
            expert_tokens=sums.expert_tokens,
            local_seconds=self._data_wait_s + self._local_s,
        )

    def _accumulate_gradients(self, batch: Batch, start_s: float) -> LossSums:
        """Sum losses and gradients over the microbatches.

        Every process runs as many microbatches as the one with the most rows, because collectives must match.
        """
        accumulator = LossAccumulator()
        model, parallelism = self.state.model, self.state.parallelism
        microbatches = [
            parallelism.part_of_rows(rows) for rows in batch.microbatches(self.config.microbatch_rows, self.source.max_rows)
        ]
        for index, microbatch in enumerate(microbatches):
            losses = parallelism.losses(self.objective, model, microbatch)
            if losses.total.requires_grad:
                parallelism.before_backward(model, is_last=index == len(microbatches) - 1)
                losses.total.backward()
            accumulator.add(losses, microbatch.num_real_tokens)
        local = accumulator.read()
        self._local_s = perf_counter() - start_s
        sums = local.over_processes(parallelism)
        if not math.isfinite(sums.loss):
            finite = map(math.isfinite, local.losses)
            broken = next((part.origins for part, ok in zip(microbatches, finite, strict=True) if not ok), ())
            raise NonFiniteError("loss", self.state.step, self._gather_origins(broken))
        parallelism.reduce_gradients()
        return sums

    def _average_and_clip_gradients(self, count: int) -> float:
        """Divide gradients of sums by `count` items and clip them; return the norm before clipping."""
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

    def _gather_origins(self, origins: tuple[Origin, ...]) -> tuple[Origin, ...]:
        """Return the distinct origins of all processes."""
        gathered = self.state.parallelism.processes.all_gather(origins)
        return tuple(dict.fromkeys(origin for some in gathered for origin in some))
