"""Observers of a run: they receive its events in order and may request a save or a stop. Imports no tensor library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from openafm.training.distributed.processes import Processes
    from openafm.training.snapshot import TrainingSnapshot

T = TypeVar("T")
Phase = Literal["data_wait", "evaluation", "checkpoint"]
"""What a run spends time on besides optimizer steps."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """One optimizer step. Every figure except `local_seconds` is summed over all processes.

    Attributes:
        step: the number of steps done, of `num_steps`.
        count: items in the loss (tokens, pairs); 0 for a step without targets, which changes no weight.
        loss: mean over the items, as are `parts`.
        gradient_norm: the norm before clipping.
        num_tokens: real tokens of this step, and `total_tokens` those of the run.
        total_seconds: time spent in the steps of the run.
        expert_tokens: tokens routed to each expert of each track, [T, E], by layer.
        local_seconds: time of this rank from the end of the step before to the first sum over all ranks.
    """

    step: int
    num_steps: int
    count: int
    loss: float
    parts: Mapping[str, float]
    gradient_norm: float
    learning_rate: float
    num_tokens: int
    total_tokens: int
    total_seconds: float
    flops: int
    expert_tokens: Mapping[int, Tensor]
    local_seconds: float = 0.0

    def is_due(self, every_steps: int) -> bool:
        """Return True every `every_steps` steps and at the last step."""
        return self.step % every_steps == 0 or self.step == self.num_steps


class Observer:
    """Receive the events of a run. Every hook does nothing by default; an exception ends the run.

    All ranks see the same events. A request by one rank counts for all: the trainer combines requests after every step.
    """

    def on_phase_start(self, phase: Phase) -> None:
        """The trainer starts to wait for data, to evaluate or to save."""

    def on_phase_end(self, phase: Phase) -> None:
        """The phase has ended."""

    def on_step(self, result: StepResult) -> None:
        """An optimizer step has ended."""

    def on_evaluation(self, step: int, losses: Mapping[str, float]) -> None:
        """The held-out losses after `step` steps."""

    def on_log(self, step: int, values: Mapping[str, float]) -> None:
        """The values of a line of the log, losses averaged since the line before. Rank 0 only."""

    def on_save(self, snapshot: TrainingSnapshot) -> None:
        """The state to save, a copy on the host."""

    @property
    def requests_stop(self) -> bool:
        """Return True to end the run after the current step."""
        return False

    @property
    def requests_save(self) -> bool:
        """Return True to save after the current step."""
        return False

    @property
    def has_failed(self) -> bool:
        """Return True if background work has failed on this rank; `raise_failure` is then called on all ranks."""
        return False

    def raise_failure(self) -> None:
        """Raise the error of failed background work."""


@dataclass(frozen=True)
class Requests:
    """The combined requests of all observers of all ranks. `is_broken` is True if a rank has no next batch."""

    stop: bool
    save: bool
    is_broken: bool = False


class Observers:
    """Pass the events of a run on to observers, in order."""

    def __init__(self, observers: Sequence[Observer], processes: Processes) -> None:
        self._observers, self._processes = tuple(observers), processes

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Announce the start and, unless the block raises, the end of a phase."""
        for observer in self._observers:
            observer.on_phase_start(phase)
        yield
        for observer in self._observers:
            observer.on_phase_end(phase)

    def on_step(self, result: StepResult) -> None:
        for observer in self._observers:
            observer.on_step(result)

    def on_evaluation(self, step: int, losses: Mapping[str, float]) -> None:
        for observer in self._observers:
            observer.on_evaluation(step, losses)

    def on_save(self, snapshot: TrainingSnapshot) -> None:
        for observer in self._observers:
            observer.on_save(snapshot)

    def requests(self, is_broken: bool = False) -> Requests:
        """Combine the requests of all ranks; raise if background work of any rank has failed."""
        stop, save, failed, broken = self._processes.any_rank(
            any(observer.requests_stop for observer in self._observers),
            any(observer.requests_save for observer in self._observers),
            any(observer.has_failed for observer in self._observers),
            is_broken,
        )
        if failed:
            for observer in self._observers:
                observer.raise_failure()
        return Requests(stop, save, broken)

    def raised_together(self, work: Callable[[], T]) -> T:
        """Run `work` on every rank; if it fails on one, all raise an error with its reason."""
        return self._processes.run_on_all(work)
