"""Experts as grouped products and as a loop over experts: forward and backward, ratio of CPU times.

Both get the same tokens, weights and routing and return the same sum; a token uses 2 of 16 experts (256 -> 512 -> 256,
gated). Ours is `Experts.forward` as a model calls it, with router, sorting and weighted sum. The loop, with the same
router, takes the tokens of one expert after another (index_select), computes them with that expert's slice of the weights
and adds them to the result (index_add). The gradient of every slice is as large as all weights; so a second loop splits
the weights once (unbind), which isolates the products. A CPU computes groups one by one as well, and there the two are
close.

They alternate on one thread; each ratio is the median over rounds. `ratio` is in fp32 relative to the plain loop at 2,048
tokens, an update of the recipes; figures by precision and number of tokens follow.

    python benchmarks/grouped_gemm.py [--quick] [--json]

A full run takes about 2 minutes and writes docs/benchmarks/grouped_gemm.json. `--quick` claims nothing.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from time import process_time

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.nn.functional as F
from shared.reporting import benchmark_parser, hand_in
from torch import Tensor

from openafm.models.feed_forward.experts import Experts
from openafm.models.feed_forward.experts_config import ExpertsConfig

NUM_EXPERTS, NUM_CHOSEN, DIM, HIDDEN_DIM = 16, 2, 256, 512
HEADLINE_TOKENS = 2048
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Side = Callable[[Tensor], Tensor]
REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "grouped_gemm.json"


def main() -> None:
    options = benchmark_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    token_counts, num_rounds = ((512,), 2) if options.quick else ((512, 2048, 8192), 15)

    module = ExpertsConfig(num_experts=NUM_EXPERTS, hidden_dim=HIDDEN_DIM).build(DIM)
    assert isinstance(module, Experts)
    module.initialize(torch.Generator().manual_seed(0), residual_scale=1.0)
    figures: dict[str, float] = {}
    for name, dtype in DTYPES.items():
        for num_tokens in token_counts:
            x_BSD = torch.randn(1, num_tokens, DIM, generator=torch.Generator().manual_seed(1)).to(dtype)
            found = compare(module, x_BSD.requires_grad_(), num_rounds)
            figures |= {f"{key}_{name}_{num_tokens}": value for key, value in found.items()}
    figures = {"ratio": figures[f"ratio_fp32_{512 if options.quick else HEADLINE_TOKENS}"]} | figures
    report = {
        "figures": figures,
        "peer": "loops over experts in this file",
        "setting": {
            "claims": "nothing, a smoke run" if options.quick else "the figures of this machine",
            "headline": f"ratio: fp32, {HEADLINE_TOKENS} tokens, against the plain loop",
            "tokens": list(token_counts),
            "experts": f"{NUM_CHOSEN} of {NUM_EXPERTS}, {DIM} -> {HIDDEN_DIM} -> {DIM}, gated",
            "rounds": num_rounds,
            "clock": "CPU time of the process",
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "machine": platform.machine(),
        },
    }
    hand_in(report, REPORT, options)


def compare(module: Experts, x_BSD: Tensor, num_rounds: int) -> dict[str, float]:
    sides: dict[str, Side] = {"ours": module, "loop": partial(looped, module), "unbound": partial(unbound_loop, module)}
    tensors = [x_BSD, *module.parameters()]
    gap = check_equal(sides, x_BSD, tensors)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for round_index in range(num_rounds):
        for name in sorted(sides, reverse=round_index % 2 == 1):
            started = process_time()
            torch.autograd.grad(sides[name](x_BSD).float().square().sum(), tensors)
            seconds[name].append(process_time() - started)
    return {
        "ratio": ratio(seconds["loop"], seconds["ours"]),
        "ratio_unbound": ratio(seconds["unbound"], seconds["ours"]),
        "milliseconds": round(1000 * statistics.median(seconds["ours"]), 1),
        "loop_milliseconds": round(1000 * statistics.median(seconds["loop"]), 1),
        "unbound_milliseconds": round(1000 * statistics.median(seconds["unbound"]), 1),
        "largest_relative_gap": float(f"{gap:.2g}"),
    }


def looped(module: Experts, x_BSD: Tensor) -> Tensor:
    """Compute the same experts one by one, each with a slice of the weights."""
    gate, up, down = (weight.to(x_BSD.dtype) for weight in (module.gate, module.up, module.down))
    return sum_over_experts(module, x_BSD, ((gate[expert], up[expert], down[expert]) for expert in range(NUM_EXPERTS)))


def unbound_loop(module: Experts, x_BSD: Tensor) -> Tensor:
    """The same with the weights split once."""
    weights = (weight.to(x_BSD.dtype).unbind() for weight in (module.gate, module.up, module.down))
    return sum_over_experts(module, x_BSD, zip(*weights, strict=True))


def sum_over_experts(module: Experts, x_BSD: Tensor, experts: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    x_ND = x_BSD.flatten(0, 1)
    routing = module.router(x_ND[None])
    y_ND = torch.zeros_like(x_ND)
    for expert, (gate, up, down) in enumerate(experts):
        tokens, places = torch.where(routing.chosen_TNK[0] == expert)
        x_MD = x_ND.index_select(0, tokens)
        y_MD = F.linear(F.silu(F.linear(x_MD, gate)) * F.linear(x_MD, up), down)
        weights_M1 = routing.weights_TNK[0, tokens, places, None].to(y_MD.dtype)
        y_ND.index_add_(0, tokens, y_MD * weights_M1)
    return y_ND.view(x_BSD.shape)


def check_equal(sides: dict[str, Side], x_BSD: Tensor, tensors: list[Tensor]) -> float:
    """Return the largest relative difference of outputs and gradients from ours. It also warms up all variants."""
    results = []
    for side in sides.values():
        y_BSD = side(x_BSD)
        results.append([y_BSD.detach(), *torch.autograd.grad(y_BSD.float().square().sum(), tensors)])
    ours, *others = results
    gaps = [float((a - b).norm() / b.norm()) for other in others for a, b in zip(other, ours, strict=True)]
    assert max(gaps) < (1e-5 if x_BSD.dtype is torch.float32 else 2e-2), gaps
    return max(gaps)


def ratio(slow: list[float], fast: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(slow, fast, strict=True)), 3)


if __name__ == "__main__":
    main()
