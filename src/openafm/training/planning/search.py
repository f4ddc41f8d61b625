"""Search for the best layout of a run on many devices. Imports no tensor library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import gcd, isqrt

from openafm.core.errors import UsageError
from openafm.models.config import DecoderConfig
from openafm.models.feed_forward.experts_config import ExpertsConfig
from openafm.models.parallel.row_layout import ConsecutiveLayout, RowLayoutConfig
from openafm.training.distributed.config import MeshError, MeshShape, ParallelConfig
from openafm.training.planning.chips import GIB, Chip, PlanError
from openafm.training.planning.plan import Plan, Workload

MAX_DEVICES = 1 << 20  # in the search for a layout that fits
AXES = ("context", "shard", "expert", "track")
CONTEXTS = (2, 4, 8, 16, 32)  # sizes of the context axis in this search


class RowsNotDivisibleError(PlanError):
    """The rows of a step do not divide over the data ranks."""


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Given sizes of the mesh's axes; None is chosen by the plan, `context` only if no layout fits without it."""

    context: int | None = None
    shard: int | None = None
    expert: int | None = None
    track: int | None = None
    context_layout: RowLayoutConfig = field(default_factory=ConsecutiveLayout)

    @property
    def are_open(self) -> bool:
        return None in (self.shard, self.expert, self.track)


def make_plan(
    model: DecoderConfig, *, num_devices: int, chip: Chip, workload: Workload, axes: Axes, slices: int = 1
) -> Plan:
    """Return the plan of a layout, or of the best one if axes are open: the shortest step if what can overlap does.

    Raises:
        PlanError: the run needs more memory than a device has, or the chip has no rate for the precision.
        MeshError: the axes do not fill the devices, do not divide the model, or one other than `replicate` crosses slices.
        RowsNotDivisibleError: the data ranks cannot share the rows of a step.
    """
    if workload.precision not in chip.flops:
        raise PlanError(f"{chip.name} has no known rate in {workload.precision}; set it with --peak-flops")
    workload.check_images(model)
    if workload.row_tokens > model.context_length:
        raise UsageError(
            f"rows of {workload.row_tokens} tokens do not fit the model's context of {model.context_length};"
            f" set --row-tokens to {model.context_length} or less"
        )
    if num_devices < 1 or slices < 1:
        raise MeshError(f"devices and slices must be at least 1, got {num_devices} and {slices}")
    if not axes.are_open:
        shape = _shape(model, num_devices, slices, axes, workload.row_tokens)
        plan = _largest_microbatch(_laid_out(model, chip, shape, workload))
        if not plan.fits:
            raise PlanError(_excess(plan) + _smallest_fit(model, num_devices, chip, workload, slices))
        return plan
    layouts = list(_layouts(model, num_devices, chip, workload, axes, slices))
    if not layouts:
        raise _no_layout(model, num_devices, workload, axes, slices)
    layouts = _with_context_if_needed(layouts, model, num_devices, chip, workload, axes, slices)
    fitting = [plan for plan in layouts if plan.fits]
    if not fitting:
        least = min(layouts, key=lambda plan: plan.memory.peak)
        raise PlanError(_excess(least) + _smallest_fit(model, num_devices, chip, workload, slices))
    best = min(fitting, key=lambda plan: (plan.step_seconds, plan.serial_seconds, _inner(plan.shape)))
    return replace(best, why=_why(best, fitting, len(layouts)))


def _with_context_if_needed(
    layouts: list[Plan], model: DecoderConfig, num_devices: int, chip: Chip, workload: Workload, axes: Axes, slices: int
) -> list[Plan]:
    """Return the layouts, or those with the smallest context axis with which one fits, if none fits without it."""
    if axes.context is not None or any(plan.fits for plan in layouts):
        return layouts
    for context in CONTEXTS:
        divided = list(_layouts(model, num_devices, chip, workload, replace(axes, context=context), slices))
        if any(plan.fits for plan in divided):
            return divided
    return layouts


def _shape(model: DecoderConfig, num_devices: int, slices: int, axes: Axes, row_tokens: int) -> MeshShape:
    if axes.context is not None and row_tokens % axes.context_layout.num_chunks(axes.context):
        chunks = axes.context_layout.num_chunks(axes.context)
        raise MeshError(f"rows of {row_tokens:,} tokens do not divide into {chunks} equal parts; choose a context that does")
    given = {name: size for name in AXES if (size := getattr(axes, name)) is not None}
    config = ParallelConfig(**given, context_layout=axes.context_layout, slices=slices)
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
    """Return the plan with the most rows at once that fit, or one row, unless the workload gives them."""
    if plan.workload.microbatch_rows is not None or plan.microbatch_rows == 1 or plan.fits:
        return plan
    smallest = replace(plan, microbatch_rows=1)
    while smallest.fits and not plan.fits:
        plan = replace(plan, microbatch_rows=plan.microbatch_rows // 2)
    return plan if smallest.fits else smallest


def _layouts(
    model: DecoderConfig, num_devices: int, chip: Chip, workload: Workload, axes: Axes, slices: int
) -> Iterator[Plan]:
    """Yield all possible layouts, whether they fit or not."""
    if num_devices % slices:
        return
    for name in AXES:
        size = getattr(axes, name)
        if size is not None and size < 1:
            return
    context = axes.context or 1
    if num_devices // slices % context or workload.row_tokens % context:
        return
    within, experts = num_devices // slices // context, _num_experts(model)
    for track in _choices(axes.track, gcd(model.num_tracks, within)):
        for expert in _choices(axes.expert, gcd(experts, within) if experts else 1):
            if within % (track * expert):
                continue
            for shard in _choices(axes.shard, within // (track * expert)):
                try:
                    sizes = replace(axes, context=context, shard=shard, expert=expert, track=track)
                    shape = _shape(model, num_devices, slices, sizes, workload.row_tokens)
                    yield _largest_microbatch(_laid_out(model, chip, shape, workload))
                except (MeshError, RowsNotDivisibleError):
                    continue


def _choices(given: int | None, largest: int) -> list[int]:
    """Return the given size, else all divisors of the largest."""
    if given is not None:
        return [given]
    small = [size for size in range(1, isqrt(largest) + 1) if largest % size == 0]
    return sorted({*small, *(largest // size for size in small)})


def _num_experts(model: DecoderConfig) -> int:
    """Return the greatest common divisor of the layers' numbers of experts; 0 without experts."""
    return gcd(*(f.num_experts for f in (layer.feed_forward for layer in model.layers) if isinstance(f, ExpertsConfig)))


def _no_layout(
    model: DecoderConfig, num_devices: int, workload: Workload, axes: Axes, slices: int
) -> MeshError | RowsNotDivisibleError:
    """Return the reason why no layout is possible: the given axes, or the number of rows."""
    try:
        _shape(model, num_devices, slices, axes, workload.row_tokens)
    except MeshError as error:
        return error
    rows, fewest = workload.rows(model, num_devices), num_devices // (axes.track or gcd(model.num_tracks, num_devices))
    return RowsNotDivisibleError(
        f"{rows:,} rows of a step divide over no layout of {num_devices:,} devices with at least {fewest:,} data ranks;"
        f" make --rows-per-step a multiple of {fewest:,}"
    )


def _inner(shape: MeshShape) -> int:
    """Return the number of devices per copy of the model."""
    return shape.context * shape.shard * shape.expert * shape.track


def layout_name(shape: MeshShape) -> str:
    return " x ".join(f"{name} {size:,}" for name, size in shape.axes.items() if name != "context" or size > 1)


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f} GiB"


def _why(best: Plan, fitting: list[Plan], num_layouts: int) -> str:
    if num_layouts == 1:
        return "the only possible layout"
    smallest = min(fitting, key=lambda plan: (_inner(plan.shape), plan.step_seconds))
    words = f"the shortest step of {len(fitting)} layouts that fit, of {num_layouts} possible ones"
    if _inner(smallest.shape) < _inner(best.shape):
        return f"{words}; {layout_name(smallest.shape)} fits too, but takes {smallest.step_seconds:.3g} s a step"
    return f"{words}; no layout with fewer devices per copy of the model fits"


def _excess(plan: Plan) -> str:
    over = plan.memory.peak - plan.chip.memory
    return (
        f"{layout_name(plan.shape)} needs {_gib(plan.memory.peak)} on a device for microbatches of {plan.microbatch_rows} x"
        f" {plan.workload.row_tokens:,} tokens, {_gib(over)} more than its {_gib(plan.chip.memory)};"
    )


def _smallest_fit(model: DecoderConfig, num_devices: int, chip: Chip, workload: Workload, slices: int) -> str:
    """Return a clause with the layout that fits with the fewest devices per copy, on more devices while that helps."""
    devices, least_before = num_devices, float("inf")
    while True:
        grown = workload
        if workload.rows_per_step is not None:
            grown = replace(workload, rows_per_step=workload.rows_per_step * (devices // num_devices))
        layouts = list(_layouts(model, devices, chip, grown, Axes(), slices))
        layouts = _with_context_if_needed(layouts, model, devices, chip, grown, Axes(), slices)
        if fitting := [plan for plan in layouts if plan.fits]:
            best = min(fitting, key=lambda plan: (_inner(plan.shape), plan.step_seconds))
            where = "" if devices == num_devices else f" on {devices:,} devices"
            rows = f" with microbatches of {best.microbatch_rows} rows" if best.num_microbatches > 1 else ""
            return f" the smallest layout that fits{where} is {layout_name(best.shape)}{rows}"
        least = min((plan.memory.peak for plan in layouts), default=float("inf"))
        if devices >= MAX_DEVICES or (least_before < float("inf") and least > 0.95 * least_before):
            return " no layout fits on any number of devices: lower --row-tokens or use --recompute"
        devices, least_before = 2 * devices, least
