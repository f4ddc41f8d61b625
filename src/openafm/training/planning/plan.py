"""What a run would need and take on many devices, before there are any: layout, memory, time. Imports no tensor library.

Memory comes from `footprint`, operations from `models/accounting.py`, and time from peak rates: no measured efficiency is
in it, so a real step takes longer. Experts are taken to be evenly loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from math import gcd, isqrt
from typing import Any

from openafm.core.errors import UsageError
from openafm.models.accounting import flops_per_token, training_flops
from openafm.models.activations import Microbatch
from openafm.models.config import DecoderConfig
from openafm.models.experts_config import ExpertsConfig
from openafm.training.config import AdamWConfig, EMAConfig, OptimizerConfig
from openafm.training.distributed.config import MeshError, MeshShape, ParallelConfig
from openafm.training.planning.chips import GIB, NUMBER_BYTES, Chip, Precision, UnknownChipError
from openafm.training.planning.collectives import Collective, collectives
from openafm.training.planning.device_memory import Memory, device_memory
from openafm.training.planning.footprint import DecoderFootprint, DeviceShare, decoder_footprint, decoder_weights

MOST_DEVICES = 1 << 20  # that are looked at for a layout that fits


class DoesNotFitError(UsageError):
    """A device has less memory than the run needs; the message says how much less, and which layout would fit."""


class RowsNotDivisibleError(UsageError):
    """Rows of a step that the data ranks cannot share evenly."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is computed in a step: rows over all devices, tokens of a row and of the documents that fill it.

    `rows_per_step` None is one row for every group of devices that holds all tracks; `microbatch_rows`, of one device,
    None is as many as fit. `recompute` keeps the inputs of layers only and computes the rest again.
    """

    rows_per_step: int | None = None
    row_tokens: int = 4096
    document_tokens: int | None = None
    microbatch_rows: int | None = None
    precision: Precision = "bfloat16"
    optimizer: OptimizerConfig = field(default_factory=AdamWConfig)
    ema: EMAConfig | None = None
    recompute: bool = False

    def __post_init__(self) -> None:
        for name in ("rows_per_step", "row_tokens", "document_tokens", "microbatch_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}")

    def rows(self, model: DecoderConfig, num_devices: int) -> int:
        return self.rows_per_step or max(1, num_devices // model.num_tracks)

    def microbatch(self, num_rows: int, chip: Chip) -> Microbatch:
        number_bytes = NUMBER_BYTES[self.precision]
        return Microbatch(
            num_rows=num_rows,
            row_tokens=self.row_tokens,
            document_tokens=min(self.document_tokens or self.row_tokens, self.row_tokens),
            number_bytes=number_bytes,
            attention_bytes=4 if chip.attends_in_fp32 else number_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Sizes of the mesh's axes that are settled; None is to be chosen."""

    shard: int | None = None
    expert: int | None = None
    track: int | None = None

    @property
    def are_open(self) -> bool:
        return None in (self.shard, self.expert, self.track)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One layout of a run: what each device holds and how long a step takes at peak rates.

    Attributes:
        microbatch_rows: rows that a device computes at once, `num_microbatches` times in a step.
        why: how the layout was chosen.
    """

    model: DecoderConfig
    chip: Chip
    shape: MeshShape
    workload: Workload
    rows_per_step: int
    microbatch_rows: int
    why: str = "as asked for"

    @property
    def rows_per_device(self) -> int:
        return self.rows_per_step // self.shape.data_world

    @property
    def num_microbatches(self) -> int:
        return -(-self.rows_per_device // self.microbatch_rows)

    @property
    def tokens_per_step(self) -> int:
        return self.rows_per_step * self.workload.row_tokens

    @cached_property
    def footprint(self) -> DecoderFootprint:
        part = DeviceShare(
            tracks=self.model.num_tracks // self.shape.track,
            expert_ranks=self.shape.expert,
            has_tracks=self.model.tracks is not None,
        )
        return decoder_footprint(self.model, part, self.workload.microbatch(self.microbatch_rows, self.chip))

    @cached_property
    def memory(self) -> Memory:
        """Of one device, in bytes."""
        return device_memory(
            self.model,
            self.footprint,
            self.shape,
            optimizer=self.workload.optimizer,
            has_average=self.workload.ema is not None,
            has_several_microbatches=self.num_microbatches > 1,
            recompute=self.workload.recompute,
            allocator_share=self.chip.allocator_share,
        )

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        return collectives(
            self.model,
            self.footprint,
            self.shape,
            microbatch_tokens=self.microbatch_rows * self.workload.row_tokens,
            num_microbatches=self.num_microbatches,
            number_bytes=NUMBER_BYTES[self.workload.precision],
        )

    @property
    def flops_per_token(self) -> float:
        """Forward, of a token that sees half of its document."""
        return flops_per_token(self.model, (self.workload.document_tokens or self.workload.row_tokens) / 2)

    @cached_property
    def flops_of_a_row(self) -> tuple[int, int]:
        """Forward and backward: of the layers, and of the head."""
        return _flops_of_a_row(self.model, self.workload.microbatch(1, self.chip))

    @property
    def flops_per_step(self) -> int:
        """What the model asks for, over all devices; what is computed again does not count."""
        return self.rows_per_step * sum(self.flops_of_a_row)

    @property
    def compute_seconds(self) -> float:
        """Of one device, which has its tracks' layers, and the head of all its rows."""
        layers, head = self.flops_of_a_row
        again = 4 / 3 if self.workload.recompute else 1.0
        return self.rows_per_device * (again * layers / self.shape.track + head) / self.peak_flops

    @property
    def peak_flops(self) -> float:
        return self.chip.flops[self.workload.precision]

    def seconds(self, collective: Collective) -> float:
        return collective.inside / self.chip.inside + collective.across / self.chip.across

    @cached_property
    def step_seconds(self) -> float:
        """At peak rates, when weights and gradients travel while the device computes; states and rows are waited for."""
        hidden: dict[str, float] = {}
        waited = 0.0
        for collective in self.collectives:
            if collective.overlaps:
                hidden[collective.axis] = hidden.get(collective.axis, 0.0) + self.seconds(collective)
            else:
                waited += self.seconds(collective)
        return max(self.compute_seconds, *hidden.values(), 0.0) + waited

    @cached_property
    def serial_seconds(self) -> float:
        """At peak rates, when nothing overlaps."""
        return self.compute_seconds + sum(map(self.seconds, self.collectives))

    @property
    def model_flops_utilization(self) -> float:
        """What `step_seconds` implies, from 0 to 1."""
        return self.flops_per_step / (self.step_seconds * self.shape.world * self.peak_flops)

    @property
    def fits(self) -> bool:
        return self.memory.peak <= self.chip.memory

    def to_dict(self) -> dict[str, Any]:
        """All of it for JSON, in bytes, seconds and numbers."""
        weights = decoder_weights(self.model)
        idle = self.model.num_tracks * sum(layer.feed_forward.idle_parameters(self.model.dim) for layer in self.model.layers)
        return {
            "parameters": weights.total,
            "active_parameters": weights.total - idle,
            "chip": asdict(self.chip),
            "devices": self.shape.world,
            "slices": self.shape.slices,
            "mesh": self.shape.axes,
            "why": self.why,
            "rows_per_step": self.rows_per_step,
            "row_tokens": self.workload.row_tokens,
            "tokens_per_step": self.tokens_per_step,
            "rows_per_device": self.rows_per_device,
            "microbatch_rows": self.microbatch_rows,
            "microbatches": self.num_microbatches,
            "precision": self.workload.precision,
            "recompute": self.workload.recompute,
            "memory_per_device": self.memory.to_dict(),
            "fits": self.fits,
            "flops_per_token": self.flops_per_token,
            "training_flops_per_token": self.flops_per_step / self.tokens_per_step,
            "flops_per_step": self.flops_per_step,
            "collectives": [asdict(c) | {"seconds": self.seconds(c)} for c in self.collectives],
            "compute_seconds": self.compute_seconds,
            "step_seconds": self.step_seconds,
            "step_seconds_without_overlap": self.serial_seconds,
            "model_flops_utilization": self.model_flops_utilization,
            "tokens_per_second": self.tokens_per_step / self.step_seconds,
        }


@lru_cache
def _flops_of_a_row(model: DecoderConfig, row: Microbatch) -> tuple[int, int]:
    head = 3 * 2 * row.num_tokens * model.vocab_size * model.dim
    return training_flops(model, row.documents, row.num_tokens) - head, head


def make_plan(
    model: DecoderConfig, *, num_devices: int, chip: Chip, workload: Workload, axes: Axes, slices: int = 1
) -> Plan:
    """The plan of a layout, or of the best one where axes are left open: that whose step takes least with no overlap.

    Raises:
        DoesNotFitError: it needs more memory than a device has.
        MeshError: the axes do not fill the devices, do not divide the model, or one other than `replicate` crosses slices.
        RowsNotDivisibleError: the data ranks cannot share the rows of a step.
        UnknownChipError: the chip has no rate for the precision.
    """
    if workload.precision not in chip.flops:
        raise UnknownChipError(f"{chip.name} has no stated rate in {workload.precision}; give it with --peak-flops")
    if workload.row_tokens > model.context_length:
        raise UsageError(f"rows of {workload.row_tokens} tokens do not fit the model's context of {model.context_length}")
    if num_devices < 1 or slices < 1:
        raise MeshError(f"devices and slices must be at least 1, got {num_devices} and {slices}")
    if not axes.are_open:
        shape = _shape(model, num_devices, slices, axes)
        plan = _largest_microbatch(_laid_out(model, chip, shape, workload))
        if not plan.fits:
            raise DoesNotFitError(_too_much(plan) + _what_would(model, num_devices, chip, workload, slices))
        return plan
    layouts = list(_layouts(model, num_devices, chip, workload, axes, slices))
    if not layouts:
        raise _nothing_possible(model, num_devices, workload, axes, slices)
    fitting = [plan for plan in layouts if plan.fits]
    if not fitting:
        least = min(layouts, key=lambda plan: plan.memory.peak)
        raise DoesNotFitError(_too_much(least) + _what_would(model, num_devices, chip, workload, slices))
    best = min(fitting, key=lambda plan: (plan.serial_seconds, _inner(plan.shape)))
    return replace(best, why=_why(best, fitting, len(layouts)))


def _shape(model: DecoderConfig, num_devices: int, slices: int, axes: Axes) -> MeshShape:
    config = ParallelConfig(**{name: size for name, size in asdict(axes).items() if size is not None}, slices=slices)
    config.check_model(model)
    return config.shape(num_devices)


def _laid_out(model: DecoderConfig, chip: Chip, shape: MeshShape, workload: Workload) -> Plan:
    rows = workload.rows(model, shape.world)
    if rows % shape.data_world:
        raise RowsNotDivisibleError(
            f"{rows:,} rows of a step do not divide over {shape.data_world:,} data ranks (replicate {shape.replicate} x"
            f" shard {shape.shard} x expert {shape.expert}); make --rows-per-step a multiple of {shape.data_world:,}"
        )
    microbatch_rows = min(workload.microbatch_rows or rows, rows // shape.data_world)
    return Plan(model=model, chip=chip, shape=shape, workload=workload, rows_per_step=rows, microbatch_rows=microbatch_rows)


def _largest_microbatch(plan: Plan) -> Plan:
    """With as many rows at once as fit, one if none do, unless that is settled."""
    if plan.workload.microbatch_rows is not None or plan.fits:
        return plan
    smallest = replace(plan, microbatch_rows=1)
    while smallest.fits and not plan.fits:
        plan = replace(plan, microbatch_rows=plan.microbatch_rows // 2)
    return plan if smallest.fits else smallest


def _layouts(
    model: DecoderConfig, num_devices: int, chip: Chip, workload: Workload, axes: Axes, slices: int
) -> Iterator[Plan]:
    """All layouts that are possible, whether they fit or not."""
    if num_devices % slices:
        return
    for size in (axes.shard, axes.expert, axes.track):
        if size is not None and size < 1:
            return
    within, experts = num_devices // slices, _num_experts(model)
    for track in _choices(axes.track, gcd(model.num_tracks, within)):
        for expert in _choices(axes.expert, gcd(experts, within) if experts else 1):
            if within % (track * expert):
                continue
            for shard in _choices(axes.shard, within // (track * expert)):
                try:
                    shape = _shape(model, num_devices, slices, Axes(shard=shard, expert=expert, track=track))
                    yield _largest_microbatch(_laid_out(model, chip, shape, workload))
                except (MeshError, RowsNotDivisibleError):
                    continue


def _choices(settled: int | None, largest: int) -> list[int]:
    """The one settled, else all divisors."""
    if settled is not None:
        return [settled]
    small = [size for size in range(1, isqrt(largest) + 1) if largest % size == 0]
    return sorted({*small, *(largest // size for size in small)})


def _num_experts(model: DecoderConfig) -> int:
    """A number that every layer's experts are a multiple of; 0 without experts."""
    return gcd(*(f.num_experts for f in (layer.feed_forward for layer in model.layers) if isinstance(f, ExpertsConfig)))


def _nothing_possible(
    model: DecoderConfig, num_devices: int, workload: Workload, axes: Axes, slices: int
) -> MeshError | RowsNotDivisibleError:
    """Why there is no layout at all: the settled axes alone are impossible, or the rows divide over none."""
    try:
        _shape(model, num_devices, slices, axes)
    except MeshError as error:
        return error
    rows, fewest = workload.rows(model, num_devices), num_devices // (axes.track or gcd(model.num_tracks, num_devices))
    return RowsNotDivisibleError(
        f"{rows:,} rows of a step divide over no layout of {num_devices:,} devices, which have {fewest:,} data ranks or"
        f" more; make --rows-per-step a multiple of {fewest:,}"
    )


def _inner(shape: MeshShape) -> int:
    """Devices that hold one copy of the model."""
    return shape.shard * shape.expert * shape.track


def layout_words(shape: MeshShape) -> str:
    return " x ".join(f"{name} {size:,}" for name, size in shape.axes.items())


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f} GiB"


def _why(best: Plan, fitting: list[Plan], num_layouts: int) -> str:
    smallest = min(fitting, key=lambda plan: (_inner(plan.shape), plan.serial_seconds))
    words = f"the shortest step of {len(fitting)} layouts that fit, of {num_layouts} that are possible"
    if _inner(smallest.shape) < _inner(best.shape):
        return f"{words}; {layout_words(smallest.shape)} would do, but takes {smallest.serial_seconds:.2f} s a step"
    return f"{words}; none that fits holds a copy of the model on fewer devices"


def _too_much(plan: Plan) -> str:
    over = plan.memory.peak - plan.chip.memory
    return (
        f"{layout_words(plan.shape)} needs {_gib(plan.memory.peak)} on a device at {plan.microbatch_rows} rows of"
        f" {plan.workload.row_tokens:,} tokens at once, {_gib(over)} more than its {_gib(plan.chip.memory)};"
    )


def _what_would(model: DecoderConfig, num_devices: int, chip: Chip, workload: Workload, slices: int) -> str:
    """The layout that fits with the fewest devices to a copy of the model, on more devices while that helps."""
    devices, least_before = num_devices, float("inf")
    while True:
        grown = workload
        if workload.rows_per_step is not None:
            grown = replace(workload, rows_per_step=workload.rows_per_step * (devices // num_devices))
        layouts = list(_layouts(model, devices, chip, grown, Axes(), slices))
        if fitting := [plan for plan in layouts if plan.fits]:
            best = min(fitting, key=lambda plan: (_inner(plan.shape), plan.serial_seconds))
            where = "" if devices == num_devices else f" on {devices:,} devices"
            rows = f" at {best.microbatch_rows} rows at once" if best.num_microbatches > 1 else ""
            return f" the smallest layout that fits{where} is {layout_words(best.shape)}{rows}"
        least = min((plan.memory.peak for plan in layouts), default=float("inf"))
        if devices >= MOST_DEVICES or (least_before < float("inf") and least > 0.95 * least_before):
            return " no layout fits on any number of devices: shorten --row-tokens or give --recompute"
        devices, least_before = 2 * devices, least
