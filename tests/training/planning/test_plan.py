"""Plans of runs: choices fit, impossible layouts are refused with the reason, sums are right."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openafm.core.errors import UsageError
from openafm.models.accounting import num_parameters, training_flops
from openafm.models.parallel.row_layout import BalancedLayout, ConsecutiveLayout, RowLayoutConfig
from openafm.models.sizes import named_size
from openafm.training.config import ActivationCheckpointingConfig
from openafm.training.distributed.config import MeshError
from openafm.training.planning.chips import CHIPS, GIB, Chip, PlanError, named_chip
from openafm.training.planning.collectives import VOCABULARY, Collective
from openafm.training.planning.device_memory import Memory
from openafm.training.planning.plan import Plan, Workload
from openafm.training.planning.search import Axes, RowsNotDivisibleError, make_plan

V5P = CHIPS["tpu-v5p"]
FULL = named_size("server.full")


def full(num_devices: int = 8192, slices: int = 4, chip: Chip = V5P, *, axes: Axes | None = None, **work: int) -> Plan:
    workload = Workload(**work)  # type: ignore[arg-type]
    return make_plan(FULL, num_devices=num_devices, chip=chip, workload=workload, axes=axes or Axes(), slices=slices)


def collective(plan: Plan, axis: str, kind: str) -> Collective:
    (found,) = [c for c in plan.collectives if (c.axis, c.kind) == (axis, kind) and c.what != VOCABULARY]
    return found


@pytest.mark.parametrize("name", ["h100", "h200", "b200", "mi300x"])
def test_gpus_hold_the_server_model_on_eight_servers(name: str) -> None:
    chip = named_chip(name)
    plan = full(num_devices=64, slices=1, chip=chip)
    assert plan.fits
    assert plan.chip.memory >= 80e9
    assert chip.flops["float32"] < chip.flops["bfloat16"] / 8
    assert chip.across < chip.inside / 8


def test_the_report_s_devices_hold_the_server_model() -> None:
    plan = full()
    assert plan.fits
    assert plan.shape.world == 8192
    assert plan.shape.track == 8
    assert plan.to_dict()["parameters"] == 147_803_703_296
    assert plan.to_dict()["active_parameters"] == 15_834_122_240
    assert "layouts that fit" in plan.why


@pytest.mark.long
@settings(max_examples=10, deadline=None)
@given(
    size=st.sampled_from(["server.full", "server.nano", "on_device.base"]),
    slices=st.sampled_from([1, 2, 4]),
    within=st.sampled_from([1, 2, 6, 8, 24, 64, 512]),
    memory_gib=st.sampled_from([1, 16, 95, 400]),
    rows=st.sampled_from([None, 8, 96, 1024]),
    row_tokens=st.sampled_from([512, 4096]),
    precision=st.sampled_from(["float32", "bfloat16"]),
)
def test_a_chosen_layout_fits_and_fills_the_devices(
    size: str, slices: int, within: int, memory_gib: int, rows: int | None, row_tokens: int, precision: str
) -> None:
    model = named_size(size)
    chip = replace(V5P, memory=memory_gib * GIB, flops={"float32": 1e14, "bfloat16": 4e14})
    workload = Workload(rows_per_step=rows, row_tokens=row_tokens, precision=precision)  # type: ignore[arg-type]
    try:
        plan = make_plan(model, num_devices=slices * within, chip=chip, workload=workload, axes=Axes(), slices=slices)
    except (PlanError, RowsNotDivisibleError):
        return
    shape, memory = plan.shape, plan.memory
    assert shape.replicate * shape.shard * shape.context * shape.expert * shape.track == slices * within
    assert shape.replicate % slices == 0, "only replicate crosses slices"
    assert model.num_tracks % shape.track == 0
    assert all(getattr(layer.feed_forward, "num_experts", shape.expert) % shape.expert == 0 for layer in model.layers)
    assert plan.rows_per_device * shape.data_world == plan.rows_per_step
    assert 1 <= plan.microbatch_rows <= plan.rows_per_device
    assert memory.parameters + memory.optimizer < memory.peak <= chip.memory
    assert plan.compute_seconds <= plan.step_seconds <= plan.serial_seconds
    assert 0 < plan.model_flops_utilization <= 1 + 1e-9
    # Each weight is on some device: all copies together hold at least the model, and little more.
    held = memory.parameters * shape.shard * shape.expert * shape.track
    assert held >= 4 * num_parameters(model)


REFUSED = [
    (MeshError, "8 tracks do not divide over 3", {"num_devices": 96, "slices": 1, "axes": Axes(track=3, shard=1, expert=1)}),
    (MeshError, "40 experts do not divide over 16", {"axes": Axes(track=8, shard=1, expert=16)}),
    (MeshError, "would cross slices of 2048", {"axes": Axes(track=8, shard=512, expert=1)}),
    (MeshError, "do not divide into 3 slices", {"slices": 3}),
    (MeshError, "takes a multiple of 16", {"num_devices": 100, "slices": 1, "axes": Axes(track=8, shard=2, expert=1)}),
    (MeshError, "must be at least 1", {"num_devices": 0}),
    (RowsNotDivisibleError, "999 rows .* 1,024", {"axes": Axes(track=8, shard=1, expert=8), "rows_per_step": 999}),
    (RowsNotDivisibleError, "over no layout of 8,192 devices", {"rows_per_step": 1000}),
    (PlanError, "on 32 devices is replicate 1 x shard 2 x expert 2 x track 8", {"num_devices": 8, "slices": 1}),
    (PlanError, "smallest layout that fits is", {"axes": Axes(track=8, shard=1, expert=1)}),
    (PlanError, "lower --row-tokens", {"chip": replace(V5P, memory=GIB)}),
    (UsageError, "do not fit the model's context", {"row_tokens": 70_000}),
    (UsageError, "rows_per_step must be at least 1", {"rows_per_step": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("error", "message", "call"), REFUSED, ids=[case[1] for case in REFUSED])
def test_the_impossible_is_refused_with_the_reason(error: type[UsageError], message: str, call: dict[str, object]) -> None:
    with pytest.raises(error, match=message):
        full(**call)  # type: ignore[arg-type]


def test_the_error_names_the_missing_memory() -> None:
    settled = Axes(track=8, shard=1, expert=1)
    with pytest.raises(PlanError) as refused:
        full(axes=settled)
    needed = full(axes=settled, chip=replace(V5P, memory=10_000 * GIB)).memory.peak / GIB
    assert f"needs {needed:,.1f} GiB" in str(refused.value)
    assert f"{needed - 95:,.1f} GiB more than its 95.0 GiB" in str(refused.value)


def test_experts_need_a_model_that_has_some() -> None:
    with pytest.raises(MeshError, match="no experts"):
        make_plan(
            named_size("on_device.base"),
            num_devices=8,
            chip=V5P,
            workload=Workload(),
            axes=Axes(expert=2, shard=1, track=1),
        )


def test_unknown_chips_and_rates_are_refused() -> None:
    with pytest.raises(PlanError, match="tpu-v5p"):
        named_chip("tpu-v5")
    with pytest.raises(PlanError, match="--peak-flops"):
        make_plan(FULL, num_devices=64, chip=V5P, workload=Workload(precision="float32"), axes=Axes())


def test_the_smallest_layout_that_is_named_does_fit() -> None:
    with pytest.raises(PlanError, match="on 32 devices"):
        full(num_devices=16, slices=1)
    assert full(num_devices=32, slices=1, axes=Axes(track=8, expert=2, shard=2)).fits


def test_microbatches_shrink_until_they_fit() -> None:
    plan = full(num_devices=512, slices=1, rows_per_step=2048)
    assert plan.rows_per_device == 2048 // plan.shape.data_world
    assert plan.fits
    assert 1 <= plan.microbatch_rows < plan.rows_per_device
    assert plan.num_microbatches * plan.microbatch_rows >= plan.rows_per_device
    doubled = full(num_devices=512, slices=1, rows_per_step=2048, axes=Axes(**_axes(plan)), row_tokens=4096)
    assert doubled.microbatch_rows == plan.microbatch_rows


def _axes(plan: Plan) -> dict[str, int]:
    return {"shard": plan.shape.shard, "expert": plan.shape.expert, "track": plan.shape.track}


def test_collectives_of_a_step_by_hand() -> None:
    """Eight replicas in two slices, four expert ranks and all eight tracks apart, one row of 4,096 tokens in bf16."""
    settled, roomy = Axes(track=8, expert=4, shard=1), replace(V5P, memory=200 * GIB)
    plan = full(num_devices=256, slices=2, chip=roomy, axes=settled, rows_per_step=32)
    state = 4096 * 2048 * 2
    tracks = collective(plan, "track", "all-reduce")
    assert tracks.count == 2 * 48 // 4  # one each way for each block of four layers
    assert tracks.inside == 2 * 7 * tracks.count * state // 8
    assert not tracks.overlaps
    assert tracks.across == 0
    rows = collective(plan, "expert", "all-to-all")
    assert rows.count == 4 * 24
    assert rows.inside == 4 * 24 * 2 * state * 3 // 4
    gathered = collective(plan, "shard+expert", "all-gather")
    assert gathered.count == 2 * 47 + 1
    (experts,) = [c for c in plan.collectives if (c.axis, c.what) == ("replicate", "gradients of experts")]
    held = 24 * 40 // 4 * 3 * 2048 * 2944 * 4  # bytes of a device's experts: one track's, a quarter of them
    assert experts.count == -(-held // (64 << 20))
    assert experts.inside == 2 * 3 * held // 4
    assert experts.across == 2 * (held // 4) // 2
    assert {c.axis for c in plan.collectives if c.across} == {"replicate"}


def test_ranks_of_tracks_divide_the_vocabulary() -> None:
    """The head takes an eighth of its time; a step also sums three numbers and the gradient of each position."""
    plan = full(
        num_devices=256, chip=replace(V5P, memory=200 * GIB), axes=Axes(track=8, expert=4, shard=1), rows_per_step=32
    )
    (found,) = [c for c in plan.collectives if c.what == VOCABULARY]
    vocabulary, dim, positions = 153_600, 2048, 4096
    assert found.count == 2 * -(-positions // 256) + 2
    assert found.inside == 2 * (positions * (12 + 2 * dim) + 4 * vocabulary * dim // 4) * 7 // 8
    whole = 6 * positions * vocabulary * dim / V5P.flops["bfloat16"]
    assert plan.vocabulary_seconds_saved == pytest.approx(whole * 7 / 8 - found.inside / V5P.inside)
    axes = Axes(track=1, expert=4, shard=1)
    alone = full(num_devices=256, chip=replace(V5P, memory=2000 * GIB), axes=axes, rows_per_step=256)
    assert alone.vocabulary_seconds_saved == 0


def test_one_device_has_no_collectives_and_computes_the_model_s_operations() -> None:
    model, chip = named_size("server.nano"), CHIPS["cpu-core"]
    plan = make_plan(
        model,
        num_devices=1,
        chip=chip,
        workload=Workload(rows_per_step=4, row_tokens=512, precision="float32"),
        axes=Axes(),
    )
    assert plan.collectives == ()
    assert plan.model_flops_utilization == pytest.approx(1)
    assert plan.flops_per_step == pytest.approx(4 * training_flops(model, [512], 512))
    assert plan.step_seconds == plan.flops_per_step / chip.flops["float32"]


def test_a_single_device_has_one_layout() -> None:
    chip, workload = CHIPS["cpu-core"], Workload(row_tokens=64)
    plan = make_plan(named_size("on_device.nano"), num_devices=1, chip=chip, workload=workload, axes=Axes())
    assert plan.why == "the only possible layout"


def test_the_allocator_s_allowance_is_counted_separately() -> None:
    def memory(share: float) -> Memory:
        chip = replace(CHIPS["cpu-core"], allocator_share=share)
        workload = Workload(rows_per_step=4, row_tokens=512, precision="float32")
        return make_plan(named_size("server.nano"), num_devices=1, chip=chip, workload=workload, axes=Axes()).memory

    bare, kept = memory(0.0), memory(0.1)
    assert (bare.allocator, CHIPS["tpu-v5p"].allocator_share) == (0, 0)
    moving = bare.peak - bare.parameters - bare.optimizer
    assert kept.allocator == round(0.1 * moving)
    assert kept == replace(bare, allocator=kept.allocator, peak=bare.peak + kept.allocator)


def test_tracks_share_layers_and_the_head() -> None:
    whole = full(num_devices=1, slices=1, chip=replace(V5P, memory=10_000 * GIB), rows_per_step=1)
    tracks = full(
        num_devices=8,
        slices=1,
        chip=replace(V5P, memory=10_000 * GIB),
        rows_per_step=1,
        axes=Axes(track=8, shard=1, expert=1),
    )
    layers, head = whole.flops_of_a_row
    assert tracks.compute_seconds == pytest.approx((layers + head) / 8 / V5P.flops["bfloat16"])


def test_a_balanced_layout_divides_the_work_of_long_documents_evenly() -> None:
    model = replace(named_size("on_device.nano"), context_length=65_536)
    workload = Workload(rows_per_step=1, row_tokens=65_536)

    def seconds(context: int, layout: RowLayoutConfig) -> float:
        axes = Axes(context=context, shard=1, expert=1, track=1, context_layout=layout)
        return make_plan(model, num_devices=context, chip=V5P, workload=workload, axes=axes).compute_seconds

    alone = seconds(1, ConsecutiveLayout())
    assert seconds(4, BalancedLayout()) == pytest.approx(alone / 4, rel=1e-4)
    assert seconds(4, ConsecutiveLayout()) > 1.3 * alone / 4


def test_recomputing_trades_memory_for_a_third_more_of_the_layers() -> None:
    settled = Axes(track=8, expert=8, shard=1)
    kept, again = (
        make_plan(FULL, num_devices=64, chip=V5P, workload=Workload(activation_checkpointing=recomputing), axes=settled)
        for recomputing in (None, ActivationCheckpointingConfig())
    )
    assert again.memory.activations < kept.memory.activations / 4
    assert again.memory.peak < kept.memory.peak
    assert kept.compute_seconds < again.compute_seconds < 4 / 3 * kept.compute_seconds
    assert again.flops_per_step == kept.flops_per_step


def test_a_large_search_is_quick() -> None:
    started_s = time.process_time()
    full(num_devices=8192, rows_per_step=8192 * 12)
    assert time.process_time() - started_s < 10, "minutes would mean that the arithmetic is repeated layer by layer"


def test_the_report_s_run_computes_most_of_the_time() -> None:
    """Among the layouts that fit, the one with the shortest overlapped step; collectives share the links."""
    plan = full()
    assert plan.model_flops_utilization > 0.9
    assert plan.compute_seconds > 0.9 * plan.step_seconds
    slower = full(axes=Axes(shard=1, expert=8, track=8))
    assert slower.step_seconds > plan.step_seconds
    settled = Axes(shard=4, expert=8, track=8)
    assert full(axes=settled, chip=replace(V5P, inside=V5P.inside / 10)).bound.startswith("communication along ")
