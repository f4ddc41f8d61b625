"""Traces of a step: collectives and memory of the trainer's own code, against the plan of the same layout."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch.distributed as dist

from openafm.cli.main import run
from openafm.models.config import DecoderConfig
from openafm.models.parallel.row_layout import BalancedLayout, ConsecutiveLayout, RowLayoutConfig
from openafm.models.sizes import named_size, parallel_track_decoder
from openafm.training.config import ActivationCheckpointingConfig
from openafm.training.planning.chips import CHIPS
from openafm.training.planning.plan import Plan, Workload
from openafm.training.planning.search import Axes, make_plan
from openafm.training.planning.trace import DATA_AXES, StepTrace, TraceError, trace_step

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
SLICES = 4


def server() -> DecoderConfig:
    """A model of the server's shape: four tracks, experts in every second layer."""
    return parallel_track_decoder(
        vocab_size=4096,
        dim=128,
        num_tracks=4,
        num_layers=4,
        block_depth=2,
        num_heads=2,
        head_dim=32,
        window=64,
        dense_dim=256,
        num_experts=4,
        expert_dim=128,
        context_length=1024,
    )


def planned(axes: Axes, num_devices: int = 2048, **work: object) -> Plan:
    workload = Workload(row_tokens=512, **work)  # type: ignore[arg-type]
    return make_plan(server(), num_devices=num_devices, chip=CHIPS["tpu-v5p"], workload=workload, axes=axes, slices=SLICES)


def traced(plan: Plan, axis: str, kind: str, trace: StepTrace) -> int:
    return sum(found.count for found in trace.collectives if (found.axis, found.kind) == (axis, kind))


@pytest.mark.long
@pytest.mark.parametrize("layout", [ConsecutiveLayout(), BalancedLayout()], ids=lambda layout: type(layout).__name__)
def test_rows_are_divided_inside_a_slice(layout: RowLayoutConfig) -> None:
    """Windows get the ends of the chunks before, other layers whole rows; the planned bytes are near the traced."""
    axes = Axes(context=2, shard=2, expert=1, track=4, context_layout=layout)
    plan = planned(axes, activation_checkpointing=ActivationCheckpointingConfig())
    trace = trace_step(plan)
    calls = {c.kind: c.count for c in plan.collectives if c.axis == "context"}
    found = {c.kind: c for c in trace.collectives if c.axis == "context"}
    # Two layers with experts also sum the shares of their experts.
    assert {kind: c.count for kind, c in found.items()} == {**calls, "all-reduce": 2}
    assert not any(c.crosses_slices for c in found.values())
    half = plan.shape.context / (plan.shape.context - 1)
    (gather,) = [c for c in plan.collectives if (c.axis, c.kind) == ("context", "all-gather")]
    assert found["all-gather"].bytes == half * gather.inside
    assert trace.peak < plan.memory.peak < 1.25 * trace.peak


@pytest.fixture(scope="module")
def divided() -> tuple[Plan, StepTrace]:
    plan = planned(Axes(shard=2, expert=2, track=4))
    return plan, trace_step(plan)


@pytest.mark.long
def test_only_data_parallelism_crosses_slices(divided: tuple[Plan, StepTrace]) -> None:
    """The report's claim (4.3), on the program itself."""
    _, trace = divided
    assert trace.ranks == 2048
    assert trace.crossing
    assert {collective.axis for collective in trace.crossing} <= set(DATA_AXES)
    assert {collective.kind for collective in trace.crossing} == {"all-reduce"}


def test_collectives_are_those_of_the_plan(divided: tuple[Plan, StepTrace]) -> None:
    plan, trace = divided
    planned_calls: Counter[tuple[str, str]] = Counter()
    for c in plan.collectives:
        planned_calls[c.axis, c.kind] += c.count
    # One more sum over tracks is that of the routing's losses, forward; counts of rows are exchanged before the rows.
    assert traced(plan, "track", "all-reduce", trace) == planned_calls["track", "all-reduce"] + 1
    num_experts = sum(hasattr(layer.feed_forward, "num_experts") for layer in plan.model.layers)
    assert traced(plan, "expert", "all-to-all", trace) == planned_calls["expert", "all-to-all"] + num_experts
    assert traced(plan, "shard+expert", "all-gather", trace) == planned_calls["shard+expert", "all-gather"]
    assert traced(plan, "shard", "reduce-scatter", trace) == planned_calls["shard", "reduce-scatter"]


@pytest.mark.long
def test_layers_are_gathered_in_the_precision(divided: tuple[Plan, StepTrace]) -> None:
    plan, trace = divided
    (gathered,) = [c for c in trace.collectives if (c.axis, c.kind) == ("shard", "all-gather")]
    experts = sum(layer.weights.experts for layer in plan.footprint.layers)
    last = plan.footprint.layers[-1].weights.experts  # stays gathered between forward and backward pass
    assert 2 * (2 * experts - last) <= gathered.bytes <= 2 * 2 * experts


@pytest.mark.parametrize(
    ("axes", "work"),
    [
        (Axes(shard=2, expert=1, track=4), {}),
        (Axes(shard=1, expert=1, track=1), {"precision": "bfloat16", "microbatch_rows": 2, "rows_per_step": 8192}),
        *[
            pytest.param(Axes(shard=1, expert=1, track=4), {"activation_checkpointing": recomputing}, marks=pytest.mark.slow)
            for recomputing in (ActivationCheckpointingConfig(), ActivationCheckpointingConfig(keep_attention=True))
        ],
    ],
)
def test_the_planned_memory_is_near_the_traced(axes: Axes, work: dict[str, object]) -> None:
    plan = planned(axes, **work)
    trace = trace_step(plan)
    assert trace.weights == pytest.approx(plan.memory.parameters, rel=0.01)
    assert trace.optimizer == pytest.approx(plan.memory.optimizer, rel=0.01)
    assert plan.memory.peak == pytest.approx(trace.peak, rel=0.15)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_loss_of_a_large_vocabulary_on_a_gpu(precision: str) -> None:
    """Its fp32 copies of a chunk of logits are most of the memory."""
    model = replace(named_size("on_device.micro_draft"), vocab_size=1 << 16)
    workload = Workload(row_tokens=256, rows_per_step=1, precision=precision)  # type: ignore[arg-type]
    axes = Axes(shard=1, expert=1, track=1)
    plan = make_plan(model, num_devices=1, chip=CHIPS["h100"], workload=workload, axes=axes)
    held = plan.memory.parameters + plan.memory.optimizer
    assert plan.memory.peak - held == pytest.approx(trace_step(plan).peak - held, rel=0.05)


@pytest.mark.long
def test_a_traced_plan_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--devices", "1", "--row-tokens", "64", "--rows-per-step", "1", "--trace", "--json"]
    assert run(["plan", "on_device.nano", *options]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["trace"]["ranks"] == 1
    assert plan["trace"]["collectives"] == []
    assert plan["trace"]["peak"] > plan["trace"]["weights"] + plan["trace"]["optimizer"]


def test_a_trace_needs_a_process_without_a_group() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        with pytest.raises(TraceError, match="without a process group"):
            trace_step(planned(Axes(shard=1, expert=1, track=4)))
    finally:
        dist.destroy_process_group()
