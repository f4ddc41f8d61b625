"""Training speed of `server.nano` and of a transformers Qwen3Moe with equal active FLOPs: tokens per CPU-second.

Both train on the same tokens in every update (4 full rows of 512), in the same precision, with fused AdamW and clipping,
uncompiled, on one thread, with the same vocabulary, and both add the balance loss of their routers. They alternate in one
run; each ratio is the median over rounds. Ours is the trainer's whole `update`; the reference is a bare loop around its
model.

The reference is a single stack of layers of the same width and depth, with the heads and the experts (16, of which a token
uses 8) of the four tracks together. It has two variants, whose feed-forwards balance the cost of attention: `full` attends
to all earlier positions (the usual Qwen3Moe), `windowed` in all layers to the window of our local layers. Both use the
faster of transformers' implementations of experts, found by measurement. `ratio` is relative to the faster variant.

    python benchmarks/moe_training.py [--quick] [--json]

A full run takes about 5 minutes and writes docs/benchmarks/moe_training.json. `--quick` claims nothing.
"""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from time import process_time

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
import transformers
from shared.reporting import benchmark_parser, hand_in

from openafm.data.loading.loader import Loader, LoaderConfig, SourceConfig
from openafm.data.shards.writer import write_shards
from openafm.models.accounting import active_parameters, num_parameters, training_flops
from openafm.models.config import AttentionConfig, DecoderConfig, DenseFeedForwardConfig, LayerConfig, OwnKeysValuesConfig
from openafm.models.feed_forward.experts_config import ALIGNMENT, ExpertsConfig, TopKRouterConfig
from openafm.models.sizes import named_size
from openafm.training.budgets import StepBudget
from openafm.training.config import BFloat16Config, Float32Config, PrecisionConfig, TrainerConfig
from openafm.training.initialization import fresh_state
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.schedules import Constant
from openafm.training.trainer import Trainer

ROWS, ROW_TOKENS = 4, 512
EXPERTS_IMPLEMENTATIONS = ("grouped_mm", "eager")  # the third gathers weights per token, gigabytes here
TOLERANCE = 0.01
PRECISIONS: dict[str, PrecisionConfig] = {"fp32": Float32Config(), "bf16": BFloat16Config()}
OPTIMIZER = AdamWConfig(learning_rate=3e-4, weight_decay=0.0)
REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "moe_training.json"

Update = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Size:
    """`rounds` alternations of `updates` updates each."""

    model: str
    rounds: int
    updates: int


FULL, QUICK = Size(model="server.nano", rounds=5, updates=2), Size(model="server.micro", rounds=1, updates=1)


def main() -> None:
    options = benchmark_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    size = QUICK if options.quick else FULL

    ours = named_size(size.model)
    peers = {"full": peer_shape(ours, window=None), "windowed": peer_shape(ours, window=ours.layers[0].attention.window)}
    with tempfile.TemporaryDirectory() as folder:
        figures, implementations = compare_all(ours, peers, full_rows(Path(folder), ours.vocab_size), size)
    report = {
        "figures": {"ratio": figures.pop("ratio")} | figures,
        "peer": f"transformers {transformers.__version__} Qwen3MoeForCausalLM",
        "setting": describe(ours, peers, implementations, size),
    }
    hand_in(report, REPORT, options)


def compare_all(
    ours: DecoderConfig, peers: dict[str, DecoderConfig], loader: Loader, size: Size
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the figures, and the implementation of experts of each reference."""
    figures: dict[str, float] = {}
    implementations: dict[str, str] = {}
    for precision in PRECISIONS:
        suffix = "" if precision == "fp32" else f"_{precision}"
        for kind, shape in peers.items():
            peer, implementations[kind + suffix] = fastest_peer(shape, precision, loader)
            seconds = alternate(our_update(ours, precision, loader), peer, size)
            tokens = ROWS * ROW_TOKENS * size.updates
            figures |= {
                f"ratio_{kind}{suffix}": round(statistics.median(b / a for a, b in seconds), 3),
                f"tokens_per_cpu_second_{kind}{suffix}": round(tokens / statistics.median(a for a, _ in seconds), 1),
                f"peer_tokens_per_cpu_second_{kind}{suffix}": round(tokens / statistics.median(b for _, b in seconds), 1),
            }
        figures[f"ratio{suffix}"] = min(figures[f"ratio_{kind}{suffix}"] for kind in peers)
    return figures, implementations


def alternate(ours: Update, peer: Update, size: Size) -> list[tuple[float, float]]:
    """Return CPU seconds of both by round; the order alternates too. The first updates warm up."""
    ours()
    peer()
    seconds = []
    for round_index in range(size.rounds):
        order = (ours, peer) if round_index % 2 else (peer, ours)
        taken = {side: seconds_of(side, size.updates) for side in order}
        seconds.append((taken[ours], taken[peer]))
    return seconds


def seconds_of(update: Update, count: int) -> float:
    started = process_time()
    for _ in range(count):
        update()
    return process_time() - started


def our_update(model: DecoderConfig, precision: str, loader: Loader) -> Update:
    config = TrainerConfig(
        model=model,
        data=loader.config,
        budget=StepBudget(num_steps=1000),
        optimizer=OPTIMIZER,
        schedule=Constant(warmup_fraction=0.0),
        precision=PRECISIONS[precision],
    )
    trainer, steps = Trainer(config, fresh_state(config, "cpu"), loader), count()
    return lambda: trainer.update(loader.batch(next(steps))).loss


def fastest_peer(shape: DecoderConfig, precision: str, loader: Loader) -> tuple[Update, str]:
    """Return the reference with the implementation of experts that has the fastest of three updates, after a warm-up."""
    sides = {name: peer_update(shape, precision, name, loader) for name in EXPERTS_IMPLEMENTATIONS}
    for update in sides.values():
        update()
    fastest = min(sides, key=lambda name: min(seconds_of(sides[name], 1) for _ in range(3)))
    return sides[fastest], fastest


def peer_update(shape: DecoderConfig, precision: str, experts_implementation: str, loader: Loader) -> Update:
    torch.manual_seed(0)
    model = transformers.Qwen3MoeForCausalLM(peer_config(shape))
    model.set_experts_implementation(experts_implementation)
    assert model.config._attn_implementation == "sdpa"
    assert model.num_parameters() == num_parameters(shape)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=OPTIMIZER.learning_rate,
        betas=OPTIMIZER.betas,
        eps=OPTIMIZER.eps,
        weight_decay=OPTIMIZER.weight_decay,
        fused=True,
    )
    steps = count()
    in_precision = partial(torch.autocast, "cpu", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext

    def update() -> float:
        tokens_BS = torch.from_numpy(loader.batch(next(steps)).tokens_BS)
        with in_precision():
            loss = model(input_ids=tokens_BS, labels=tokens_BS).loss
        loss.backward()
        assert OPTIMIZER.gradient_clip is not None
        torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER.gradient_clip)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return update


def full_rows(folder: Path, vocab_size: int) -> Loader:
    """Return random documents of the length of a row; the last token of each has no target."""
    generator = np.random.default_rng(0)
    with write_shards(folder, tokenizer_digest="benchmark", vocab_size=vocab_size) as writer:
        for _ in range(200):
            writer.add(generator.integers(1, vocab_size, ROW_TOKENS).tolist())
    source = SourceConfig(name="random", path=str(folder))
    return LoaderConfig(sources=(source,), rows_per_step=ROWS, row_tokens=ROW_TOKENS).build()


def peer_shape(ours: DecoderConfig, window: int | None) -> DecoderConfig:
    """Return the reference as our config, for counting, with feed-forwards of the width for equal operations per update."""
    local, (_, experts) = ours.layers[0].attention, feed_forwards(ours)
    num_heads = ours.kv_heads(0)
    attention = AttentionConfig(
        num_heads=num_heads, head_dim=local.head_dim, keys_values=OwnKeysValuesConfig(num_heads=num_heads), window=window
    )
    num_experts, num_chosen = (ours.num_tracks * count for count in (experts.num_experts, experts.router.num_chosen))

    def shape(expert_dim: int) -> DecoderConfig:
        router = TopKRouterConfig(num_chosen=num_chosen)
        sparse = ExpertsConfig(num_experts=num_experts, hidden_dim=expert_dim, router=router)
        dense = DenseFeedForwardConfig(hidden_dim=num_chosen * expert_dim)
        pair = tuple(LayerConfig(attention=attention, feed_forward=half) for half in (dense, sparse))
        return replace(ours, layers=pair * (len(ours.layers) // 2), tracks=None)

    wanted = update_flops(ours)
    found = min(
        (shape(dim) for dim in range(ALIGNMENT, 512, ALIGNMENT)), key=lambda config: abs(update_flops(config) - wanted)
    )
    assert abs(update_flops(found) / wanted - 1) < TOLERANCE
    return found


def update_flops(config: DecoderConfig) -> int:
    return training_flops(config, [ROW_TOKENS] * ROWS, ROWS * (ROW_TOKENS - 1))


def peer_config(shape: DecoderConfig) -> transformers.Qwen3MoeConfig:
    dense, experts = feed_forwards(shape)
    attention = shape.layers[0].attention
    return transformers.Qwen3MoeConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.dim,
        intermediate_size=dense.hidden_dim,
        moe_intermediate_size=experts.hidden_dim,
        num_experts=experts.num_experts,
        num_experts_per_tok=experts.router.num_chosen,
        decoder_sparse_step=2,
        norm_topk_prob=True,
        num_hidden_layers=len(shape.layers),
        num_attention_heads=attention.num_heads,
        num_key_value_heads=attention.num_heads,
        head_dim=attention.head_dim,
        max_position_embeddings=ROW_TOKENS,
        use_sliding_window=attention.window is not None,
        sliding_window=attention.window,
        output_router_logits=True,
        tie_word_embeddings=True,
        use_cache=False,
    )


def feed_forwards(config: DecoderConfig) -> tuple[DenseFeedForwardConfig, ExpertsConfig]:
    """The two kinds of layers, alternating."""
    dense, experts = (layer.feed_forward for layer in config.layers[:2])
    assert isinstance(dense, DenseFeedForwardConfig)
    assert isinstance(experts, ExpertsConfig)
    return dense, experts


def describe(
    ours: DecoderConfig, peers: dict[str, DecoderConfig], implementations: dict[str, str], size: Size
) -> dict[str, object]:
    """Return the setting of the figures."""
    shapes = {"ours": ours} | peers
    return {
        "claims": "nothing, a smoke run" if size is QUICK else "the figures of this machine",
        "headline": "ratio, in fp32 and against the faster kind of peer; figures in bf16 end in _bf16",
        "gigaflops_per_update": {name: round(update_flops(config) / 1e9, 2) for name, config in shapes.items()},
        "parameters": {name: num_parameters(config) for name, config in shapes.items()},
        "active_parameters": {name: active_parameters(config) for name, config in shapes.items()},
        "peer_experts_implementation": implementations,
        "tokens_per_update": ROWS * ROW_TOKENS,
        "rounds": size.rounds,
        "updates_per_round": size.updates,
        "clock": "CPU time of the process",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "machine": platform.machine(),
    }


if __name__ == "__main__":
    main()
