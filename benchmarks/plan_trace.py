"""Plans of the server model against traces of its step: the trainer's own code for rank 0 of 8,192, under fake tensors.

Each row plans the report's devices (8,192 of `tpu-v5p` in 4 slices) and traces the chosen layout. `modelled_mfu` is the
plan's utilization at peak rates, not a measurement. `collectives_crossing_slices` counts the calls in a traced step whose
ranks are in several slices; all of them must run along data axes. `memory_ratio` is the planned peak relative to the traced.

    python benchmarks/plan_trace.py [--quick] [--json]

A full run writes docs/benchmarks/plan_trace.json. `--quick` traces the nano size on 64 ranks.
"""

from __future__ import annotations

import logging
import time
import warnings
from pathlib import Path
from typing import Any

from shared.reporting import benchmark_parser, hand_in

from openafm.models.sizes import named_size
from openafm.training.config import ActivationCheckpointingConfig
from openafm.training.planning.chips import named_chip
from openafm.training.planning.plan import Workload
from openafm.training.planning.search import Axes, make_plan
from openafm.training.planning.trace import DATA_AXES, trace_step

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "plan_trace.json"


def row(
    size: str, num_devices: int, row_tokens: int, *, recompute: bool = False, axes: Axes | None = None
) -> dict[str, Any]:
    """Plan and trace one case."""
    workload = Workload(
        row_tokens=row_tokens, activation_checkpointing=ActivationCheckpointingConfig() if recompute else None
    )
    chip = named_chip("tpu-v5p")
    plan = make_plan(named_size(size), num_devices=num_devices, chip=chip, workload=workload, axes=axes or Axes(), slices=4)
    start_s = time.process_time()
    trace = trace_step(plan)
    wrong = {collective.axis for collective in trace.crossing} - set(DATA_AXES)
    if wrong:
        raise SystemExit(f"collectives along {', '.join(sorted(wrong))} cross slices")
    facts = trace.to_dict()
    return {
        "size": size,
        "ranks": trace.ranks,
        "row_tokens": row_tokens,
        "recompute": recompute,
        "mesh": plan.shape.axes,
        "modelled_mfu": round(plan.model_flops_utilization, 4),
        "bound": plan.bound,
        "collectives_crossing_slices": facts["collectives_crossing_slices"],
        "axes_crossing_slices": facts["axes_crossing_slices"],
        "peak_gib": round(trace.peak / (1 << 30), 2),
        "memory_ratio": round(plan.memory.peak / trace.peak, 3),
        "collectives": facts["collectives"],
        "trace_cpu_seconds": round(time.process_time() - start_s, 1),
    }


def main() -> None:
    options = benchmark_parser(__doc__).parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    if options.quick:
        rows = [row("server.nano", 64, 512, axes=Axes(shard=2, expert=2, track=4))]
    else:
        rows = [
            row("server.full", 8192, 4096),
            row("server.full", 8192, 16384, recompute=True),
            row("server.full", 8192, 65536, recompute=True),
        ]
    first = rows[0]
    figures = {
        "ranks": first["ranks"],
        "collectives_crossing_slices": first["collectives_crossing_slices"],
        "modelled_mfu": first["modelled_mfu"],
        "devices": "not measured: no device",
        "rows": rows,
    }
    hand_in({"figures": figures}, REPORT, options)


if __name__ == "__main__":
    main()
