"""Experts as grouped products beside a loop over experts: forward and backward, as a ratio of CPU time.

Both sides get the same tokens, weights and routing and return the same sum: 4,096 tokens, each sent to 2 of 16 experts (256 ->
512 -> 256, gated). Ours is `Experts.forward` as a model calls it, router, sorting and weighted sum included. The loop takes
the tokens of one expert after the other (index_select), passes them through its three products and adds them to the result
(index_add), with the same router. They alternate on one thread; each ratio is the median over rounds. `ratio_products` is of
the grouped product alone: one weight, rows sorted already. `saved_mib` is what autograd holds from forward to backward.

    python benchmarks/grouped_gemm.py [--quick] [--json]

A full run takes about 2 minutes and writes docs/benchmarks/grouped_gemm.json. `--quick` claims nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from time import process_time

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.nn.functional as F
from torch import Tensor

from openafm.models.experts import Experts
from openafm.models.experts_config import ExpertsConfig

NUM_EXPERTS, NUM_CHOSEN, DIM, HIDDEN_DIM = 16, 2, 256, 512
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "grouped_gemm.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code, under a minute")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    num_tokens, num_rounds = (512, 2) if options.quick else (4096, 25)

    module = ExpertsConfig(num_experts=NUM_EXPERTS, hidden_dim=HIDDEN_DIM).build(DIM)
    assert isinstance(module, Experts)
    generator = torch.Generator().manual_seed(0)
    module.initialise(generator, residual_scale=1.0)
    x_BSD = torch.randn(1, num_tokens, DIM, generator=generator)
    figures: dict[str, float] = {}
    for name, dtype in DTYPES.items():
        suffix = "" if name == "fp32" else f"_{name}"
        figures |= {f"{key}{suffix}": value for key, value in compare(module, x_BSD.to(dtype), num_rounds).items()}
        figures[f"ratio_products{suffix}"] = compare_products(module, dtype, num_tokens, num_rounds)
    report = {
        "figures": figures,
        "peer": "a loop over experts in this file",
        "setting": {
            "claims": "nothing, a smoke run" if options.quick else "the figures of this machine",
            "headline": "ratio, in fp32, forward and backward; figures in bf16 end in _bf16",
            "tokens": num_tokens,
            "experts": f"{NUM_CHOSEN} of {NUM_EXPERTS}, {DIM} -> {HIDDEN_DIM} -> {DIM}, gated",
            "rounds": num_rounds,
            "clock": "CPU time of the process",
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "machine": platform.machine(),
        },
    }
    if not options.quick:
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if not options.json:
        for key, value in figures.items():
            print(f"{key:32} {value}")
    print(json.dumps(report))


def compare(module: Experts, x_BSD: Tensor, num_rounds: int) -> dict[str, float]:
    x_BSD = x_BSD.requires_grad_()
    sides: dict[str, Callable[[Tensor], Tensor]] = {"ours": module, "loop": lambda x: looped(module, x)}
    tensors = [x_BSD, *module.parameters()]
    gap = check_equal(sides, x_BSD, tensors)

    def train(side: Callable[[Tensor], Tensor]) -> None:
        torch.autograd.grad(side(x_BSD).float().square().sum(), tensors)

    seconds = alternate({name: lambda side=side: train(side) for name, side in sides.items()}, num_rounds)  # type: ignore[misc]
    return {
        "ratio": ratio(seconds["loop"], seconds["ours"]),
        "milliseconds": round(1000 * statistics.median(seconds["ours"]), 1),
        "loop_milliseconds": round(1000 * statistics.median(seconds["loop"]), 1),
        "saved_mib": saved_mib(lambda: module(x_BSD)),
        "loop_saved_mib": saved_mib(lambda: looped(module, x_BSD)),
        "largest_relative_gap": float(f"{gap:.2g}"),
    }


def compare_products(module: Experts, dtype: torch.dtype, num_tokens: int, num_rounds: int) -> float:
    """One weight, forward and backward: `torch.nn.functional.grouped_mm` beside as many products."""
    weights_EFD = module.gate.detach().to(dtype).requires_grad_()
    x_MD = torch.randn(num_tokens * NUM_CHOSEN, DIM, dtype=dtype, requires_grad=True)
    counts = [len(x_MD) // NUM_EXPERTS] * NUM_EXPERTS
    ends_E = torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    dy_MF = torch.randn(len(x_MD), HIDDEN_DIM, dtype=dtype)

    def grouped() -> None:
        torch.autograd.grad(F.grouped_mm(x_MD, weights_EFD.mT, offs=ends_E), [x_MD, weights_EFD], dy_MF)

    def loop() -> None:
        pieces = zip(x_MD.split(counts), weights_EFD, strict=True)
        torch.autograd.grad(torch.cat([x @ weight.T for x, weight in pieces]), [x_MD, weights_EFD], dy_MF)

    seconds = alternate({"ours": grouped, "loop": loop}, num_rounds)
    return ratio(seconds["loop"], seconds["ours"])


def looped(module: Experts, x_BSD: Tensor) -> Tensor:
    """The same experts one after the other."""
    x_ND = x_BSD.flatten(0, 1)
    routing = module.router(x_ND[None])
    y_ND = torch.zeros_like(x_ND)
    # Unbound once: a slice per expert would each add a gradient as large as all weights.
    weights = [weight.to(x_ND.dtype).unbind() for weight in (module.gate, module.up, module.down)]
    for expert, (gate, up, down) in enumerate(zip(*weights, strict=True)):
        tokens, places = torch.where(routing.chosen_TNK[0] == expert)
        x_MD = x_ND.index_select(0, tokens)
        y_MD = F.linear(F.silu(F.linear(x_MD, gate)) * F.linear(x_MD, up), down)
        weights_M1 = routing.weights_TNK[0, tokens, places, None].to(y_MD.dtype)
        y_ND = y_ND.index_add(0, tokens, y_MD * weights_M1)
    return y_ND.view(x_BSD.shape)


def check_equal(sides: dict[str, Callable[[Tensor], Tensor]], x_BSD: Tensor, tensors: list[Tensor]) -> float:
    """The largest difference of outputs and gradients of the two sides, by the size of each."""
    results = []
    for side in sides.values():
        y_BSD = side(x_BSD)
        results.append([y_BSD.detach(), *torch.autograd.grad(y_BSD.float().square().sum(), tensors)])
    gaps = [float((a - b).norm() / b.norm()) for a, b in zip(*results, strict=True)]
    assert max(gaps) < (1e-5 if x_BSD.dtype is torch.float32 else 2e-2), gaps
    return max(gaps)


def alternate(sides: dict[str, Callable[[], None]], num_rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each side by round; who goes first alternates too, the first round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for round_index in range(num_rounds + 1):
        for name in sorted(sides, reverse=round_index % 2 == 1):
            started = process_time()
            sides[name]()
            seconds[name].append(process_time() - started)
    return {name: taken[1:] for name, taken in seconds.items()}


def ratio(slow: list[float], fast: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(slow, fast, strict=True)), 3)


def saved_mib(forward: Callable[[], Tensor]) -> float:
    """MiB of distinct storages that autograd keeps for the backward pass, weights included."""
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = forward()
    assert output.requires_grad
    return round(sum(storages.values()) / 2**20, 1)


if __name__ == "__main__":
    main()
