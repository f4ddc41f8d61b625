"""Effects of shared keys and values, tracks and experts on quality, speed and cache: small models, several seeds.

Two comparisons, each at equal tokens, equal batches in equal order and equal hyperparameters:

- `plain` and `kv_shared` (report 2.1): 8 layers with their own keys and values; and 5 such layers and 3 that read those of
  the fifth. Equal parameters within 1 %: wider feed-forwards replace the missing projections.
- `dense`, `tracks` and `tracks_experts` (report 2.2): 8 layers in one stack with 3 local attentions per global one; the same
  heads and feed-forwards divided over 4 tracks that combine every 4 layers; and the latter with 4 experts per track, 2 of
  them chosen, in every second layer. Equal active FLOPs within 1 %; the parameters differ and are reported.

All models train alternately, one update each, so that tokens per CPU-second compare. Three seeds determine weights and data
order. A full run has 300 updates of 2,048 tokens, 614,400 tokens, for each of 5 models and 3 seeds, about 20 minutes on
one thread: 0.7 to 1 million parameters in an early stage of training. It shows costs in quality at that scale, not at
larger ones.

The data is the built-in corpus in English; the loss is that of its held-out split, which shares no sentence frame, name,
place or title with the training split. `--data FOLDER` uses text instead (.txt, .md, .jsonl) and holds out a twentieth of
its documents. Differences are of pairs with the same seed: mean, and half the range as spread.

    python benchmarks/architecture_quality.py [--quick] [--json] [--data FOLDER] [--out FILE.png]

A full run writes docs/benchmarks/architecture_quality.json. `--quick` claims nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from time import process_time

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from openafm.data.documents import ChatDocument, DocumentFiles, texts_of
from openafm.data.loading.loader import Loader, LoaderConfig, SourceConfig
from openafm.data.pack import PackConfig, pack_path, pack_synthetic
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.models.accounting import active_parameters, kv_bytes, kv_bytes_per_token, num_parameters, training_flops
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    FeedForwardConfig,
    LayerConfig,
    OwnKeysValuesConfig,
    RotaryConfig,
    TracksConfig,
)
from openafm.models.feed_forward.experts_config import ExpertsConfig
from openafm.models.sizes import shared_kv_decoder
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.training.budgets import StepBudget
from openafm.training.config import TrainerConfig
from openafm.training.initialization import fresh_state
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.schedules import WarmupStableDecay
from openafm.training.trainer import Trainer

VOCAB_SIZE, DIM, NUM_LAYERS, NUM_HEADS, HEAD_DIM, HIDDEN_DIM = 2048, 64, 8, 4, 32, 256
NUM_TRACKS, BLOCK_DEPTH, WINDOW, NUM_EXPERTS, NUM_CHOSEN = 4, 4, 64, 4, 2
ROWS, ROW_TOKENS, CONTEXT = 4, 512, 1024
TOLERANCE = 0.01
ENGLISH = SyntheticConfig(languages={"en": 1.0})
REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "architecture_quality.json"


@dataclass(frozen=True, kw_only=True)
class Size:
    seeds: tuple[int, ...]
    updates: int
    examples: int
    held_out_batches: int


FULL = Size(seeds=(0, 1, 2), updates=300, examples=20_000, held_out_batches=8)
QUICK = Size(seeds=(0, 1), updates=4, examples=1_500, held_out_batches=1)


@dataclass(kw_only=True)
class Run:
    """One model under one seed."""

    trainer: Trainer
    seconds: float = 0.0
    curve: dict[int, float] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code, under a minute")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    parser.add_argument("--data", type=Path, help="a folder of text to train on instead of the built-in corpus")
    parser.add_argument("--out", type=Path, help="a PNG of the losses")
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = QUICK if options.quick else FULL
    models = {
        "plain": plain(),
        "kv_shared": kv_shared(),
        "dense": stack(),
        "tracks": tracks(),
        "tracks_experts": tracks_experts(),
    }
    check_equal(models)
    with tempfile.TemporaryDirectory() as folder:
        train, held_out = pack(Path(folder), options.data, size)
        results = {seed: train_side_by_side(models, train, held_out, seed, size) for seed in size.seeds}
    figures = {
        "loss": losses_of(results),
        "loss_differences": {
            "kv_shared - plain": difference(results, "kv_shared", "plain"),
            "tracks - dense": difference(results, "tracks", "dense"),
            "tracks_experts - dense": difference(results, "tracks_experts", "dense"),
            "tracks_experts - tracks": difference(results, "tracks_experts", "tracks"),
        },
        "tokens_per_cpu_second": {name: round(tokens_per_second(results, name, size)) for name in models},
        "kv_bytes_per_token": {name: kv_bytes_per_token(model, "bfloat16").total for name, model in models.items()},
        "kv_bytes_of_65536_tokens": {name: kv_bytes(model, "bfloat16", 65_536) for name, model in models.items()},
        "parameters": {name: num_parameters(model) for name, model in models.items()},
        "active_parameters": {name: active_parameters(model) for name, model in models.items()},
        "megaflops_per_token": {name: round(flops_per_token(model) / 1e6, 3) for name, model in models.items()},
    }
    report = {"figures": figures, "setting": describe(size, options.data, train)}
    if not options.quick:
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if options.out is not None:
        draw(results, options.out)
    if not options.json:
        print_table(figures)
    print(json.dumps(report))


def plain() -> DecoderConfig:
    return shared_kv_decoder(
        vocab_size=VOCAB_SIZE,
        dim=DIM,
        num_own_layers=NUM_LAYERS,
        num_shared_layers=0,
        num_heads=NUM_HEADS,
        num_kv_heads=NUM_HEADS // 2,
        head_dim=HEAD_DIM,
        hidden_dim=HIDDEN_DIM,
        context_length=CONTEXT,
    )


def kv_shared() -> DecoderConfig:
    """5 of 8 layers with keys and values; feed-forwards of the width for as many parameters as `plain`."""

    def shape(hidden_dim: int) -> DecoderConfig:
        return shared_kv_decoder(
            vocab_size=VOCAB_SIZE,
            dim=DIM,
            num_own_layers=5,
            num_shared_layers=NUM_LAYERS - 5,
            num_heads=NUM_HEADS,
            num_kv_heads=NUM_HEADS // 2,
            head_dim=HEAD_DIM,
            hidden_dim=hidden_dim,
            context_length=CONTEXT,
        )

    wanted = num_parameters(plain())
    return min(map(shape, range(HIDDEN_DIM, HIDDEN_DIM + 64, 2)), key=lambda config: abs(num_parameters(config) - wanted))


def stack() -> DecoderConfig:
    """A single stack with the attention of the server model: 3 local, then 1 global without positions."""
    return decoder(NUM_HEADS, [DenseFeedForwardConfig(hidden_dim=HIDDEN_DIM)], tracks=None)


def tracks() -> DecoderConfig:
    return decoder(
        NUM_HEADS // NUM_TRACKS,
        [DenseFeedForwardConfig(hidden_dim=HIDDEN_DIM // NUM_TRACKS)],
        TracksConfig(num_tracks=NUM_TRACKS, block_depth=BLOCK_DEPTH),
    )


def tracks_experts() -> DecoderConfig:
    dense = DenseFeedForwardConfig(hidden_dim=HIDDEN_DIM // NUM_TRACKS)
    experts = ExpertsConfig(num_experts=NUM_EXPERTS, hidden_dim=HIDDEN_DIM // NUM_TRACKS // NUM_CHOSEN)
    return decoder(NUM_HEADS // NUM_TRACKS, [dense, experts], TracksConfig(num_tracks=NUM_TRACKS, block_depth=BLOCK_DEPTH))


def decoder(num_heads: int, feed_forwards: list[FeedForwardConfig], tracks: TracksConfig | None) -> DecoderConfig:
    """Return layers with alternating feed-forwards and the heads of a track."""

    def layer(index: int) -> LayerConfig:
        is_global = index % 4 == 3
        attention = AttentionConfig(
            num_heads=num_heads,
            head_dim=HEAD_DIM,
            keys_values=OwnKeysValuesConfig(num_heads=num_heads),
            window=None if is_global else WINDOW,
            position=None if is_global else RotaryConfig(),
        )
        return LayerConfig(attention=attention, feed_forward=feed_forwards[index % len(feed_forwards)])

    layers = tuple(layer(index) for index in range(NUM_LAYERS))
    return DecoderConfig(vocab_size=VOCAB_SIZE, dim=DIM, layers=layers, context_length=CONTEXT, tracks=tracks)


def check_equal(models: Mapping[str, DecoderConfig]) -> None:
    """Check that the compared models are equal in the stated quantities."""
    assert abs(num_parameters(models["kv_shared"]) / num_parameters(models["plain"]) - 1) < TOLERANCE
    for name in ("tracks", "tracks_experts"):
        assert abs(flops_per_token(models[name]) / flops_per_token(models["dense"]) - 1) < TOLERANCE, name


def flops_per_token(config: DecoderConfig) -> float:
    """Return the operations of forward and backward passes over full rows."""
    return training_flops(config, [ROW_TOKENS], ROW_TOKENS) / ROW_TOKENS


def pack(folder: Path, data: Path | None, size: Size) -> tuple[LoaderConfig, LoaderConfig]:
    """Return the training and the held-out token shards."""
    if data is None:
        examples = chain.from_iterable(texts_of(ChatDocument(conversation=c)) for c in generate(ENGLISH, size.examples))
        tokenizer = train_tokenizer(TokenizerConfig(vocab_size=VOCAB_SIZE), examples)
        pack_synthetic(ENGLISH, size.examples, folder / "train", tokenizer, ChatTemplate())
        held_out = replace(ENGLISH, split="held_out")
        pack_synthetic(held_out, max(400, size.examples // 20), folder / "train" / "held_out", tokenizer, ChatTemplate())
    else:
        texts: Iterable[str] = chain.from_iterable(texts_of(document) for document in DocumentFiles(data))
        tokenizer = train_tokenizer(TokenizerConfig(vocab_size=VOCAB_SIZE), texts)
        pack_path(data, folder / "train", tokenizer, ChatTemplate(), PackConfig(source="text", held_out=0.05))
    return loader_config(folder / "train"), loader_config(folder / "train" / "held_out")


def loader_config(folder: Path) -> LoaderConfig:
    source = SourceConfig(name=folder.name, path=str(folder))
    return LoaderConfig(sources=(source,), rows_per_step=ROWS, row_tokens=ROW_TOKENS)


def train_side_by_side(
    models: Mapping[str, DecoderConfig], data: LoaderConfig, held_out: LoaderConfig, seed: int, size: Size
) -> dict[str, Run]:
    """Train every model with one seed on the same batches, one update each in turn."""
    data = replace(data, seed=seed)
    loader, tests = data.build(), held_out.build()
    runs = {name: new_run(model, data, loader, seed, size) for name, model in models.items()}
    for step in range(size.updates):
        batch = loader.batch(step)
        for run in runs.values():
            started = process_time()
            run.trainer.update(batch)
            run.seconds += process_time() - started
        if (step + 1) % max(1, size.updates // 8) == 0:
            for run in runs.values():
                run.curve[step + 1] = held_out_loss(run.trainer, tests, size.held_out_batches)
            print(f"seed {seed} update {step + 1}: {latest(runs)}", file=sys.stderr)
    return runs


def new_run(model: DecoderConfig, data: LoaderConfig, loader: Loader, seed: int, size: Size) -> Run:
    config = TrainerConfig(
        model=model,
        data=data,
        budget=StepBudget(num_steps=size.updates),
        optimizer=AdamWConfig(learning_rate=2e-3, weight_decay=0.0),
        schedule=WarmupStableDecay(decay_fraction=0.3),
        seed=seed,
        num_threads=1,
    )
    return Run(trainer=Trainer(config, fresh_state(config, "cpu"), loader))


@torch.no_grad()
def held_out_loss(trainer: Trainer, tests: Loader, num_batches: int) -> float:
    """Return the mean cross entropy of the next token, in nats, without routing losses."""
    total, count = 0.0, 0
    for step in range(num_batches):
        losses = trainer.objective(trainer.state.model, tests.batch(step))
        total += float(losses.parts.get("cross_entropy", losses.total))
        count += losses.count
    return total / count


Results = Mapping[int, Mapping[str, Run]]


def final(run: Run) -> float:
    return run.curve[max(run.curve)]


def latest(runs: Mapping[str, Run]) -> str:
    return "  ".join(f"{name} {final(run):.3f}" for name, run in runs.items())


def spread(values: list[float]) -> dict[str, object]:
    return {
        "mean": round(statistics.mean(values), 4),
        "spread": round((max(values) - min(values)) / 2, 4),
        "by_seed": [round(value, 4) for value in values],
    }


def losses_of(results: Results) -> dict[str, dict[str, object]]:
    names = next(iter(results.values()))
    return {name: spread([final(runs[name]) for runs in results.values()]) for name in names}


def difference(results: Results, name: str, other: str) -> dict[str, object]:
    return spread([final(runs[name]) - final(runs[other]) for runs in results.values()])


def tokens_per_second(results: Results, name: str, size: Size) -> float:
    tokens = ROWS * ROW_TOKENS * size.updates
    return statistics.median(tokens / runs[name].seconds for runs in results.values())


def describe(size: Size, data: Path | None, loader: LoaderConfig) -> dict[str, object]:
    return {
        "claims": "nothing, a smoke run" if size is QUICK else "the figures of this machine",
        "data": "the built-in corpus in English" if data is None else f"text in {data.name}",
        "seeds": list(size.seeds),
        "updates": size.updates,
        "tokens_per_update": loader.rows_per_step * loader.row_tokens,
        "precision": "fp32",
        "loss": "nats per token of held-out documents; spread is half the range over seeds",
        "kv_numerics": "bfloat16",
        "clock": "CPU time of the process, models in turn",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "machine": platform.machine(),
    }


def draw(results: Results, path: Path) -> None:
    """Plot the held-out loss over tokens: mean and range over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    groups = {"equal parameters": ("plain", "kv_shared"), "equal active FLOPs": ("dense", "tracks", "tracks_experts")}
    for panel, (title, names) in zip(panels, groups.items(), strict=True):
        for name in names:
            curves = [runs[name].curve for runs in results.values()]
            tokens = [step * ROWS * ROW_TOKENS for step in curves[0]]
            points = list(zip(*(curve.values() for curve in curves), strict=True))
            panel.plot(tokens, [statistics.mean(point) for point in points], label=name.replace("_", " "))
            panel.fill_between(tokens, [min(point) for point in points], [max(point) for point in points], alpha=0.2)
        panel.set(title=title, xlabel="tokens", ylabel="held-out loss")
        panel.legend()
    figure.savefig(path, dpi=120)


def print_table(figures: Mapping[str, dict[str, object]]) -> None:
    columns = ("tokens_per_cpu_second", "kv_bytes_per_token", "parameters", "active_parameters", "megaflops_per_token")
    print(f"{'model':16} {'loss':>16} " + " ".join(f"{column:>21}" for column in columns))
    for name, loss in figures["loss"].items():
        assert isinstance(loss, dict)
        shown = f"{loss['mean']:.3f} +- {loss['spread']:.3f}"
        print(f"{name:16} {shown:>16} " + " ".join(f"{figures[column][name]:>21}" for column in columns))
    for name, gap in figures["loss_differences"].items():
        assert isinstance(gap, dict)
        print(f"{name:26} {gap['mean']:+.4f} +- {gap['spread']:.4f}  by seed {gap['by_seed']}")


if __name__ == "__main__":
    main()
