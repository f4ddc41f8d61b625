"""Speed of a server model, with tracks and experts, on the native engine and on torch. Random weights, one thread.

    python benchmarks/server_native.py [--quick] [--json] [--size server.nano]

Two numerics: fp32, and those of an ASTC bundle whose blocks are decoded, bfloat16 with keys and values in 8 bits. The
engines take turns; the least processor time of each counts, which other programs disturb little. A full run writes
docs/benchmarks/server_native.json.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from shared.reporting import benchmark_parser, hand_in

from openafm.bundle import Bundle, open_bundle, shipped_bundle, write_bundle
from openafm.compression.numerics import FULL_PRECISION, Numerics
from openafm.models.sizes import named_size
from openafm.runtime.engines.base import Engine
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.runtime.native.engine import NativeEngine

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "server_native.json"
NUMERICS = {
    "fp32": FULL_PRECISION,
    "decoded_astc": Numerics(activations="bfloat16", kv="int8_per_token_head"),
}
PROMPT_TOKENS, NUM_SEQUENCES = 256, 8
STEPS, QUICK_STEPS = 100, 10  # decode steps of a turn
TURNS, QUICK_TURNS = 7, 3


def main() -> None:
    parser = benchmark_parser(__doc__, "fewer and shorter turns; nothing is written")
    parser.add_argument("--size", default="server.nano", help="a size with tracks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"size": options.size}
    for name, numerics in NUMERICS.items():
        with TemporaryDirectory() as folder:
            bundle = random_bundle(Path(folder) / "b", options.size, numerics)
            engines = {"native": NativeEngine(bundle, num_threads=1), "torch": TorchEngine.open(bundle)}
            for kind, rates in compare(engines, options.quick).items():
                figures |= {f"{name}_{kind}_{engine}_tokens_s": round(rate, 1) for engine, rate in rates.items()}
                figures[f"{name}_{kind}_ratio"] = round(rates["native"] / rates["torch"], 2)
    hand_in({"figures": figures}, REPORT, options)


def random_bundle(path: Path, size: str, numerics: Numerics) -> Bundle:
    """Write a bundle of random weights with the shipped model's tokenizer."""
    config, shipped = named_size(size), shipped_bundle()
    assert shipped is not None
    words = open_bundle(shipped)
    tensors = {name: tensor.numpy() for name, tensor in config.build(seed=1).state_dict().items()}
    return write_bundle(
        path, config=config, tokenizer=words.tokenizer, template=words.template, tensors=tensors, numerics=numerics
    )


def compare(engines: dict[str, Engine], quick: bool) -> dict[str, dict[str, float]]:
    """Return tokens per second of processor time of each engine: decode of one and of several sequences, and prefill."""
    num_steps, num_turns = (QUICK_STEPS, QUICK_TURNS) if quick else (STEPS, TURNS)
    best: dict[str, dict[str, float]] = {}
    for _ in range(num_turns):
        for name, engine in engines.items():
            for kind, count in (("decode_1", 1), ("decode_8", NUM_SEQUENCES)):
                rate = decode_rate(engine, count, num_steps)
                best.setdefault(kind, {})[name] = max(rate, best.get(kind, {}).get(name, 0))
            rate = prefill_rate(engine)
            best.setdefault("prefill", {})[name] = max(rate, best.get("prefill", {}).get(name, 0))
    return best


def decode_rate(engine: Engine, num_sequences: int, num_steps: int) -> float:
    sequences = [engine.new_sequence() for _ in range(num_sequences)]
    for number, sequence in enumerate(sequences):
        engine.step([(sequence, prompt(engine, number))])
    start = time.process_time()
    for step in range(num_steps):
        engine.step([(sequence, [step % engine.vocab_size]) for sequence in sequences])
    seconds = time.process_time() - start
    for sequence in sequences:
        engine.close(sequence)
    return num_sequences * num_steps / seconds


def prefill_rate(engine: Engine) -> float:
    sequence = engine.new_sequence()
    start = time.process_time()
    engine.step([(sequence, prompt(engine, 0))])
    seconds = time.process_time() - start
    engine.close(sequence)
    return PROMPT_TOKENS / seconds


def prompt(engine: Engine, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(engine.vocab_size, size=PROMPT_TOKENS)]


if __name__ == "__main__":
    main()
