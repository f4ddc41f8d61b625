"""Collectives of a forward pass: track parallelism and tensor parallelism at the same depth (report 2.2).

Both run over two processes (gloo), and torch's CommDebugMode counts the collectives of the layers, without embedding and
head. The reference is a plain decoder under torch's tensor parallelism, DTensors with ColwiseParallel and RowwiseParallel
over the attention and the feed-forward of each layer: it reduces after both, 2L times for L layers. Track parallelism
reduces once for each block of D layers, L / D times. Each model is first compared with itself in one process.

    python benchmarks/collectives.py [--quick] [--json]

A full run writes docs/benchmarks/collectives.json. `--quick` counts one depth and one block depth and claims nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleOutput, RowwiseParallel, parallelize_module

from openafm.models.attention.context import WholeRows
from openafm.models.attention.grouped_query import KeysValues
from openafm.models.decoder import Decoder
from openafm.models.parallel.track_parallel import share_tracks
from openafm.models.sizes import parallel_track_decoder

NUM_PROCESSES, SEED = 2, 0
DIM, NUM_HEADS, HEAD_DIM, HIDDEN_DIM = 64, 4, 16, 128
ROWS, ROW_TOKENS = 2, 32
SHAPES = [(48, 4), (48, 2), (48, 8), (8, 4)]  # layers, layers of a block; first those of server.full
TOLERANCE = 1e-5
REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "collectives.json"


class PlainLayer(nn.Module):
    """A pre-norm layer of attention and SwiGLU of torch's modules, which tensor parallelism supports."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.query, self.key, self.value = (nn.Linear(DIM, NUM_HEADS * HEAD_DIM, bias=False) for _ in range(3))
        self.output = nn.Linear(NUM_HEADS * HEAD_DIM, DIM, bias=False)
        self.gate, self.up = (nn.Linear(DIM, HIDDEN_DIM, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN_DIM, DIM, bias=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        normed_BSD = self.attention_norm(x_BSD)
        heads = [project(normed_BSD).unflatten(-1, (-1, HEAD_DIM)) for project in (self.query, self.key, self.value)]
        q_BHSC, k_BHSC, v_BHSC = (x_BSHC.transpose(1, 2) for x_BSHC in heads)
        o_BHSC = F.scaled_dot_product_attention(q_BHSC, k_BHSC, v_BHSC, is_causal=True)
        x_BSD = x_BSD + self.output(o_BHSC.transpose(1, 2).flatten(-2))
        normed_BSD = self.feed_forward_norm(x_BSD)
        return x_BSD + self.down(F.silu(self.gate(normed_BSD)) * self.up(normed_BSD))


def tensor_parallel(num_layers: int, mesh: DeviceMesh) -> dict[str, int]:
    """Count the all-reduces of the plain layers under tensor parallelism, forward and backward."""
    torch.manual_seed(SEED)
    layers = nn.Sequential(*(PlainLayer() for _ in range(num_layers)))
    x_BSD = torch.randn(ROWS, ROW_TOKENS, DIM, requires_grad=True)
    expected_BSD = layers(x_BSD).detach()
    # The input of several projections becomes a DTensor once, so that the backward pass sums their gradients in one call.
    read_by_several = PrepareModuleOutput(
        output_layouts=Replicate(), desired_output_layouts=Replicate(), use_local_output=False
    )
    plan = {
        "attention_norm": read_by_several,
        "feed_forward_norm": read_by_several,
        **dict.fromkeys(("query", "key", "value", "gate", "up"), ColwiseParallel()),
        **dict.fromkeys(("output", "down"), RowwiseParallel()),
    }
    for layer in layers:
        parallelize_module(layer, mesh, plan)
    return count(layers, x_BSD, expected_BSD)


def track_parallel(num_layers: int, block_depth: int, mesh: DeviceMesh) -> dict[str, int]:
    """Count the all-reduces of the layers of a decoder with tracks, and experts in every second layer."""
    config = parallel_track_decoder(
        vocab_size=128,
        dim=DIM,
        num_tracks=NUM_PROCESSES,
        num_layers=num_layers,
        block_depth=block_depth,
        num_heads=NUM_HEADS // NUM_PROCESSES,
        head_dim=HEAD_DIM,
        window=16,
        dense_dim=HIDDEN_DIM // NUM_PROCESSES,
        num_experts=4,
        expert_dim=HIDDEN_DIM // NUM_PROCESSES,
        context_length=ROW_TOKENS,
    )
    decoder = config.build(SEED)
    generator = torch.Generator().manual_seed(SEED)
    x_BSD = torch.randn(ROWS, ROW_TOKENS, DIM, requires_grad=True, generator=generator)
    layers = LayersOf(decoder)
    expected_BSD = layers(x_BSD).detach()
    share_tracks(decoder, mesh.get_group())
    return count(layers, x_BSD, expected_BSD)


class LayersOf(nn.Module):
    """Return the layers of a decoder, without embedding, final norm and head."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder
        for module in decoder.modules():
            if isinstance(module, KeysValues):  # CommDebugMode fails in modules that are called twice
                del module.slot
                module.slot = _same

    def forward(self, x: Tensor) -> Tensor:
        context = self.decoder._seen_by_layers(WholeRows(ROWS, ROW_TOKENS))
        for index, layer in enumerate(self.decoder.layers):
            x = self.decoder._leave(index, layer(self.decoder._enter(index, x), context))
        return x


def _same(x: Tensor) -> Tensor:
    return x


def count(layers: nn.Module, x_BSD: Tensor, expected_BSD: Tensor) -> dict[str, int]:
    """Count the all-reduces of both passes; the result must equal that of one process."""
    with CommDebugMode() as of_forward:
        output_BSD = layers(x_BSD)
    gap = (output_BSD - expected_BSD).abs().max().item()
    assert gap < TOLERANCE, f"{gap} off the run of one process"
    with CommDebugMode() as of_backward:
        output_BSD.sum().backward()
    assert x_BSD.grad is not None
    assert x_BSD.grad.isfinite().all()
    return {"forward": all_reduces(of_forward), "backward": all_reduces(of_backward)}


def all_reduces(mode: CommDebugMode) -> int:
    counts = {str(operation): number for operation, number in mode.get_comm_counts().items()}
    found = sum(number for operation, number in counts.items() if "all_reduce" in operation or "allreduce" in operation)
    assert found == mode.get_total_counts(), f"other collectives than all-reduce: {counts}"
    return found


def measure(shapes: list[tuple[int, int]]) -> list[dict[str, Any]]:
    mesh = init_device_mesh("cpu", (NUM_PROCESSES,))
    rows = []
    for num_layers, block_depth in shapes:
        tensor, track = tensor_parallel(num_layers, mesh), track_parallel(num_layers, block_depth, mesh)
        saving = {way: 1 - track[way] / tensor[way] for way in tensor}
        rows.append({"layers": num_layers, "block_depth": block_depth, "tensor": tensor, "track": track, "saving": saving})
    return rows


def work(rank: int, port: int, shapes: list[tuple[int, int]], results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=NUM_PROCESSES)
    rows = measure(shapes)
    if rank == 0:
        results.put(rows)
    dist.barrier()
    dist.destroy_process_group()


def counted(shapes: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Return the counts of each shape, from new processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results: Any = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(work, args=(port, shapes, results), nprocs=NUM_PROCESSES)
    rows: list[dict[str, Any]] = results.get()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code, under a minute")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    options = parser.parse_args()
    rows = counted(SHAPES[:1] if options.quick else SHAPES)
    first = rows[0]
    report = {
        "figures": {
            "tensor_parallel": first["tensor"]["forward"],
            "track_parallel": first["track"]["forward"],
            "saving": first["saving"]["forward"],
            "tensor_parallel_backward": first["tensor"]["backward"],
            "track_parallel_backward": first["track"]["backward"],
            "saving_backward": first["saving"]["backward"],
        },
        "peer": "torch's DTensor tensor parallelism: ColwiseParallel and RowwiseParallel over a plain decoder",
        "setting": {
            "layers": first["layers"],
            "block_depth": first["block_depth"],
            "processes": NUM_PROCESSES,
            "counted": "all-reduces of the layers in one forward pass, by CommDebugMode",
            "torch": torch.__version__,
            "machine": platform.machine(),
        },
        "shapes": rows,
    }
    if not options.quick:
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if not options.json:
        for row in rows:
            print(
                f"{row['layers']:3} layers, blocks of {row['block_depth']}: {row['tensor']} {row['track']} {row['saving']}"
            )
    print(json.dumps(report))


if __name__ == "__main__":
    main()
