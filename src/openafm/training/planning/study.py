"""A study of a whole run: its plan on several kinds of chips, its failures, days and cost. Imports no tensor library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from openafm.core.errors import UsageError
from openafm.models.config import DecoderConfig
from openafm.training.planning.chips import PlanError, named_chip
from openafm.training.planning.failures import Failures, SimulatedRun, simulate
from openafm.training.planning.plan import Plan, Workload
from openafm.training.planning.search import Axes, make_plan

STUDY_CHIPS = ("tpu-v5p", "h100", "h200", "b200", "mi300x")
HOUR, DAY = 3600.0, 86400.0
_PLOTTED = 25  # intervals, from a tenth to ten times the best
SIMULATED_RUNS = 16
_LEAST_SHARE = 0.01  # probability of a restart and an interval without a failure; below it, simulations hardly end


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What a study adds to a plan.

    Attributes:
        tokens: of the whole run.
        efficiency: speed of a real step relative to the plan's, which is at peak rates.
        mtbf_hours: hours of one chip between failures; None is the chip's own figure.
        restart_seconds: from a failure to the next step: noticing it, replacing the machine, reading the checkpoint.
        save_seconds: stall of a checkpoint; it is written while training continues.
        prices: of a chip-hour by name of the chip, in one currency.
    """

    tokens: float = 13.4e12
    efficiency: float = 0.5
    mtbf_hours: float | None = None
    restart_seconds: float = 600.0
    save_seconds: float = 5.0
    prices: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.efficiency <= 1:
            raise UsageError(f"the efficiency is a share above 0 and at most 1, got {self.efficiency}")
        amounts = (self.tokens, self.mtbf_hours, self.save_seconds, self.restart_seconds, *self.prices.values())
        if not all(amount is None or 0 < amount < math.inf for amount in amounts):
            raise UsageError("tokens, hours between failures, seconds and prices of a study must be above 0, and finite")
        for name in self.prices:
            named_chip(name)


@dataclass(frozen=True, kw_only=True)
class StudiedRun:
    """A run on one kind of chip: days without failures, and with them by formula and by simulation."""

    plan: Plan
    assumptions: Assumptions
    failures: Failures
    simulated: SimulatedRun

    @property
    def work(self) -> float:
        """Return the seconds in steps."""
        return self.simulated.work

    @property
    def step_seconds(self) -> float:
        return self.plan.step_seconds / self.assumptions.efficiency

    @property
    def expected_goodput(self) -> float:
        """Return the goodput of Daly's formula at the best interval."""
        return self.work / self.failures.expected_wall(self.work, self.failures.best_interval)

    @property
    def chip_hours(self) -> float:
        return self.simulated.wall / HOUR * self.plan.shape.world

    @property
    def cost(self) -> float | None:
        price = self.assumptions.prices.get(self.plan.chip.name)
        return None if price is None else price * self.chip_hours

    def to_dict(self) -> dict[str, Any]:
        return {
            "chip": self.plan.chip.name,
            "mesh": self.plan.shape.axes,
            "step_seconds": self.step_seconds,
            "model_flops_utilization": self.plan.model_flops_utilization * self.assumptions.efficiency,
            "days_without_failures": self.work / DAY,
            "hours_between_failures": self.failures.between / HOUR,
            "save_seconds": self.failures.save,
            "interval_seconds": self.failures.best_interval,
            "goodput_formula": self.expected_goodput,
            "goodput_simulated": self.simulated.goodput,
            "simulation": asdict(self.simulated),
            "days": self.simulated.wall / DAY,
            "chip_hours": self.chip_hours,
            "cost": self.cost,
        }

    def curve(self) -> list[tuple[float, float, float]]:
        """Return intervals, with the goodput of the formula and that of simulated runs."""
        best, found = self.failures.best_interval, []
        for index in range(_PLOTTED):
            interval = best * 10 ** (2 * index / (_PLOTTED - 1) - 1)
            simulated = simulate(self.failures, self.work, interval, SIMULATED_RUNS, self.assumptions.seed)
            found.append((interval, self.work / self.failures.expected_wall(self.work, interval), simulated.goodput))
        return found


@dataclass(frozen=True, kw_only=True)
class Impossible:
    """A kind of chip on which no layout of the run fits."""

    chip: str
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {"chip": self.chip, "reason": self.reason}


def study(
    model: DecoderConfig,
    *,
    num_devices: int,
    slices: int,
    workload: Workload,
    assumptions: Assumptions,
    chips: Sequence[str] = STUDY_CHIPS,
) -> list[StudiedRun | Impossible]:
    """Return the run on each kind of chip.

    Raises:
        UsageError: the devices, slices or rows are impossible on all kinds of chips.
    """
    found: list[StudiedRun | Impossible] = []
    for name in chips:
        chip = named_chip(name)
        try:
            plan = make_plan(model, num_devices=num_devices, chip=chip, workload=workload, axes=Axes(), slices=slices)
            found.append(studied_run(plan, assumptions))
        except PlanError as error:
            found.append(Impossible(chip=name, reason=str(error)))
    return found


def studied_run(plan: Plan, assumptions: Assumptions) -> StudiedRun:
    """Return the run of a plan with failures, with checkpoints at Daly's best interval.

    Raises:
        PlanError: failures follow each other so fast that the run hardly advances.
    """
    hours = assumptions.mtbf_hours or plan.chip.mtbf_hours
    between = hours * HOUR / plan.shape.world
    failures = Failures(between=between, save=assumptions.save_seconds, restart=assumptions.restart_seconds)
    needed = failures.restart + failures.best_interval + failures.save
    if math.exp(-needed / between) < _LEAST_SHARE:
        raise PlanError(
            f"the run fails every {between:.3g} s, and a restart with the steps to the next checkpoint takes {needed:.3g} s;"
            " use fewer devices, a shorter restart or devices that fail less often"
        )
    work = assumptions.tokens / plan.tokens_per_step * plan.step_seconds / assumptions.efficiency
    simulated = simulate(failures, work, failures.best_interval, SIMULATED_RUNS, assumptions.seed)
    return StudiedRun(plan=plan, assumptions=assumptions, failures=failures, simulated=simulated)
