"""Keys and values: the change of held-out loss with few bits (report section 6), and the memory that windows save (2.2).

`on_device.micro` is trained on the built-in corpus, with three seeds; then keys and values pass the attention's slot, where
they are rounded after QK-norm and rotation: symmetric, one fp16 scale for each token and head; and bf16 for comparison.
Changes are relative to the loss with fp32 keys and values, on the same held-out tokens, the mean over seeds.

Windows: the engine's cache of `server.full` and of `server.nano` with 65,536 tokens in bf16, and that of the same models
with all layers global. Bytes are those of the buffers, including slack for rollbacks and free space. The nano caches are
filled, 512 tokens a step; those of the full model, 51 GB, are allocated in the same steps without storage.

    python benchmarks/kv_cache.py [--quick] [--json]

A full run writes docs/benchmarks/kv_cache.json. `--quick` runs the same code on few steps and claims nothing.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import platform
import statistics
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from compressing.post_training_rows import KV_BITS, with_kv_bits
from compressing.trained import FULL, QUICK, Base, Data, Size, loss, micro, prepare_data, train_base
from shared.reporting import benchmark_parser, hand_in

from openafm.compression.keys_values import keep_in
from openafm.models.accounting import all_global, kv_bytes
from openafm.models.config import DecoderConfig
from openafm.models.sizes import named_size
from openafm.runtime.engines.kv_cache import TorchCache

NUM_TOKENS, STEP_TOKENS = 65_536, 512
REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "kv_cache.json"


def main() -> None:
    options = benchmark_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    size = QUICK if options.quick else FULL

    with tempfile.TemporaryDirectory() as folder:
        report = measure(prepare_data(Path(folder), micro(), size), size)
    hand_in(report, REPORT, options)


def measure(data: Data, size: Size) -> dict[str, Any]:
    """The changes of every base, and their means."""
    bases = [train_base(micro(), data, size, seed) for seed in range(size.seeds)]
    changes = [changes_of(base, data) for base in bases]
    means = {key: round(statistics.mean(change[key] for change in changes), 6) for key in changes[0]}
    return {
        "figures": {
            **means,
            "int8_loss_change_per_seed": [round(change["int8_loss_change"], 6) for change in changes],
            "loss": round(statistics.mean(base.loss for base in bases), 4),
            "bits_per_number": {f"int{bits}": with_kv_bits(bases[0].decoder, bits).bits_per_weight for bits in KV_BITS},
            **windows(),
        },
        "peer": "the same models with fp32 keys and values",
        "setting": asdict(size)
        | {
            "model": "on_device.micro",
            "head_dim": 32,
            "held_out_tokens": sum(batch.num_targets for batch in data.held_out),
            "threads": 1,
            "torch": torch.__version__,
            "machine": platform.machine(),
        },
    }


def changes_of(base: Base, data: Data) -> dict[str, float]:
    """Loss with rounded keys and values, less the loss with exact ones."""
    rounded = copy.deepcopy(base.decoder)
    keep_in(rounded, "bfloat16")
    decoders = {f"int{bits}": with_kv_bits(base.decoder, bits).decoder for bits in KV_BITS} | {"bfloat16": rounded}
    return {f"{name}_loss_change": loss(decoder, data.held_out) - base.loss for name, decoder in decoders.items()}


def windows() -> dict[str, Any]:
    """Bytes of caches with windows and without; a saving is the share that the windows save."""
    figures: dict[str, Any] = {}
    for name, device in (("server", torch.device("meta")), ("nano", torch.device("cpu"))):
        model = named_size("server.full" if name == "server" else "server.nano")
        config = dataclasses.replace(model, context_length=NUM_TOKENS)
        bytes_kept, bytes_all = (cache_bytes(each, device) for each in (config, all_global(config)))
        figures[f"{name}_bytes_{NUM_TOKENS}"] = bytes_kept
        figures[f"{name}_all_global_bytes_{NUM_TOKENS}"] = bytes_all
        figures[f"{name}_window_saving"] = round(1 - bytes_kept / bytes_all, 4)
        figures[f"{name}_window_saving_without_slack"] = round(1 - kv_bytes(config, "bfloat16", NUM_TOKENS) / bytes_all, 4)
    return figures | {"window_saving": figures["server_window_saving"]}


def cache_bytes(config: DecoderConfig, device: torch.device) -> int:
    """Memory of a cache after a chunked prefill; on a device with storage, the last tokens are checked."""
    cache = TorchCache(config, torch.bfloat16, device)
    for start in range(0, NUM_TOKENS, STEP_TOKENS):
        cache.reserve(start + STEP_TOKENS)
        for layer, stored in cache.layers.items():
            shape = (config.kv_heads(layer), STEP_TOKENS, config.layers[layer].attention.head_dim)
            k_KNC = torch.full(shape, float(start // STEP_TOKENS), dtype=torch.bfloat16, device=device)
            stored.write(start, k_KNC, k_KNC)
        cache.length = start + STEP_TOKENS
    if device.type == "cpu":
        for stored in cache.layers.values():
            keys_KLC, _ = stored.read(NUM_TOKENS - STEP_TOKENS, NUM_TOKENS)
            assert bool((keys_KLC == NUM_TOKENS // STEP_TOKENS - 1).all())
    return cache.num_bytes


if __name__ == "__main__":
    main()
