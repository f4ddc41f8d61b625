"""`openafm plan`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openafm.cli.options import PluginsOption
from openafm.cli.output import JsonOption, print_json, print_table
from openafm.core.errors import UsageError

if TYPE_CHECKING:
    from openafm.training.planning.chips import Chip
    from openafm.training.planning.plan import Plan
    from openafm.training.planning.trace import StepTrace

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def plan(
    size: Annotated[str, typer.Argument(help="Named size, such as server.full.")],
    devices: Annotated[int, typer.Option(help="Number of devices in all slices.")] = 1,
    slices: Annotated[
        int,
        typer.Option(
            help="Number of slices: groups of devices connected by a slow network, which only replication crosses."
        ),
    ] = 1,
    memory: Annotated[str | None, typer.Option(help="Memory of a device, such as 95GiB; default: the chip's.")] = None,
    shard: Annotated[int | None, typer.Option(help="Devices on the shard axis (FSDP); default: chosen.")] = None,
    context: Annotated[
        int | None,
        typer.Option(help="Devices that divide the positions of each row; default: 1, or more if no layout fits with 1."),
    ] = None,
    context_layout: Annotated[
        str, typer.Option(help="Positions of each of them: consecutive, or balanced: equal work in long documents.")
    ] = "consecutive",
    track: Annotated[int | None, typer.Option(help="Devices on the track axis; default: chosen.")] = None,
    expert: Annotated[int | None, typer.Option(help="Devices on the expert axis; default: chosen.")] = None,
    rows_per_step: Annotated[
        int | None,
        typer.Option(help="Rows of a step over all devices; default: one for each group with all tracks."),
    ] = None,
    row_tokens: Annotated[int, typer.Option(help="Tokens of a row.")] = 4096,
    document_tokens: Annotated[
        int | None, typer.Option(help="Tokens of a document; default: a row is one document.")
    ] = None,
    images: Annotated[
        int, typer.Option(help="Images of a row in the model's default mode, for sizes such as on_device.base_multimodal.")
    ] = 0,
    microbatch_rows: Annotated[
        int | None, typer.Option(help="Rows of a microbatch on a device; default: as many as fit.")
    ] = None,
    precision: Annotated[str, typer.Option(help="float32 or bfloat16; weights stay float32.")] = "bfloat16",
    recompute: Annotated[
        bool, typer.Option(help="Recompute layers in the backward pass, as with trainer.activation_checkpointing.")
    ] = False,
    keep_attention: Annotated[
        bool, typer.Option(help="Recompute layers except their attention, whose outputs are kept.")
    ] = False,
    chip: Annotated[str, typer.Option(help="Chip whose rates to use.")] = "tpu-v5p",
    peak_flops: Annotated[float | None, typer.Option(help="Peak operations per second of a device.")] = None,
    bandwidth: Annotated[float | None, typer.Option(help="Bytes per second that a device sends within its slice.")] = None,
    slice_bandwidth: Annotated[
        float | None, typer.Option(help="Bytes per second that a device sends to other slices.")
    ] = None,
    trace: Annotated[
        bool,
        typer.Option("--trace", help="Also run the step of one rank under fake tensors: its collectives and its memory."),
    ] = False,
    study: Annotated[
        bool, typer.Option("--study", help="Simulate the whole run with failures instead, on five kinds of chips.")
    ] = False,
    tokens: Annotated[float | None, typer.Option(help="Tokens of the whole run, for --study; default: 13.4e12.")] = None,
    efficiency: Annotated[
        float | None,
        typer.Option(help="Speed of a real step relative to the plan's, which is at peak rates; for --study; default: 0.5."),
    ] = None,
    mtbf_hours: Annotated[
        float | None, typer.Option(help="Hours of one chip between failures, for --study; default: those of 16,384 H100.")
    ] = None,
    restart_seconds: Annotated[
        float | None, typer.Option(help="Seconds from a failure to the next step, for --study; default: 600.")
    ] = None,
    save_seconds: Annotated[
        float | None, typer.Option(help="Seconds that a checkpoint stalls training, for --study; default: 5.")
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option(help="Price of a chip-hour, as in h100=2.5; repeat it for other chips; for --study.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write a PNG of the goodput over the checkpoint interval of --chip; for --study.")
    ] = None,
    plugins: PluginsOption = None,
    json: JsonOption = False,
) -> None:
    """Estimate the memory of training a named size on many devices, and the time of a step at peak rates."""
    from openafm.models.parallel.row_layout import BalancedLayout, ConsecutiveLayout, RowLayoutConfig
    from openafm.models.sizes import named_size
    from openafm.training.config import ActivationCheckpointingConfig
    from openafm.training.planning.chips import NUMBER_BYTES, named_chip
    from openafm.training.planning.plan import Workload
    from openafm.training.planning.search import Axes, make_plan

    if precision not in NUMBER_BYTES:
        raise UsageError(f"--precision {precision} is neither float32 nor bfloat16")
    stated = _chip(named_chip(chip), memory, {precision: peak_flops} if peak_flops else {}, bandwidth, slice_bandwidth)
    workload = Workload(
        rows_per_step=rows_per_step,
        row_tokens=row_tokens,
        document_tokens=document_tokens,
        microbatch_rows=microbatch_rows,
        row_images=images,
        precision=precision,
        activation_checkpointing=(
            ActivationCheckpointingConfig(keep_attention=keep_attention) if recompute or keep_attention else None
        ),
    )
    layouts: dict[str, RowLayoutConfig] = {"consecutive": ConsecutiveLayout(), "balanced": BalancedLayout()}
    if context_layout not in layouts:
        raise UsageError(f"--context-layout {context_layout} is neither consecutive nor balanced")
    axes = Axes(context=context, shard=shard, expert=expert, track=track, context_layout=layouts[context_layout])
    assumed: dict[str, Any] = {
        "tokens": tokens,
        "efficiency": efficiency,
        "mtbf_hours": mtbf_hours,
        "restart_seconds": restart_seconds,
        "save_seconds": save_seconds,
    }
    if study:
        _refuse_with_study(
            trace=trace,
            memory=memory,
            peak_flops=peak_flops,
            bandwidth=bandwidth,
            slice_bandwidth=slice_bandwidth,
            axes=axes != Axes(),
        )
        from openafm.cli.training.plan_study import check_plot, compare_chips, parse_prices
        from openafm.training.planning.study import Assumptions

        assumptions = replace(
            Assumptions(prices=parse_prices(price or [])),
            **{name: value for name, value in assumed.items() if value is not None},
        )
        check_plot(plot)
        compare_chips(size, devices, slices, workload, assumptions, plotted=stated, plot=plot, json=json)
        return
    _refuse_without_study(price=price, plot=plot, **assumed)
    made = make_plan(named_size(size), num_devices=devices, chip=stated, workload=workload, axes=axes, slices=slices)
    traced = None
    if trace:
        from openafm.training.planning.trace import trace_step

        traced = trace_step(made)
    if json:
        print_json({"model": size} | made.to_dict() | ({} if traced is None else {"trace": traced.to_dict()}))
        return
    _print(size, made)
    if traced is not None:
        _print_trace(traced)


def parse_bytes(text: str) -> int:
    """Return the number of bytes of a text such as `95GiB` or `80 GB`.

    Raises:
        UsageError: the text is not a number with a unit.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise UsageError(f"'{text}' is not a memory size; write it as 95GiB or 80GB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _refuse_with_study(**options: object) -> None:
    """Refuse options that a study of several kinds of chips ignores."""
    given = [name for name, value in options.items() if value]
    if given:
        raise UsageError(f"--study compares kinds of chips and layouts of its own; leave out {', '.join(given)}")


def _refuse_without_study(**options: object) -> None:
    """Refuse options that only a study reads."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None and value != []]
    if given:
        raise UsageError(f"{', '.join(given)} only with --study; add --study")


def _chip(chip: Chip, memory: str | None, flops: dict[str, float], inside: float | None, across: float | None) -> Chip:
    """Return the chip with the given values instead of its own."""
    changes: dict[str, Any] = {"memory": parse_bytes(memory) if memory else None, "inside": inside, "across": across}
    changes = {key: value for key, value in changes.items() if value is not None}
    if flops:
        changes["flops"] = {**chip.flops, **flops}
    if any(value <= 0 for value in (*flops.values(), *(v for k, v in changes.items() if k != "flops"))):
        raise UsageError("memory and rates of a device must be above 0")
    return replace(
        chip, name=f"{chip.name}, changed" if changes and changes != {"memory": chip.memory} else chip.name, **changes
    )


def _print(size: str, plan: Plan) -> None:
    from openafm.training.planning.search import layout_name

    facts, chip, work = plan.to_dict(), plan.chip, plan.workload
    trained = plan.flops_per_step / plan.tokens_per_step
    mesh = layout_name(plan.shape)
    print_table(
        ("", ""),
        [
            ("model", f"{size}: {facts['parameters']:,} parameters, {facts['active_parameters']:,} active per token"),
            ("devices", f"{plan.shape.world:,}; slices: {plan.shape.slices} of {plan.shape.world // plan.shape.slices:,}"),
            ("mesh", f"{mesh} (only replication crosses slices)"),
            ("chosen because", plan.why),
            (
                "step",
                f"{plan.rows_per_step:,} rows of {work.row_tokens:,} tokens = {plan.tokens_per_step:,} tokens"
                + (f", {plan.rows_per_step * work.row_images:,} images" if work.row_images else ""),
            ),
            (
                "each device",
                f"{plan.rows_per_device} rows a step, at most {plan.microbatch_rows} at once, in {work.precision}"
                + (", layers recomputed" if work.activation_checkpointing is not None else ""),
            ),
            (
                "operations",
                f"{plan.flops_per_token / 1e9:,.4g} GFLOP a token forward, {trained / 1e9:,.4g} to train on it",
            ),
        ],
    )
    print()
    memory = plan.memory
    rows = [
        ("parameters (fp32)", memory.parameters),
        ("gradients (fp32)", memory.gradients),
        ("optimizer", memory.optimizer),
        ("activations for the backward pass", memory.activations),
        ("  of these keys and values", memory.keys_values),
        ("working memory", memory.working),
        ("kept by the allocator", memory.allocator),
        ("peak (not the sum)", memory.peak),
        ("available on the device", chip.memory),
        ("host memory of a checkpoint", memory.checkpoint),
    ]
    print_table(("memory of a device", "GiB"), [(name, value / (1 << 30)) for name, value in rows])
    print()
    print_table(
        ("axis", "collective", "of", "calls", "GB in slice", "GB across", "ms", ""),
        [
            (
                c.axis,
                c.kind,
                c.what,
                c.count,
                c.inside / 1e9,
                c.across / 1e9,
                1000 * plan.seconds(c),
                "overlaps" * c.overlaps,
            )
            for c in plan.collectives
        ]
        or [("-", "none", "no communication on one device", 0, 0.0, 0.0, 0.0, "")],
    )
    print()
    print_table(
        ("time of a step at peak rates", ""),
        [
            (
                "rates",
                f"{chip.name}: {plan.peak_flops / 1e12:,.3g} TFLOP/s, {chip.inside / 1e9:,.3g} GB/s in a slice,"
                f" {chip.across / 1e9:,.3g} GB/s across; nothing measured",
            ),
            ("computing", f"{plan.compute_seconds:.4g} s"),
            ("step, overlapping what can", f"{plan.step_seconds:.4g} s, {facts['tokens_per_second']:,.0f} tokens/s"),
            ("bounded by", plan.bound),
            *(
                [("saved by dividing the vocabulary", f"{plan.vocabulary_seconds_saved:.4g} s")]
                if plan.vocabulary_ranks > 1
                else []
            ),
            ("step, overlapping nothing", f"{plan.serial_seconds:.4g} s"),
            ("model FLOPs utilization implied", f"{100 * plan.model_flops_utilization:.1f} % at most"),
        ],
    )


def _print_trace(trace: StepTrace) -> None:
    print()
    print_table(
        (f"traced step of one of {trace.ranks:,} ranks", "GiB"),
        [
            ("parameters and their average", trace.weights / (1 << 30)),
            ("optimizer", trace.optimizer / (1 << 30)),
            ("peak of all tensors", trace.peak / (1 << 30)),
        ],
    )
    print()
    print_table(
        ("axis", "collective", "ranks", "calls", "GB", "crosses slices"),
        [(c.axis, c.kind, c.ranks, c.count, c.bytes / 1e9, "yes" if c.crosses_slices else "no") for c in trace.collectives]
        or [("-", "none", trace.ranks, 0, 0.0, "no")],
    )
