"""Sequences with different adapters in one step of the native engine, against one step for each adapter.

Eight sequences decode with four adapters of rank 32, two sequences each: all in one step, and in four steps, as engines that
do not share their steps compute them. For comparison the same sequences with one adapter and without any in one step. CPU
time of one thread; the sides alternate and medians over rounds are reported. The logits of the mixed step must equal those
of the steps by adapter bit by bit.

    python benchmarks/mixed_adapters.py [--quick] [--json] [--bundle-folder FOLDER]

The model is the synthetic one of the `on_device.base` shape (native/synthetic.py). A full run takes about five minutes and
3 GB, and writes docs/benchmarks/mixed_adapters.json. `--quick` runs the same code on an eighth of the depth and claims
nothing.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent / "native"))

import numpy as np
from numpy.typing import NDArray
from shared.reporting import benchmark_parser, hand_in
from synthetic import add_bundle_options, synthetic_bundle

from openafm.adapters.config import LoRAConfig
from openafm.adapters.package import AdapterPackage, write_adapter
from openafm.bundle import Bundle
from openafm.runtime.engines.base import Sequence as EngineSequence
from openafm.runtime.native.engine import NativeEngine
from openafm.runtime.native.shapes import matrices

NUM_ADAPTERS, SEQUENCES_EACH, PROMPT_TOKENS, SEED = 4, 2, 16, 0
LORA = LoRAConfig(rank=32)
REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "mixed_adapters.json"


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_bundle_options(parser)
    options = parser.parse_args()
    num_layers, rounds = (7, 5) if options.quick else (56, 24)
    bundle = synthetic_bundle(options.bundle_folder, num_layers=num_layers)
    report = {
        "figures": measured(bundle, rounds),
        "peer": "one step for the sequences of each adapter",
        "setting": {
            "layers": num_layers,
            "adapters": NUM_ADAPTERS,
            "sequences": NUM_ADAPTERS * SEQUENCES_EACH,
            "rank": LORA.rank,
            "threads": 1,
            "rounds": rounds,
            "seed": SEED,
            "clock": "CPU",
            "machine": platform.machine(),
        },
    }
    hand_in(report, REPORT, options)


def measured(bundle: Bundle, rounds: int) -> dict[str, float]:
    """Return the CPU milliseconds of a token of all sequences on every side, and the ratios."""
    base = NativeEngine(bundle, num_threads=1)
    with tempfile.TemporaryDirectory() as folder:
        adapters = [random_adapter(Path(folder) / f"{seed}", bundle, seed) for seed in range(NUM_ADAPTERS)]
        adapted = [NativeEngine(bundle, adapter, beside=base) for adapter in adapters]
    mixed = [started(engine) for engine in adapted]
    grouped = [started(engine) for engine in adapted]
    one = started(adapted[0], NUM_ADAPTERS * SEQUENCES_EACH)
    none = started(base, NUM_ADAPTERS * SEQUENCES_EACH)
    sides: dict[str, Callable[[int], list[NDArray[np.float32]]]] = {
        "mixed": lambda token: stepped(base, [each for group in mixed for each in group], token),
        "by_adapter": lambda token: [row for group in grouped for row in stepped(group[0].engine, group, token)],
        "one_adapter": lambda token: stepped(base, one, token),
        "no_adapter": lambda token: stepped(base, none, token),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    num_equal = 0
    for number in range(-1, rounds):  # the first warms up
        logits = {}
        for name in sorted(sides, reverse=bool(number % 2)):
            begun = process_time()
            logits[name] = sides[name](number + 1)
            if number >= 0:
                times[name].append(process_time() - begun)
        num_equal += np.array_equal(logits["mixed"], logits["by_adapter"])
    milliseconds = {name: 1000 * statistics.median(each) for name, each in times.items()}
    return {
        "speedup": round(milliseconds["by_adapter"] / milliseconds["mixed"], 3),
        "mixed_over_one_adapter": round(milliseconds["mixed"] / milliseconds["one_adapter"], 3),
        "mixed_over_no_adapter": round(milliseconds["mixed"] / milliseconds["no_adapter"], 3),
        "equal_logits": num_equal / (rounds + 1),
        **{f"{name}_ms": round(each, 2) for name, each in milliseconds.items()},
    }


def started(engine: NativeEngine, count: int = SEQUENCES_EACH) -> list[EngineSequence]:
    """Return sequences with a prompt."""
    sequences = [engine.new_sequence() for _ in range(count)]
    draw = np.random.default_rng(SEED)
    prompts = draw.integers(engine.vocab_size, size=(count, PROMPT_TOKENS)).tolist()
    engine.step(list(zip(sequences, prompts, strict=True)))
    return sequences


def stepped(engine: NativeEngine, sequences: Sequence[EngineSequence], token: int) -> list[NDArray[np.float32]]:
    return engine.step([(sequence, [token]) for sequence in sequences])


def random_adapter(path: Path, bundle: Bundle, seed: int) -> AdapterPackage:
    """Write an adapter of all matrices with random weights."""
    draw = np.random.default_rng([SEED, seed])
    weights: dict[str, NDArray[np.float32]] = {}
    for name, (num_outputs, num_inputs) in matrices(bundle.config).items():
        weights[f"{name}.lora.a"] = draw.standard_normal((LORA.rank, num_inputs), np.float32) / num_inputs**0.5
        weights[f"{name}.lora.b"] = draw.standard_normal((num_outputs, LORA.rank), np.float32) * 0.02
    return write_adapter(path, weights=weights, config=LORA, base_signature=bundle.signature, name=f"number_{seed}")


if __name__ == "__main__":
    main()
