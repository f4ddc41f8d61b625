"""Trajectory generators that sample with rounded weights against generators in full precision.

The policy is the shipped model with its recovery adapter added to its weights, in fp32. Prompts are extractions from the
built-in corpus. For each of `full`, `int8` and `int4` the benchmark samples the same groups and measures

    tokens_per_second   sampled tokens per CPU-second
    log_ratio           mean over tokens of |log pi - log pi_sampling|, with pi in fp32
    effective_share     effective sample size of the truncated importance weights of a sample, as a share of its tokens
    speedup             tokens per CPU-second over those of `full`
    seconds_to_round    CPU time to round all matrices of a new version

    python benchmarks/rounded_generators.py [--quick] [--json]

A full run writes docs/benchmarks/rounded_generators.json; `--quick` samples few groups and claims nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from time import process_time
from typing import Any, Literal

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from shared.policies import write_shipped_policy
from shared.reporting import hand_in

from openafm.bundle import Bundle
from openafm.compression.native_numerics import native_numerics
from openafm.data.synthetic import SyntheticConfig
from openafm.rl.decoding import DecodedGroup, GroupDecoder, GroupRequest
from openafm.rl.environments.corpus import CorpusPromptsConfig
from openafm.rl.generator import sample_seed
from openafm.rl.reference import reference_log_probs
from openafm.runtime.native.engine import NativeEngine
from openafm.training.objectives.policy_config import RLOOConfig

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "rounded_generators.json"
GROUP_SIZE = 8
Weights = Literal["full", "int8", "int4"]
WEIGHTS: tuple[Weights, ...] = ("full", "int8", "int4")


def engine(bundle: Bundle, weights: Weights) -> NativeEngine:
    numerics = None if weights == "full" else native_numerics(bundle.config, weights)
    return NativeEngine(bundle, num_threads=1, numerics=numerics)


def sample(bundle: Bundle, sampler: NativeEngine, num_groups: int) -> list[DecodedGroup]:
    prompts = CorpusPromptsConfig(corpus=SyntheticConfig(seed=5, tasks={"event": 1.0}, languages={"en": 1.0})).build()
    decoder = GroupDecoder(sampler, bundle.tokenizer, bundle.template, temperature=1.0, max_tokens=64, max_turns=1)
    requests = [
        GroupRequest(
            number=number,
            prompt=prompts.prompt(number),
            environments=[None] * GROUP_SIZE,
            seeds=[sample_seed(0, number, index) for index in range(GROUP_SIZE)],
        )
        for number in range(num_groups)
    ]
    return list(decoder.decode(requests, max_rows=4 * GROUP_SIZE))


def ratios(groups: list[DecodedGroup], reference: NativeEngine, objective: RLOOConfig) -> list[np.ndarray]:
    """Return log pi - log pi_sampling of the chosen tokens of each sample."""
    found = []
    for group in groups:
        trajectories = group.trajectories()
        exact = reference_log_probs(reference, trajectories, objective)
        pairs = zip(trajectories, exact, strict=True)
        found += [(log_probs - each.log_probs_N)[each.loss_mask_N] for each, log_probs in pairs]
    return [each for each in found if len(each)]


def measure(bundle: Bundle, num_groups: int) -> dict[str, dict[str, float]]:
    objective = RLOOConfig(num_tokens=bundle.tokenizer.vocab_size)
    reference, tensors = engine(bundle, "full"), bundle.tensors()
    results: dict[str, dict[str, float]] = {}
    for weights in WEIGHTS:
        sampler = engine(bundle, weights)
        start = process_time()
        sampler.update_weights(tensors, 1)
        seconds_to_round = process_time() - start
        sample(bundle, sampler, 1)  # the grammar is compiled
        start = process_time()
        groups = sample(bundle, sampler, num_groups)
        seconds = process_time() - start
        found = ratios(groups, reference, objective)
        importance = [np.exp(each).clip(max=objective.truncation) for each in found]
        shares = [each.sum() ** 2 / (len(each) * (each**2).sum()) for each in importance]
        num_tokens = sum(len(each.tokens_N) for group in groups for each in group.samples)
        results[weights] = {
            "tokens_per_second": round(num_tokens / seconds, 1),
            "log_ratio": round(float(np.abs(np.concatenate(found)).mean()), 5),
            "effective_share": round(float(np.mean(shares)), 4),
            "seconds_to_round": round(seconds_to_round, 3),
        }
    return results


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        results = measure(write_shipped_policy(Path(work) / "policy"), num_groups=4 if options.quick else 48)
    figures: dict[str, Any] = {
        f"{weights}_{name}": value for weights, found in results.items() for name, value in found.items()
    }
    for weights in WEIGHTS[1:]:
        speedup = results[weights]["tokens_per_second"] / results["full"]["tokens_per_second"]
        figures[f"{weights}_speedup"] = round(speedup, 2)
    hand_in({"figures": figures, "results": results}, REPORT, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
