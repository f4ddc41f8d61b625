"""Devices to plan for: memory, peak operations and bandwidths, as their makers state them or as measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from openafm.core.config import nearest
from openafm.core.errors import UsageError

Precision: TypeAlias = Literal["float32", "bfloat16"]
NUMBER_BYTES: dict[Precision, int] = {"float32": 4, "bfloat16": 2}
GIB = 1 << 30
GB = 10**9


class PlanError(UsageError):
    """No plan is possible: an unknown chip or rate, or too little memory on a device; the message names what would fit."""


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A device.

    Attributes:
        memory: in bytes.
        flops: peak operations per second by precision, without sparsity.
        inside, across: bytes per second that it sends at most within a slice (one NVLink or Infinity Fabric domain, one TPU
            slice), and between slices.
        attends_in_fp32: attention computes in fp32 in every precision, as on a CPU.
        allocator_share: freed memory that the allocator keeps, relative to the memory that a step allocates and frees.
        card: the name that the driver reports, if these are the rates of that very card.
        domain: devices that are connected at the rate `inside`; None for all of a slice.
        mtbf_hours: hours of one device between failures that interrupt a run.
    """

    name: str
    memory: int
    flops: Mapping[Precision, float]
    inside: float
    across: float
    attends_in_fp32: bool = False
    allocator_share: float = 0.0
    card: str | None = None
    domain: int | None = None
    mtbf_hours: float = 16_384 * 54 * 24 / 419  # 419 interruptions of 16,384 H100 in 54 days (arXiv 2407.21783)


_ONE_NIC = 50e9  # a network card of 400 Gbit/s for each GPU, as in the makers' reference servers of eight
_CHIPS = (
    # 459 TFLOP/s, 1,200 GB/s of links in both directions together, 50 Gbit/s out of the slice.
    Chip(name="tpu-v5p", memory=95 * GIB, flops={"bfloat16": 459e12}, inside=600e9, across=6.25e9),
    # SXM modules; NVLink 4 has 900 GB/s in both directions together. The decimal GB leave about 5 GiB for CUDA itself.
    Chip(
        name="h100",
        memory=80 * GB,
        flops={"float32": 66.9e12, "bfloat16": 989.4e12},
        inside=450e9,
        across=_ONE_NIC,
        card="NVIDIA H100 80GB HBM3",
        domain=8,
    ),
    Chip(
        name="h200",
        memory=141 * GB,
        flops={"float32": 66.9e12, "bfloat16": 989.4e12},
        inside=450e9,
        across=_ONE_NIC,
        card="NVIDIA H200",
        domain=8,
    ),
    # HGX at 1,000 W; NVLink 5 has 1,800 GB/s in both directions together.
    Chip(
        name="b200",
        memory=180 * GB,
        flops={"float32": 80e12, "bfloat16": 2250e12},
        inside=900e9,
        across=_ONE_NIC,
        card="NVIDIA B200",
        domain=8,
    ),
    # Seven links of 128 GB/s in both directions together.
    Chip(
        name="mi300x",
        memory=192 * GB,
        flops={"float32": 163.4e12, "bfloat16": 1307.4e12},
        inside=448e9,
        across=_ONE_NIC,
        card="AMD Instinct MI300X",
        domain=8,
    ),
    # One core of the machine of docs/benchmarks.md, measured on products of 1024 x 1024 matrices; processes exchange through
    # memory. glibc keeps freed blocks that do not fit the next allocations: the median over training steps of the nano sizes
    # is 0.2 (benchmarks/memory_plan.py), at most 0.37.
    Chip(
        name="cpu-core",
        memory=4 * GIB,
        flops={"float32": 82e9, "bfloat16": 207e9},
        inside=5e9,
        across=1.25e9,
        attends_in_fp32=True,
        allocator_share=0.2,
    ),
)
CHIPS: dict[str, Chip] = {chip.name: chip for chip in _CHIPS}


def named_chip(name: str) -> Chip:
    """Return the chip of this name.

    Raises:
        PlanError: there is none.
    """
    if name not in CHIPS:
        raise PlanError(f"unknown chip '{name}'{nearest(name, list(CHIPS))}; or set its memory and rates one by one")
    return CHIPS[name]


def chip_of_card(card: str) -> Chip | None:
    """Return the chip of the card with this name of the driver; None for an unknown card."""
    return next((chip for chip in _CHIPS if chip.card == card), None)
