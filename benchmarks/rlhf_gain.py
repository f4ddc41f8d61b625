"""Reinforcement learning against the fine-tuned bundle that it starts from: held-out exact match, wins and losses.

The recipe `on_device.rlhf` trains the policy from `--from`, by default the shipped model in fp32, on English word problems
with a calculator, for each seed. Both bundles then answer held-out prompts, whose frames and words are in no training
prompt, at temperature 0.01. `sft` and `rlhf` are shares of answers that hold the right result; `win` and `loss` are shares
of prompts that only the trained policy, or only the start, solves. The interval of `rlhf` minus `sft` is a 95 % bootstrap
over prompts, each with the mean over seeds. `..._trained_frames` are new prompts with the frames and words of training, and
their interval; `..._event` and `..._form` are rewards on tasks that the run did not train.

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
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Literal

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
TASK = "arithmetic"
SAMPLES, GROUP_SIZE = 32, 4  # of a step
NEARLY_GREEDY = 0.01
HELD_OUT_SEED = 1000


Split = Literal["train", "held_out"]
Rewards = dict[str, list[float]]
"""Rewards of answers by set."""
SETS: dict[str, tuple[str, Split]] = {
    "held_out": (TASK, "held_out"),
    "trained_frames": (TASK, "train"),
    "event": ("event", "held_out"),
    "form": ("form", "held_out"),
}
"""Tasks and splits of the sets; no prompt of them is trained."""


def prompts_config(task: str, seed: int, split: Split) -> CorpusPromptsConfig:
    return CorpusPromptsConfig(corpus=SyntheticConfig(seed=seed, split=split, tasks={task: 1.0}, languages={"en": 1.0}))


def grade(bundle: Bundle, config: RLConfig, num_prompts: int) -> Rewards:
    """Return the rewards of a bundle's answers to new prompts, `num_prompts` of each set."""
    engine = open_engine(bundle, num_threads=1, full_precision="native")
    decoder = GroupDecoder(
        engine,
        bundle.tokenizer,
        bundle.template,
        temperature=NEARLY_GREEDY,
        max_tokens=MAX_TOKENS,
        max_turns=config.max_turns,
    )
    return {name: graded(*each, decoder, config, num_prompts) for name, each in SETS.items()}


def graded(task: str, split: Split, decoder: GroupDecoder, config: RLConfig, num_prompts: int) -> list[float]:
    source, reward = prompts_config(task, HELD_OUT_SEED, split).build(), config.reward.build()
    requests = []
    for number in range(num_prompts):
        prompt = source.prompt(number)
        requests.append(
            GroupRequest(number=number, prompt=prompt, environments=[source.environment(prompt)], seeds=[number])
        )
    found = dict.fromkeys(range(num_prompts), 0.0)
    for group in decoder.decode(requests, max_rows=config.max_rows):
        scores = reward([each.sample for each in group.samples])
        found[group.request.number] = scores[0].reward if scores else 0.0
    return list(found.values())


def configured(start: str, seed: int, options: argparse.Namespace) -> RLConfig:
    changes = {"trainer.seed": str(seed), "trainer.optimizer.learning_rate": str(options.learning_rate)}
    changes |= {"group_size": str(GROUP_SIZE)}
    config = prepare_rl_run("on_device.rlhf", "nano", start=start, changes=changes)
    data = replay_data(8 if options.quick else SAMPLES, row_tokens=512)
    trainer = replace(config.trainer, budget=StepBudget(num_steps=options.steps), data=data)
    if options.quick:
        config = replace(config, groups_per_task=1, max_tokens=16)
    return replace(config, prompts=prompts_config(TASK, 1 + seed, "train"), trainer=trainer)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean by 2,000 bootstrap samples."""
    rng = random.Random(0)
    means = sorted(statistics.fmean(rng.choices(differences, k=len(differences))) for _ in range(2000))
    return means[49], means[1949]


def summary(before: Rewards, runs: Sequence[Rewards]) -> dict[str, float]:
    """Return the figures of `runs`, one for each seed, against those of the start."""
    pairs = [pair for run in runs for pair in zip(before["held_out"], run["held_out"], strict=True)]
    figures = {
        "win": statistics.fmean(new > old for old, new in pairs),
        "loss": statistics.fmean(new < old for old, new in pairs),
    }
    for name, first in before.items():
        suffix = "" if name == "held_out" else f"_{name}"
        after = [statistics.fmean(each) for each in zip(*(run[name] for run in runs), strict=True)]
        low, high = interval([new - old for old, new in zip(first, after, strict=True)])
        figures |= {f"sft{suffix}": statistics.fmean(first), f"rlhf{suffix}": statistics.fmean(after)}
        figures |= {f"difference_low{suffix}": low, f"difference_high{suffix}": high}
    for seed, run in enumerate(runs):
        figures[f"rlhf_seed_{seed}"] = statistics.fmean(run["held_out"])
    return {name: round(value, 4) for name, value in figures.items()}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--from", dest="start")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, default=1.5e-4)
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
        runs, began = list[Rewards](), process_time()
        for seed in range(options.seeds):
            config = configured(start, seed, options)
            run_rl_recipe(config, work / f"run-{seed}", f"policy-{seed}", num_generators=options.generators)
            runs.append(grade(open_bundle(f"policy-{seed}"), config, options.prompts))
            print(summary(before, runs), file=sys.stderr)
        seconds = round(process_time() - began)
    figures = summary(before, runs)
    run = {"steps": options.steps, "samples_per_step": SAMPLES, "seeds": options.seeds, "prompts": options.prompts}
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
