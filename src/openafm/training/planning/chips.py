"""Devices to plan for: what they hold, compute and send at most, as their makers state it or as it was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from openafm.core.config import nearest
from openafm.core.errors import UsageError

Precision: TypeAlias = Literal["float32", "bfloat16"]
NUMBER_BYTES: dict[Precision, int] = {"float32": 4, "bfloat16": 2}
GIB = 1 << 30


class UnknownChipError(UsageError):
    """No chip of this name, or none with a rate in this precision."""


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A device: memory in bytes, peak operations per second by precision, bytes per second that it sends at most.

    `inside` is its bandwidth within a slice, `across` between slices. A CPU attends in fp32 whatever the precision.
    `allocator_share` is what the allocator keeps, unused, as a share of the memory that comes and goes in a step.
    """

    name: str
    memory: int
    flops: Mapping[Precision, float]
    inside: float
    across: float
    attends_in_fp32: bool = False
    allocator_share: float = 0.0


CHIPS: dict[str, Chip] = {
    # As its maker states it: 459 TFLOP/s, 1,200 GB/s of links in both directions together, 50 Gbit/s out of the slice.
    "tpu-v5p": Chip(name="tpu-v5p", memory=95 * GIB, flops={"bfloat16": 459e12}, inside=600e9, across=6.25e9),
    # One core of the machine of docs/benchmarks.md, products of 1024 x 1024 matrices; processes exchange through memory.
    "cpu-core": Chip(
        name="cpu-core",
        memory=4 * GIB,
        flops={"float32": 82e9, "bfloat16": 207e9},
        inside=5e9,
        across=1.25e9,
        attends_in_fp32=True,
        # glibc's keeps what was freed in pieces too small for what comes next: the median over training steps of the nano
        # sizes (benchmarks/memory_plan.py), nothing where there is little and up to 0.37.
        allocator_share=0.2,
    ),
}


def named_chip(name: str) -> Chip:
    """
    Raises:
        UnknownChipError: no such chip.
    """
    if name not in CHIPS:
        raise UnknownChipError(f"unknown chip '{name}'{nearest(name, list(CHIPS))}; its rates can be given one by one")
    return CHIPS[name]
