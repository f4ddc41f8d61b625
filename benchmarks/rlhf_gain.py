"""Reinforcement learning against the fine-tuned bundle that it starts from: held-out exact match, wins and losses.

The recipe `on_device.rlhf` trains the policy at micro size from `--from` on prompts of the training split, for each seed.
Both bundles then answer held-out prompts, greedy and under the grammar of their schema. `sft` and `rlhf` are shares of
answers that equal the reference; `win` and `loss` are shares of prompts on which the trained policy has more, or fewer,
correct fields. The interval of `rlhf` minus `sft` is a 95 % bootstrap over prompts and seeds.

    python benchmarks/rlhf_gain.py --from BUNDLE [--steps N] [--seeds N] [--prompts N] [--quick] [--json]

A full run takes hours of CPU time and writes docs/benchmarks/rlhf_gain.json. `--quick` trains a bundle of random weights for
two steps and claims nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from shared.policies import write_policy
from shared.reporting import hand_in

from openafm.bundle import Bundle, open_bundle
from openafm.data.synthetic import SyntheticConfig
from openafm.evaluation.held_out import MAX_TOKENS
from openafm.recipes.reinforcement import prepare_rl_run, run_rl_recipe
from openafm.rl.config import RLConfig, replay_data
from openafm.rl.environments.corpus import CorpusPromptsConfig
from openafm.rl.prompts import RLPrompt
from openafm.rl.rewards.structured import FieldsConfig
from openafm.rl.trajectories import Sample
from openafm.runtime.decoding.generation import generate
from openafm.runtime.decoding.grammar import GrammarCompiler
from openafm.runtime.decoding.sampling import GreedyConfig
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.tokenizer.conversation import AssistantTurn, UserTurn
from openafm.tokenizer.template import opened
from openafm.training.budgets import StepBudget

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "rlhf_gain.json"


@dataclass(frozen=True, kw_only=True)
class Graded:
    """The share of correct fields of an answer."""

    fields: float

    @property
    def is_exact(self) -> bool:
        return self.fields == 1.0


def grade(bundle: Bundle, prompts: Sequence[RLPrompt]) -> list[Graded]:
    """Return the grades of a bundle's greedy answers."""
    engine, tokenizer, template = TorchEngine.open(bundle), bundle.tokenizer, bundle.template
    grammars, samples = GrammarCompiler(tokenizer, template), []
    for prompt in prompts:
        last = prompt.conversation.turns[-1]
        assert isinstance(last, UserTurn)
        assert last.response_format is not None
        tokens = template.encode(tokenizer, opened(prompt.conversation.turns)).tokens
        generation = generate(
            engine,
            engine.new_sequence(),
            [*tokens, *template.generation_prompt(tokenizer)],
            sampling=GreedyConfig(),
            stop_tokens=template.stop_tokens(tokenizer),
            max_tokens=MAX_TOKENS,
            grammar=grammars.json_schema(last.response_format),
        )
        turn = template.parse_assistant(tokenizer, [event.token for event in generation])
        samples.append(sample_of(prompt, turn))
    return [Graded(fields=score.reward) for score in FieldsConfig().build()(samples)]


def sample_of(prompt: RLPrompt, turn: AssistantTurn) -> Sample:
    return Sample(prompt=prompt, turns=(turn,), text=turn.text, finish_reason="stop", num_tokens=1)


def held_out_prompts(count: int, seed: int) -> list[RLPrompt]:
    corpus = SyntheticConfig(seed=seed, split="held_out", tasks={"event": 1.0}, languages={"en": 1.0})
    source = CorpusPromptsConfig(corpus=corpus).build()
    return [source.prompt(number) for number in range(count)]


def configured(start: str, steps: int, seed: int, *, quick: bool) -> RLConfig:
    config = prepare_rl_run("on_device.rlhf", "micro", start=start, changes={"trainer.seed": str(seed)})
    assert isinstance(config.prompts, CorpusPromptsConfig)
    corpus = replace(config.prompts.corpus, seed=1 + seed)
    trainer = replace(config.trainer, budget=StepBudget(num_steps=steps))
    if quick:
        trainer = replace(trainer, data=replay_data(8, row_tokens=512))
        config = replace(config, groups_per_task=1, group_size=4, max_tokens=16)
    return replace(config, prompts=replace(config.prompts, corpus=corpus), trainer=trainer)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean by 2,000 bootstrap samples."""
    rng = random.Random(0)
    means = sorted(statistics.fmean(rng.choices(differences, k=len(differences))) for _ in range(2000))
    return means[49], means[1949]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--from", dest="start")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--generators", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.steps, options.seeds, options.prompts = 2, 1, 4
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        os.environ["OPENAFM_HOME"] = str(Path(work) / "home")
        if options.start is None and not options.quick:
            parser.error("a full run needs --from BUNDLE, such as the one of on_device.sft")
        start = options.start or str(write_policy(Path(work) / "policy", dim=64, num_layers=2).path)
        prompts = held_out_prompts(options.prompts, seed=0)
        before = grade(open_bundle(start), prompts)
        pairs: list[tuple[Graded, Graded]] = []
        for seed in range(options.seeds):
            config = configured(start, options.steps, seed, quick=options.quick)
            run_rl_recipe(config, Path(work) / f"run-{seed}", f"policy-{seed}", num_generators=options.generators)
            pairs += zip(before, grade(open_bundle(f"policy-{seed}"), prompts), strict=True)
    differences = [float(after.is_exact) - float(first.is_exact) for first, after in pairs]
    low, high = interval(differences)
    figures = {
        "sft": statistics.fmean(first.is_exact for first, _ in pairs),
        "rlhf": statistics.fmean(after.is_exact for _, after in pairs),
        "win": statistics.fmean(after.fields > first.fields for first, after in pairs),
        "loss": statistics.fmean(after.fields < first.fields for first, after in pairs),
        "sft_fields": statistics.fmean(first.fields for first, _ in pairs),
        "rlhf_fields": statistics.fmean(after.fields for _, after in pairs),
        "difference_low": low,
        "difference_high": high,
    }
    hand_in({"figures": figures, **figures, "steps": options.steps, "seeds": options.seeds}, REPORT, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
