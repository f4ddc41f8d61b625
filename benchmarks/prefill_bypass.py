"""The prefill bypass (report 2.1): time to first token of a 1,024-token prompt with it, as a ratio to without it.

The peer is the same engine and model with every layer run for every position. Both compute the head for the last position
only. They alternate in one run, on one thread, and are measured in CPU time; each ratio is the median over rounds. The
arithmetic ratio counts floating-point operations. The models are `on_device.nano` and one of twice its width and depth.

    python benchmarks/prefill_bypass.py [--quick] [--json]

A full run writes docs/benchmarks/prefill_bypass.json. `--quick` runs the same code for one round and claims nothing.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from time import process_time

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from shared.reporting import benchmark_parser, hand_in
from torch import Tensor

from openafm.models.accounting import num_parameters, training_flops
from openafm.models.attention.context import AttentionContext
from openafm.models.config import DecoderConfig
from openafm.models.decoder import Decoder, InsertedEmbedding
from openafm.models.sizes import named_size, shared_kv_decoder
from openafm.runtime.engines.torch_engine import TorchEngine

PROMPT_TOKENS, SEED = 1024, 0
REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "prefill_bypass.json"
MODELS = {
    "nano": named_size("on_device.nano"),
    "wide": shared_kv_decoder(
        vocab_size=16_384,
        dim=512,
        num_own_layers=10,
        num_shared_layers=6,
        num_heads=8,
        num_kv_heads=2,
        head_dim=64,
        hidden_dim=1664,
        context_length=4096,
    ),
}


class EveryLayer(Decoder):
    """The same decoder without the bypass."""

    def last_hidden(
        self, tokens_BS: Tensor, context: AttentionContext | None = None, inserted: Sequence[InsertedEmbedding] = ()
    ) -> Tensor:
        assert context is not None
        return self.hidden(tokens_BS, context, inserted).flatten(0, 1)[context.last().indices_D][None]


def main() -> None:
    options = benchmark_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    num_rounds = 1 if options.quick else 15

    figures: dict[str, float] = {}
    for name, config in MODELS.items():
        figures |= {f"{key}_{name}": value for key, value in compare(config, num_rounds).items()}
    figures = {"ttft_ratio": figures["ttft_ratio_wide"]} | figures
    report = {
        "figures": figures,
        "peer": "the same engine and model without the bypass",
        "setting": {
            "prompt_tokens": PROMPT_TOKENS,
            "rounds": num_rounds,
            "seed": SEED,
            "threads": 1,
            "precision": "fp32",
            "clock": "CPU time of the process",
            "parameters": {name: num_parameters(config) for name, config in MODELS.items()},
            "layers": {name: f"{len(c.own_layers)} + {len(c.layers) - len(c.own_layers)}" for name, c in MODELS.items()},
            "torch": torch.__version__,
            "machine": platform.machine(),
        },
    }
    hand_in(report, REPORT, options)


def compare(config: DecoderConfig, num_rounds: int) -> dict[str, float]:
    """Alternate the two engines over the same prompts; the first engine alternates too."""
    ours = TorchEngine(config.build(SEED))
    peer = TorchEngine(EveryLayer(config, SEED))
    generator = np.random.default_rng(SEED)
    ours_s, peer_s, gaps = [], [], []
    for round_index in range(-1, num_rounds):  # the first warms up
        prompt = generator.integers(config.vocab_size, size=PROMPT_TOKENS).tolist()
        sides = [ours, peer] if round_index % 2 else [peer, ours]
        seconds, logits = {}, {}
        for engine in sides:
            seconds[engine], logits[engine] = time_to_first_token(engine, prompt)
        if round_index >= 0:
            ours_s.append(seconds[ours])
            peer_s.append(seconds[peer])
            gaps.append(float(np.abs(logits[ours] - logits[peer]).max()))
    return {
        "ttft_ratio": round(statistics.median(a / b for a, b in zip(ours_s, peer_s, strict=True)), 4),
        "ttft_ms": round(1000 * statistics.median(ours_s), 1),
        "peer_ttft_ms": round(1000 * statistics.median(peer_s), 1),
        "arithmetic_ratio": round(arithmetic_ratio(config), 4),
        "largest_logit_gap": float(f"{max(gaps):.2g}"),
    }


def time_to_first_token(engine: TorchEngine, prompt: list[int]) -> tuple[float, np.ndarray]:
    """CPU seconds from the prompt to the first token's logits, and the logits."""
    started = process_time()
    sequence = engine.new_sequence()
    (logits_V,) = engine.step([(sequence, prompt)])
    return process_time() - started, logits_V


def arithmetic_ratio(config: DecoderConfig) -> float:
    """Floating-point operations of the prompt with the bypass to those without, both with one position's head."""
    head = 2 * config.vocab_size * config.dim
    with_bypass = training_flops(config, [PROMPT_TOKENS], 1) / 3
    without = training_flops(config, [PROMPT_TOKENS], PROMPT_TOKENS) / 3 - (PROMPT_TOKENS - 1) * head
    return with_bypass / without


if __name__ == "__main__":
    main()
