"""Asynchronous against synchronous reinforcement learning: a simulator at the report's ratio of devices, and a real run.

The simulator has a fixed number of updates of 256 samples each. A sample takes a log-normal time, whatever else its device
decodes; swapping weights takes none, so the figures are upper bounds. Synchronous: 16 devices generate all samples of an
update, then train. Asynchronous: 9 generators and a policy updater, and up to (1 + lag) updates of samples in flight; each
update trains on its own samples, in order. `simulated_device_hours` is the ratio of the device-hours at sigma 0.9.

The real run trains a policy of 0.1 M parameters whose reward sleeps for a log-normal time with a median of 1.5 s, as a
remote judge does. A task is all prompts of an update, so that the synchronous loop waits for the slowest of its rewards and
not for each. `wall_ratio` is the wall time from the first to the last update with 2 generators at lag 4 over that of the
synchronous loop. A generator waits for the rewards of its task, so about 0.5 is the least. The mean rewards of the last
third are given for each seed.

    python benchmarks/async_rl.py [--quick] [--json]

A full run takes minutes and writes docs/benchmarks/async_rl.json; `--quick` runs few updates and claims nothing.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from shared.policies import SlowLettersConfig, write_policy
from shared.reporting import hand_in

from openafm.bundle import open_bundle
from openafm.recipes.run import RunInterruptedError
from openafm.rl.config import RLConfig, replay_data
from openafm.rl.environments.texts import CopyEditConfig
from openafm.rl.events import UPDATER, read_events
from openafm.rl.run import train_policy
from openafm.training.budgets import StepBudget
from openafm.training.config import CheckpointConfig, TrainerConfig
from openafm.training.objectives.policy_config import RLOOConfig
from openafm.training.optimizer_config import AdamWConfig

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "async_rl.json"
SYNC_DEVICES, ASYNC_DEVICES, SAMPLES, LAG, SIGMAS = 16, 10, 256, 4, (0.5, 0.8, 0.9, 1.0)
SAMPLES_PER_STEP, GROUP_SIZE = 16, 4  # of the real run
TRAINING = 0.1
"""Time of an update on one device's share, in medians of a sample's time."""


def synchronous_time(num_updates: int, sigma: float, seed: int) -> float:
    """Return the time of all updates: the longest sample of each, then the update."""
    rng = random.Random(seed)
    return sum(max(rng.lognormvariate(0, sigma) for _ in range(SAMPLES)) + TRAINING for _ in range(num_updates))


def asynchronous_time(num_updates: int, sigma: float, seed: int, lag: int) -> float:
    """Return the time of all updates.

    The samples of update n are admitted when update n - lag - 1 ends, at most `capacity` of them run at once, and update n
    starts when all its samples and the update before it have ended. With fewer devices than in the synchronous system, a
    generator decodes more samples at once: the capacity is that of the synchronous system times (1 + lag).
    """
    rng = random.Random(seed)
    capacity = SAMPLES * (1 + lag)
    running: list[float] = []
    ends: list[float] = []
    training = TRAINING * SYNC_DEVICES
    for update in range(num_updates):
        admitted = ends[update - lag - 1] if update > lag else 0.0
        last = 0.0
        for _ in range(SAMPLES):
            start = admitted if len(running) < capacity else max(admitted, heapq.heappop(running))
            stop = start + rng.lognormvariate(0, sigma)
            heapq.heappush(running, stop)
            last = max(last, stop)
        ends.append(max(last, ends[-1] if ends else 0.0) + training)
    return ends[-1]


def simulated(num_updates: int, sigma: float) -> float:
    """Return the ratio of the device-hours, asynchronous over synchronous."""
    ratios = []
    for seed in range(3):
        whole = asynchronous_time(num_updates, sigma, seed, LAG) * ASYNC_DEVICES
        ratios.append(whole / (synchronous_time(num_updates, sigma, seed) * SYNC_DEVICES))
    return statistics.fmean(ratios)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Updates of a run, the median seconds of a reward, and the seeds."""

    num_steps: int
    reward_seconds: float
    seeds: tuple[int, ...]


FULL, QUICK = (
    Setting(num_steps=40, reward_seconds=1.5, seeds=(0, 1, 2)),
    Setting(num_steps=3, reward_seconds=0.2, seeds=(0,)),
)


def run(folder: Path, bundle: Path, setting: Setting, seed: int, *, num_generators: int, lag: int) -> tuple[float, float]:
    """Return the seconds of wall time between the first and the last update, and the mean reward of the last third."""
    config = RLConfig(
        recipe="async_rl",
        prompts=CopyEditConfig(seed=seed),
        reward=SlowLettersConfig(seconds=setting.reward_seconds),
        trainer=TrainerConfig(
            model=open_bundle(bundle).config,
            data=replay_data(SAMPLES_PER_STEP, row_tokens=128),
            budget=StepBudget(num_steps=setting.num_steps),
            objective=RLOOConfig(),
            optimizer=AdamWConfig(learning_rate=0.01, weight_decay=0.0),
            checkpoint=CheckpointConfig(every_steps=setting.num_steps, every_seconds=None),
            num_threads=1,
            from_bundle=str(bundle),
            seed=seed,
        ),
        max_tokens=8,
        lag=lag,
        groups_per_task=SAMPLES_PER_STEP // GROUP_SIZE,
        group_size=GROUP_SIZE,
        plugins=("shared.policies",),
    )
    result = train_policy(config, folder, num_generators=num_generators)
    if not result.finished:  # by SIGTERM or Ctrl-C
        raise RunInterruptedError(folder, result)
    ends = [event.stop for event in read_events(folder) if event.part == UPDATER and event.name == "update"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rewards = [line["reward"] for line in lines]
    return ends[-1] - ends[0], statistics.fmean(rewards[-max(1, len(rewards) // 3) :])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    setting = QUICK if options.quick else FULL
    by_sigma = {str(sigma): round(simulated(20 if options.quick else 200, sigma), 4) for sigma in SIGMAS}
    runs = []
    with tempfile.TemporaryDirectory() as work:
        bundle = Path(work) / "policy"
        write_policy(bundle, dim=64, num_layers=2)
        for seed in setting.seeds:
            plain, plain_reward = run(Path(work) / f"sync-{seed}", bundle, setting, seed, num_generators=0, lag=0)
            beside, beside_reward = run(Path(work) / f"async-{seed}", bundle, setting, seed, num_generators=2, lag=LAG)
            seconds = {"sync_seconds": plain, "async_seconds": beside, "wall_ratio": beside / plain}
            runs.append({**seconds, "sync_reward": plain_reward, "async_reward": beside_reward})
    wall_ratio = statistics.fmean(each["wall_ratio"] for each in runs)
    report = {
        "figures": {"simulated_device_hours": by_sigma["0.9"], "wall_ratio": round(wall_ratio, 3)},
        "simulated_device_hours": by_sigma["0.9"],
        "wall_ratio": wall_ratio,
        "by_sigma": by_sigma,
        "runs": runs,
    }
    hand_in(report, REPORT, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
