"""The memory check before a run on a card: the planned peak of a step, and the smallest change with which it fits.

It plans the training of whole weights on the next token. Memory of libraries, of images and of teachers is not included, so
that a run that passes may still run out of memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from openafm.core.config import ConfigError, override
from openafm.core.errors import UsageError
from openafm.training.config import TrainerConfig
from openafm.training.distributed.config import MeshError
from openafm.training.objectives.config import NextTokenConfig
from openafm.training.planning.chips import GIB, Chip, Precision
from openafm.training.planning.plan import Plan, Workload

MAX_FACTOR = 64
"""How many times more processes a suggestion may need."""
_KEEP_ATTENTION = {"activation_checkpointing": json.dumps({"keep_attention": True})}
_RECOMPUTE_ALL = {"activation_checkpointing": "{}"}


class DeviceMemoryError(UsageError):
    """The planned peak of a step is above the free memory of the device."""


def check_memory(config: TrainerConfig, processes: int, free: int) -> None:
    """Check that a step of the run fits into `free` bytes of each device, if its memory can be planned.

    Raises:
        DeviceMemoryError: it does not; the message names the smallest change that fits.
    """
    if config.adapter is not None or not isinstance(config.objective, NextTokenConfig):
        return
    plan = planned_run(config, processes, free)
    if plan.fits:
        return
    memory = plan.memory
    raise DeviceMemoryError(
        f"a step needs {_gib(memory.peak)} on each device (weights, gradients and optimizer {_gib(_held(plan))}, activations"
        f" {_gib(memory.activations)}), and {_gib(free)} are free; {_remedy(config, processes, free)}, or start anyway with"
        " --set trainer.device.check_memory=false"
    )


def planned_run(config: TrainerConfig, processes: int, memory: int) -> Plan:
    """Return the plan of a run on devices with `memory` bytes each, with rates of 1."""
    shape = config.parallel.shape(processes)
    config.parallel.check_model(config.model)
    rows = -(-config.data.rows_per_step // shape.data_world)
    precision: Precision = "float32" if config.precision.compute_dtype("cuda").itemsize == 4 else "bfloat16"
    chip = Chip(name="device", memory=memory, flops={precision: 1.0}, inside=1.0, across=1.0)
    workload = Workload(
        rows_per_step=rows * shape.data_world,
        row_tokens=config.data.row_tokens,
        precision=precision,
        optimizer=config.optimizer,
        ema=config.ema,
        activation_checkpointing=config.activation_checkpointing,
    )
    return Plan(
        model=config.model,
        chip=chip,
        shape=shape,
        workload=workload,
        rows_per_step=rows * shape.data_world,
        microbatch_rows=min(config.microbatch_rows or rows, rows),
    )


def smallest_change(config: TrainerConfig, processes: int, free: int) -> tuple[dict[str, str], int] | None:
    """Return the first change of the config, and the number of processes, with which a step fits; None if none does."""
    for changes, number in _changes(config, processes):
        try:
            plan = planned_run(override(config, changes), number, free)
        except (ConfigError, MeshError):  # Muon needs whole weights, rows do not divide, ...
            continue
        if plan.fits:
            return changes, number
    return None


def _changes(config: TrainerConfig, processes: int) -> Iterator[tuple[dict[str, str], int]]:
    """Yield changes from the cheapest: fewer rows at once, recomputation, more shards, divided rows, more processes."""
    shape = config.parallel.shape(processes)
    rows = min(config.microbatch_rows or config.data.rows_per_step, -(-config.data.rows_per_step // shape.data_world))
    fewer: list[dict[str, str]] = [{}]
    while rows > 1:
        rows //= 2
        fewer.append({"microbatch_rows": str(rows)})
    for recomputed in ({}, _KEEP_ATTENTION, _RECOMPUTE_ALL):
        yield from ((recomputed | of_rows, processes) for of_rows in fewer)
    least = _RECOMPUTE_ALL | fewer[-1]
    within = processes // shape.slices // (shape.context * shape.shard * shape.expert * shape.track)
    free_axes: Mapping[str, str] = {} if config.parallel.replicate is None else {"parallel.replicate": "null"}
    for axis, size in (("shard", shape.shard), ("context", shape.context)):
        for factor in range(2, within + 1):
            if within % factor == 0:
                yield {**least, **free_axes, f"parallel.{axis}": str(factor * size)}, processes
    factor = 2
    while factor <= MAX_FACTOR:
        yield {**least, **free_axes, "parallel.shard": str(factor * within * shape.shard)}, factor * processes
        factor *= 2
    factor = 2
    while factor <= MAX_FACTOR:
        yield {**least, **free_axes, "parallel.context": str(factor * within * shape.context)}, factor * processes
        factor *= 2


def _remedy(config: TrainerConfig, processes: int, free: int) -> str:
    """Return a clause with the options to add."""
    found = smallest_change(config, processes, free)
    if found is None:
        return "no recomputation and no division fits it; train a smaller size, shorter rows, or on larger devices"
    changes, number = found
    options = " ".join(_option(key, value) for key, value in changes.items())
    return f"use {options}" + (f" on {number} processes" if number != processes else "")


def _option(key: str, value: str) -> str:
    setting = f"trainer.{key}={value}"
    return f"--set '{setting}'" if "{" in value else f"--set {setting}"


def _held(plan: Plan) -> int:
    memory = plan.memory
    return memory.parameters + memory.gradients + memory.optimizer + memory.average


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f} GiB"
