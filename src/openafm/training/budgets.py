"""The length of a run: in steps, tokens, or time. Imports no tensor library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from openafm.core.config import Config
from openafm.data.loading.loader import LoaderConfig


@dataclass(frozen=True, kw_only=True)
class BudgetConfig(Config, ABC):
    """Base of the lengths of a run."""

    @abstractmethod
    def steps(self, data: LoaderConfig) -> int | None:
        """Return the number of steps on this data; None if the run measures it at its start."""


@dataclass(frozen=True, kw_only=True)
class StepBudget(BudgetConfig):
    """A run of `num_steps` optimizer steps."""

    num_steps: int

    def __post_init__(self) -> None:
        self.require(self.num_steps > 0, f"num_steps must be at least 1, got {self.num_steps}")

    def steps(self, data: LoaderConfig) -> int:
        return self.num_steps


@dataclass(frozen=True, kw_only=True)
class TokenBudget(BudgetConfig):
    """A run of at least `num_tokens` positions of rows, independent of the machine and its load."""

    num_tokens: int

    def __post_init__(self) -> None:
        self.require(self.num_tokens > 0, f"num_tokens must be at least 1, got {self.num_tokens}")

    def steps(self, data: LoaderConfig) -> int:
        return -(-self.num_tokens // (data.rows_per_step * data.row_tokens))


@dataclass(frozen=True, kw_only=True)
class TimeBudget(BudgetConfig):
    """As many steps as fit into `seconds` on this machine.

    The run measures `measured_steps` steps, undoes them, and stores the number of steps in its first checkpoint, so that the
    schedule has an end and a resumed run is the same run. `reserve` is the share of the time for checkpoints and evaluation.
    """

    seconds: float
    measured_steps: int = 8
    reserve: float = 0.1

    def __post_init__(self) -> None:
        self.require(self.seconds > 0, f"seconds must be above 0, got {self.seconds}")
        self.require(self.measured_steps > 0, f"measured_steps must be at least 1, got {self.measured_steps}")
        self.require(0 <= self.reserve < 1, f"reserve must lie in [0, 1), got {self.reserve}")

    def steps(self, data: LoaderConfig) -> None:
        return None


@dataclass(frozen=True, kw_only=True)
class DeadlineBudget(TimeBudget):
    """Steps until `seconds` after the start, at whatever speed they have: for a machine that is lent for some minutes.

    As `TimeBudget`, and the number of steps is estimated again before each step, so that the schedule follows the measured
    share of the time and the last step, with the last learning rate, ends before the reserve. Weights depend on the clock:
    two runs of one config differ. A run that resumes has what the steps before have left of `seconds`.
    """
