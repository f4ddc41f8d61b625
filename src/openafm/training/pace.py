"""The number of steps of a run that ends at a deadline."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from openafm.training.budgets import DeadlineBudget
from openafm.training.state import TrainingState


class Pace:
    """Estimate the last step of a run before each of its steps, equal on all ranks.

    `start_s` is the time at which the run started; `state` has the seconds of the steps that earlier processes did. The last
    step is announced before it starts, so that it has the last learning rate: a late one uses the reserve of the budget.
    """

    def __init__(
        self, budget: DeadlineBudget, state: TrainingState, start_s: float, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._end_s = start_s + budget.seconds * (1 - budget.reserve) - state.seconds
        self._clock = clock
        self._first: tuple[int, float] | None = None  # step and time from which the time of a step is measured

    def update(self, state: TrainingState) -> None:
        """Set `num_steps` of a state whose next step is about to start."""
        now_s = self._clock()
        if self._first is None:
            self._first = state.step + 1, now_s  # without the first step, which may compile
        first_step, first_s = self._first
        if state.step == first_step:
            self._first = first_step, now_s
        if state.step <= first_step or state.step >= state.num_steps:
            return  # nothing is measured, or the last step is done
        step_seconds = (now_s - first_s) / (state.step - first_step)  # pauses for evaluation and checkpoints included
        num_steps = state.step + max(1, int((self._end_s - now_s) / step_seconds))
        state.num_steps = state.parallelism.processes.run_on_main(lambda: num_steps)  # clocks differ between processes
