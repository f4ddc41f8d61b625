"""Time of a run whose devices fail: Daly's formula and a simulation of the same run. Imports no tensor library.

J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, 2006. Times between failures are
exponential, also during a restart; a failure costs the work since the last checkpoint. All times are in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Failures:
    """What interrupts a run.

    Attributes:
        between: mean seconds between failures of the whole run.
        save: seconds that a checkpoint stalls training.
        restart: seconds from a failure to the next step.
    """

    between: float
    save: float
    restart: float

    @property
    def best_interval(self) -> float:
        """Return Daly's estimate of the best time in steps between two checkpoints."""
        if self.save >= 2 * self.between:
            return self.between
        ratio = self.save / (2 * self.between)
        return math.sqrt(2 * self.save * self.between) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - self.save

    def expected_wall(self, work: float, interval: float) -> float:
        """Return the expected wall time of `work` seconds in steps, with a checkpoint after every `interval` of them."""
        between = self.between
        return between * math.exp(self.restart / between) * math.expm1((interval + self.save) / between) * work / interval


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    """The mean wall time of simulated runs and its parts: `work` in steps that count, checkpoints, restarts, lost steps."""

    work: float
    saving: float
    restarting: float
    lost: float
    num_failures: float

    @property
    def wall(self) -> float:
        return self.work + self.saving + self.restarting + self.lost

    @property
    def goodput(self) -> float:
        return self.work / self.wall


def simulate(failures: Failures, work: float, interval: float, num_runs: int, seed: int = 0) -> SimulatedRun:
    """Return the mean of `num_runs` runs of `work` seconds in steps, each from one failure to the next."""
    random = np.random.default_rng(seed)
    totals = np.sum([_one_run(failures, work, interval, random) for _ in range(num_runs)], axis=0) / num_runs
    saving, restarting, lost, number = totals.tolist()
    return SimulatedRun(work=work, saving=saving, restarting=restarting, lost=lost, num_failures=number)


def _one_run(
    failures: Failures, work: float, interval: float, random: np.random.Generator
) -> tuple[float, float, float, float]:
    """Return the seconds of checkpoints, of restarts and of lost steps, and the number of failures."""
    left, saving, restarting, lost, number = work, 0.0, 0.0, 0.0, 0.0
    period = interval + failures.save
    while True:
        time = random.exponential(failures.between)
        saves_left = math.ceil(left / interval) - 1  # none after the last step
        if time >= left + saves_left * failures.save:
            return saving + saves_left * failures.save, restarting, lost, number
        number += 1
        done = min(int(time / period), saves_left)
        left -= done * interval
        saving += done * failures.save
        lost += time - done * period
        while (time := random.exponential(failures.between)) < failures.restart:
            number += 1
            restarting += time
        restarting += failures.restart
