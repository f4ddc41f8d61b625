"""Kills of random parts of an asynchronous run: generators and the policy updater, with SIGKILL.

A run of a small policy with 2 generators at lag 2 is started in its own process. At random times one of its processes is
killed; when the policy updater dies, the same command resumes the run. Before each kill the groups in the replay buffer are
recorded. `lost_beyond_in_flight` is the number of samples that were in the buffer, not trained on by the last checkpoint,
and were missing or different afterwards. The counters of the last step must add up (the run checks them at every step).

    python benchmarks/rl_faults.py [--quick] [--json]

A full run makes 10 kills and writes docs/benchmarks/rl_faults.json; `--quick` makes 2 kills and claims nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

from shared.policies import SlowLettersConfig, write_policy
from shared.reporting import hand_in

from openafm.bundle import open_bundle
from openafm.core.config import dump
from openafm.rl.config import RLConfig, replay_data
from openafm.rl.environments.texts import CopyEditConfig
from openafm.training.budgets import StepBudget
from openafm.training.config import CheckpointConfig, TrainerConfig
from openafm.training.objectives.policy_config import RLOOConfig
from openafm.training.optimizer_config import AdamWConfig

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "rl_faults.json"
GROUP_SIZE, SAMPLES = 4, 16
_RUN = """
import json, sys
from pathlib import Path
from openafm.core.config import from_dict
from openafm.core.registry import load_plugins
from openafm.rl.config import RLConfig
from openafm.rl.run import train_policy
load_plugins(["shared.policies"])
config = from_dict(RLConfig, json.loads(Path(sys.argv[1]).read_text()))
train_policy(config, Path(sys.argv[2]), num_generators=2)
"""


def config(bundle: Path, num_steps: int) -> RLConfig:
    return RLConfig(
        recipe="rl_faults",
        prompts=CopyEditConfig(),
        reward=SlowLettersConfig(seconds=0.1),
        trainer=TrainerConfig(
            model=open_bundle(bundle).config,
            data=replay_data(SAMPLES, row_tokens=128),
            budget=StepBudget(num_steps=num_steps),
            objective=RLOOConfig(),
            optimizer=AdamWConfig(learning_rate=1e-3, weight_decay=0.0),
            checkpoint=CheckpointConfig(every_steps=4, every_seconds=None),
            num_threads=1,
            from_bundle=str(bundle),
        ),
        max_tokens=8,
        lag=2,
        task_seconds=300.0,
        max_attempts=20,
        plugins=("shared.policies",),
    )


def buffered(run: Path) -> dict[str, str]:
    """Return the digests of the groups in the buffer by file name."""
    digests = {}
    for path in sorted((run / "buffer").glob("group-*.npz")):
        with contextlib.suppress(FileNotFoundError):
            digests[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def oldest_checkpoint(run: Path) -> int:
    steps = [int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*")]
    return min(steps, default=0)


def generators_of(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(child) for child in children.read_text().split()] if children.exists() else []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in thread.read_text().split()]
    return sorted(set(found))


def lost(run: Path, before: dict[str, str]) -> int:
    """Return the samples of groups that should still be in the buffer and are not, or differ."""
    first = oldest_checkpoint(run) * SAMPLES // GROUP_SIZE
    now = buffered(run)
    kept = {name: digest for name, digest in before.items() if int(name[6:17]) >= first}
    return GROUP_SIZE * sum(now.get(name) != digest for name, digest in kept.items())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rng, num_kills = random.Random(0), 2 if options.quick else 10
    kills: list[str] = []
    num_lost = 0
    with tempfile.TemporaryDirectory() as work:
        bundle, run, file = Path(work) / "policy", Path(work) / "run", Path(work) / "config.json"
        write_policy(bundle, dim=64, num_layers=2)
        file.write_text(dump(config(bundle, num_steps=8 if options.quick else 60)))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
        command = [sys.executable, "-c", _RUN, str(file), str(run)]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        while process.poll() is None or process.returncode != 0:
            if process.poll() is not None:
                if len(kills) == 0 or process.returncode != -signal.SIGKILL:
                    raise RuntimeError(f"the run ended with exit code {process.returncode}")
                process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
            time.sleep(rng.uniform(0.5, 2.0))
            before = buffered(run)
            if len(kills) < num_kills and len(before) > len(kills):
                generators = generators_of(process.pid)
                is_updater = not generators or rng.random() < 0.3
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid if is_updater else rng.choice(generators), signal.SIGKILL)
                kills.append("updater" if is_updater else "generator")
                time.sleep(0.5)
                num_lost += lost(run, before)
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    counted = last["trained"] + last["stale"] + last["dropped"] + last["in_flight"]
    figures = {
        "lost_beyond_in_flight": num_lost,
        "kills": len(kills),
        "kills_of_updater": kills.count("updater"),
        "generated": last["generated"],
        "counted": counted,
    }
    assert last["generated"] == counted
    hand_in({"figures": figures, **figures}, REPORT, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
