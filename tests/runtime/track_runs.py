"""Answers of a server model in the number of processes that the environment sets; started by test_track_parallel.py.

    python track_runs.py BUNDLE

Prints the results of this process as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import torch

from openafm.bundle import Bundle, open_bundle
from openafm.runtime.decoding.sampling import GreedyConfig, RandomConfig, SamplingConfig
from openafm.runtime.engines.kv_cache import TorchCache
from openafm.runtime.engines.selection import open_engine

PROMPT = [5, 9, 2, 40, 11, 7, 33, 8, 21]
NUM_TOKENS = 24
SAMPLERS: dict[str, SamplingConfig] = {
    "greedy": GreedyConfig(),
    "seeded": RandomConfig(temperature=1.2, seed=7),
    "unseeded": RandomConfig(temperature=3.0),
}


def answers(bundle: Bundle) -> dict[str, Any]:
    """Tokens by sampling method, and the bytes of a sequence's cache."""
    engine = open_engine(bundle)
    found: dict[str, Any] = {}
    for name, config in SAMPLERS.items():
        sampler, sequence, tokens = config.build(), engine.new_sequence(), list[int]()
        (logits_V,) = engine.step([(sequence, PROMPT)])
        for position in range(NUM_TOKENS):
            tokens.append(sampler.sample(logits_V, position))
            (logits_V,) = engine.step([(sequence, tokens[-1:])])
        found[name] = tokens
        found["kv_bytes"] = sum(array.nbytes for array in cast(TorchCache, sequence.cache).arrays().values())
        restored = engine.restore(engine.snapshot(sequence))
        (again_V,) = engine.step([(restored, [3])])
        (logits_V,) = engine.step([(sequence, [3])])
        assert (again_V == logits_V).all()
    found["signature"] = engine.signature
    found["parameters"] = sum(parameter.numel() for parameter in cast(Any, engine).decoder.parameters())
    return found


def main() -> None:
    torch.set_num_threads(1)
    try:
        print(json.dumps(answers(open_bundle(Path(sys.argv[1])))))
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
