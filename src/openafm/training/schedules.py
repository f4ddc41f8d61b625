"""Learning rate schedules over a run of known length, as factors of the configured rate. Imports no tensor library."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from openafm.core.config import Config


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Config, ABC):
    """Base of the schedules. Fractions relate to the run's number of steps, so the shape is the same at any length."""

    warmup_fraction: float = 0.02

    def __post_init__(self) -> None:
        self.require(0 <= self.warmup_fraction < 1, f"warmup_fraction must lie in [0, 1), got {self.warmup_fraction}")

    def factor(self, step: int, num_steps: int) -> float:
        """Return the factor of the learning rate at `step`, counted from 0. The warm-up is linear and never 0."""
        num_warmup = round(self.warmup_fraction * num_steps)
        if step < num_warmup:
            return (step + 1) / num_warmup
        return self._after_warmup((step - num_warmup + 1) / (num_steps - num_warmup))

    @abstractmethod
    def _after_warmup(self, done: float) -> float:
        """Return the factor at the fraction `done` in (0, 1] of the steps after the warm-up; 1 is the last step."""


@dataclass(frozen=True, kw_only=True)
class WarmupCosine(ScheduleConfig):
    """Half a cosine period from 1 down to `final` at the last step."""

    final: float = 0.1

    def _after_warmup(self, done: float) -> float:
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True, kw_only=True)
class WarmupStableDecay(ScheduleConfig):
    """Constant, then linear down to `final` over the last `decay_fraction` of the steps after the warm-up."""

    decay_fraction: float = 0.2
    final: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 < self.decay_fraction <= 1, f"decay_fraction must lie in (0, 1], got {self.decay_fraction}")

    def _after_warmup(self, done: float) -> float:
        left = min(1.0, (1 - done) / self.decay_fraction)
        return self.final + (1 - self.final) * left


@dataclass(frozen=True, kw_only=True)
class Constant(ScheduleConfig):
    """Constant after the warm-up."""

    def _after_warmup(self, done: float) -> float:
        return 1.0
