"""Reinforcement learning against the fine-tuned bundle that it starts from: held-out exact match, wins and losses.

The recipe `on_device.rlhf` trains the policy from `--from`, by default the shipped model in fp32, on English prompts of the
training split, for each seed. Both bundles then answer held-out prompts, whose frames and words are in no training prompt:
extraction of events and forms under the grammar of their schema, and word problems with a calculator. Answers are sampled
at temperature 0.01. `sft` and `rlhf` are shares of answers that earn the whole reward; `win` and `loss` are shares of
prompts on which the trained policy earns more, or less. The interval of `rlhf` minus `sft` is a 95 % bootstrap over prompts,
each with the mean over seeds; `sft_TASK` and `rlhf_TASK` are the shares of a task.

    python benchmarks/rlhf_gain.py [--from BUNDLE] [--steps N] [--seeds N] [--prompts N] [--work FOLDER] [--quick] [--json]

A full run writes docs/benchmarks/rlhf_gain.json; with `--work` the same command continues a run that was stopped. `--quick`
trains a bundle of random weights for two steps and claims nothing.
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
from time import process_time

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from shared.policies import write_policy, write_shipped_policy
from shared.reporting import hand_in

from openafm.bundle import Bundle, open_bundle
from openafm.data.synthetic import SyntheticConfig
from openafm.evaluation.held_out import MAX_TOKENS
from openafm.recipes.reinforcement import prepare_rl_run, run_rl_recipe
from openafm.rl.config import RLConfig, replay_data
from openafm.rl.decoding import GroupDecoder, GroupRequest
from openafm.rl.environments.corpus import CorpusPromptsConfig
from openafm.runtime.engines.selection import open_engine
from openafm.training.budgets import StepBudget

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "rlhf_gain.json"
TASKS = {"event": 1.0, "form": 1.0, "arithmetic": 1.0}
NEARLY_GREEDY = 0.01
HELD_OUT_SEED = 1000


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The task of a prompt and the reward of the answer."""

    task: str
    reward: float

    @property
    def is_exact(self) -> bool:
        return self.reward == 1.0


def prompts_config(seed: int, split: str) -> CorpusPromptsConfig:
    assert split in ("train", "held_out")
    return CorpusPromptsConfig(corpus=SyntheticConfig(seed=seed, split=split, tasks=TASKS, languages={"en": 1.0}))


def grade(bundle: Bundle, config: RLConfig, num_prompts: int) -> list[Answered]:
    """Return the rewards of a bundle's answers to held-out prompts."""
    source = prompts_config(HELD_OUT_SEED, "held_out").build()
    engine = open_engine(bundle, num_threads=1, full_precision="native")
    decoder = GroupDecoder(
        engine,
        bundle.tokenizer,
        bundle.template,
        temperature=NEARLY_GREEDY,
        max_tokens=MAX_TOKENS,
        max_turns=config.max_turns,
    )
    requests = []
    for number in range(num_prompts):
        prompt = source.prompt(number)
        requests.append(
            GroupRequest(number=number, prompt=prompt, environments=[source.environment(prompt)], seeds=[number])
        )
    groups = {group.request.number: group for group in decoder.decode(requests, max_rows=config.max_rows)}
    reward, answers = config.reward.build(), []
    for request in requests:
        decoded = groups[request.number]
        scores = reward([each.sample for each in decoded.samples])
        answers.append(Answered(task=request.prompt.kind, reward=scores[0].reward if scores else 0.0))
    return answers


def configured(start: str, seed: int, options: argparse.Namespace) -> RLConfig:
    changes = {"trainer.seed": str(seed), "trainer.optimizer.learning_rate": str(options.learning_rate)}
    config = prepare_rl_run("on_device.rlhf", "nano", start=start, changes=changes)
    trainer = replace(config.trainer, budget=StepBudget(num_steps=options.steps))
    if options.quick:
        trainer = replace(trainer, data=replay_data(8, row_tokens=512))
        config = replace(config, groups_per_task=1, group_size=4, max_tokens=16)
    return replace(config, prompts=prompts_config(1 + seed, "train"), trainer=trainer)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean by 2,000 bootstrap samples."""
    rng = random.Random(0)
    means = sorted(statistics.fmean(rng.choices(differences, k=len(differences))) for _ in range(2000))
    return means[49], means[1949]


def summary(before: Sequence[Answered], runs: Sequence[Sequence[Answered]]) -> dict[str, float]:
    """Return the figures of `runs`, one for each seed, against those of the start."""
    pairs = [pair for after in runs for pair in zip(before, after, strict=True)]
    by_prompt = [
        statistics.fmean(float(run[number].is_exact) for run in runs) - float(first.is_exact)
        for number, first in enumerate(before)
    ]
    low, high = interval(by_prompt)
    figures = {
        "sft": statistics.fmean(first.is_exact for first in before),
        "rlhf": statistics.fmean(after.is_exact for _, after in pairs),
        "win": statistics.fmean(after.reward > first.reward for first, after in pairs),
        "loss": statistics.fmean(after.reward < first.reward for first, after in pairs),
        "difference_low": low,
        "difference_high": high,
        "sft_reward": statistics.fmean(first.reward for first in before),
        "rlhf_reward": statistics.fmean(after.reward for _, after in pairs),
    }
    for task in TASKS:
        of_task = [(first, after) for first, after in pairs if first.task == task]
        if of_task:
            figures[f"sft_{task}"] = statistics.fmean(first.is_exact for first, _ in of_task)
            figures[f"rlhf_{task}"] = statistics.fmean(after.is_exact for _, after in of_task)
    for seed, run in enumerate(runs):
        figures[f"rlhf_seed_{seed}"] = statistics.fmean(each.is_exact for each in run)
    return {name: round(value, 4) for name, value in figures.items()}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--from", dest="start")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=600)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--generators", type=int, default=0)
    parser.add_argument("--work", type=Path, help="keeps runs and bundles")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.steps, options.seeds, options.prompts = 2, 1, 4
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        work = (options.work or Path(temporary)).resolve()
        os.environ["OPENAFM_HOME"] = str(work / "home")
        start = options.start or str(start_policy(work / "policy", quick=options.quick))
        before = grade(open_bundle(start), configured(start, 0, options), options.prompts)
        runs, began = [], process_time()
        for seed in range(options.seeds):
            config = configured(start, seed, options)
            run_rl_recipe(config, work / f"run-{seed}", f"policy-{seed}", num_generators=options.generators)
            runs.append(grade(open_bundle(f"policy-{seed}"), config, options.prompts))
            print(summary(before, runs), file=sys.stderr)
        seconds = round(process_time() - began)
    figures = summary(before, runs)
    run = {"steps": options.steps, "seeds": options.seeds, "prompts": options.prompts}
    run |= {"learning_rate": options.learning_rate, "cpu_seconds": seconds}
    hand_in({"figures": figures, **figures, **run}, REPORT, options)
    return 0


def start_policy(path: Path, *, quick: bool) -> Path:
    """Return the folder of the bundle that runs start from; write it unless it is there."""
    if not path.exists():
        if quick:
            write_policy(path, dim=64, num_layers=2)
        else:
            write_shipped_policy(path)
    return path


if __name__ == "__main__":
    sys.exit(main())
