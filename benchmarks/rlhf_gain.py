"""Reinforcement learning against the fine-tuned bundle that it starts from: held-out exact match, wins and losses.

The recipe `on_device.rlhf` trains the policy from `--from`, by default the shipped model in fp32, on `--task` for each seed:
`copy_edit`, to copy up to three names as they are or in reverse, or `arithmetic`, word problems with a calculator. Both
bundles then answer new prompts at temperature 0.01: those of `copy_edit` equal no training prompt, though names recur; the
frames and words of word problems are in no training prompt. `sft` and `rlhf` are shares of answers that earn the whole
reward; `win` and `loss` are shares of prompts on which the trained policy earns more, or less. The interval of `rlhf` minus
`sft` is a 95 % bootstrap over prompts, each with the mean over seeds.

    python benchmarks/rlhf_gain.py [--task copy_edit|arithmetic] [--from BUNDLE] [--steps N] [--seeds N] [--prompts N]
        [--work FOLDER] [--quick] [--json]

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
from openafm.rl.environments.texts import CopyEditConfig
from openafm.rl.prompt_sources import PromptSource, PromptSourceConfig
from openafm.runtime.engines.selection import open_engine
from openafm.training.budgets import StepBudget

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "rlhf_gain.json"
SAMPLES, GROUP_SIZE = 32, 4  # of a step
PROMPTS_PER_STEP = SAMPLES // GROUP_SIZE
NEARLY_GREEDY = 0.01
HELD_OUT_SEED = 1000
LEVELS = 2  # of copy_edit


def training_prompts(task: str, seed: int) -> PromptSourceConfig:
    if task == "copy_edit":
        return CopyEditConfig(seed=1 + seed, levels=LEVELS, prompts_per_level=8 * PROMPTS_PER_STEP)
    return CorpusPromptsConfig(corpus=SyntheticConfig(seed=1 + seed, tasks={task: 1.0}, languages={"en": 1.0}))


def new_prompts(options: argparse.Namespace) -> tuple[PromptSource, list[int]]:
    """Return a source, and the numbers of its prompts that equal no training prompt."""
    trained = {
        source.prompt(number).digest
        for source in (training_prompts(options.task, seed).build() for seed in range(options.seeds))
        for number in range(options.steps * PROMPTS_PER_STEP)
    }
    if options.task == "copy_edit":
        source = CopyEditConfig(seed=HELD_OUT_SEED, levels=LEVELS, prompts_per_level=1).build()
    else:
        corpus = SyntheticConfig(seed=HELD_OUT_SEED, split="held_out", tasks={options.task: 1.0}, languages={"en": 1.0})
        source = CorpusPromptsConfig(corpus=corpus).build()
    return source, [number for number in range(options.prompts) if source.prompt(number).digest not in trained]


def grade(bundle: Bundle, config: RLConfig, options: argparse.Namespace) -> list[float]:
    """Return the rewards of a bundle's answers to new prompts."""
    decoder = GroupDecoder(
        open_engine(bundle, num_threads=1, full_precision="native"),
        bundle.tokenizer,
        bundle.template,
        temperature=NEARLY_GREEDY,
        max_tokens=config.max_tokens,
        max_turns=config.max_turns,
    )
    source, numbers = new_prompts(options)
    requests = []
    for number in numbers:
        prompt = source.prompt(number)
        requests.append(
            GroupRequest(number=number, prompt=prompt, environments=[source.environment(prompt)], seeds=[number])
        )
    reward, found = config.reward.build(), dict.fromkeys(numbers, 0.0)
    for group in decoder.decode(requests, max_rows=config.max_rows):
        scores = reward([each.sample for each in group.samples])
        found[group.request.number] = scores[0].reward if scores else 0.0
    return list(found.values())


def configured(start: str, seed: int, options: argparse.Namespace) -> RLConfig:
    changes = {"trainer.seed": str(seed), "trainer.optimizer.learning_rate": str(options.learning_rate)}
    changes |= {"group_size": str(GROUP_SIZE), "max_tokens": "24" if options.task == "copy_edit" else str(MAX_TOKENS)}
    config = prepare_rl_run("on_device.rlhf", "nano", start=start, changes=changes)
    data = replay_data(SAMPLES, row_tokens=512)
    trainer = replace(config.trainer, budget=StepBudget(num_steps=options.steps), data=data)
    return replace(config, prompts=training_prompts(options.task, seed), trainer=trainer, groups_per_task=PROMPTS_PER_STEP)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean by 2,000 bootstrap samples."""
    rng = random.Random(0)
    means = sorted(statistics.fmean(rng.choices(differences, k=len(differences))) for _ in range(2000))
    return means[49], means[1949]


def summary(before: Sequence[float], runs: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the figures of the rewards of `runs`, one for each seed, against those of the start."""
    pairs = [pair for run in runs for pair in zip(before, run, strict=True)]
    exact = [statistics.fmean(reward == 1.0 for reward in rewards) for rewards in zip(*runs, strict=True)]
    low, high = interval([after - (first == 1.0) for first, after in zip(before, exact, strict=True)])
    figures = {
        "sft": statistics.fmean(reward == 1.0 for reward in before),
        "rlhf": statistics.fmean(exact),
        "win": statistics.fmean(new > old for old, new in pairs),
        "loss": statistics.fmean(new < old for old, new in pairs),
        "difference_low": low,
        "difference_high": high,
    }
    for seed, run in enumerate(runs):
        figures[f"rlhf_seed_{seed}"] = statistics.fmean(reward == 1.0 for reward in run)
    return {name: round(value, 4) for name, value in figures.items()}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--from", dest="start")
    parser.add_argument("--task", choices=("copy_edit", "arithmetic"), default="copy_edit")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
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
        before = grade(open_bundle(start), configured(start, 0, options), options)
        runs, began = list[list[float]](), process_time()
        for seed in range(options.seeds):
            config = configured(start, seed, options)
            run_rl_recipe(config, work / f"run-{seed}", f"policy-{seed}", num_generators=options.generators)
            runs.append(grade(open_bundle(f"policy-{seed}"), config, options))
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
