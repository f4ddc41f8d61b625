"""Goodput under failures: two processes train `server.nano`, and one of them is killed every two minutes on average.

Two runs have the same steps, seed and data, with two processes of one thread each (track parallel, two tracks per process).
One run is undisturbed. In the other a random process gets SIGKILL at the times of a Poisson process with a mean of 120 s of
wall time, at any point, start-up included. Both are `openafm train --processes 2 --restarts 999`; with `--torchrun` torchrun
starts the processes, without preloaded libraries. A short trial first measures a step and a checkpoint. Checkpoints follow
Young and Daly's optimum for that cost, sqrt(2 cost MTBF).

`goodput` is that of `goodput.jsonl`: seconds of steps done for the first time over the wall time since the run's first
start. `goodput_of_command` is relative to the whole command, which also packs the corpus and writes the bundle.
`young_daly_goodput` is the prediction of Daly's model of an exponential time to failure for the measured costs of a
checkpoint and a restart. `bit_equal`: every logged loss and the signature of the trained bundle equal those of the
undisturbed run. The processes are found in /proc, on Linux only.

    python benchmarks/goodput.py [--quick] [--json] [--torchrun] [--out FOLDER]

The full run takes about 35 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from openafm.training.observability.goodput import FILE, Goodput, goodput, read_process_times
from openafm.training.observability.metrics import read_metrics

REPORTS = Path(__file__).parents[1] / "docs" / "benchmarks"
RANKS = 2
SEED = 19  # the first seed whose first eight intervals have the nominal mean within 4 %


@dataclass(frozen=True, kw_only=True)
class Size:
    """The steps of a run, the mean seconds between two kills, and the maximum number of kills."""

    model: str
    row_tokens: int
    trial_steps: int
    seconds: float
    mtbf_s: float
    most_kills: int


FULL = Size(model="nano", row_tokens=256, trial_steps=60, seconds=960.0, mtbf_s=120.0, most_kills=999)
QUICK = Size(model="micro", row_tokens=64, trial_steps=24, seconds=10.0, mtbf_s=5.0, most_kills=3)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The result of a command: its JSON, its duration, and its goodput."""

    folder: Path
    result: dict[str, Any]
    seconds: float
    kills: int
    goodput: Goodput

    @property
    def losses(self) -> list[tuple[int, float]]:
        return [(line["step"], line["loss"]) for line in read_metrics(self.folder) if "loss" in line]


@dataclass(frozen=True, kw_only=True)
class Command:
    """Runs of `openafm train` in a folder, on a generated corpus."""

    size: Size
    place: Path
    torchrun: bool

    def run(self, name: str, num_steps: int, checkpoints: str, kill_seed: int | None = None) -> Run:
        """Run it to the end; with a seed, kill processes meanwhile."""
        folder, start_s = self.place / name, time.perf_counter()
        with (
            (self.place / f"{name}.log").open("w") as log,
            (self.place / f"{name}.json").open("w") as out,
            subprocess.Popen(
                self._line(name, num_steps, checkpoints), stdout=out, stderr=log, env=self._environment()
            ) as main,
        ):
            kills = 0 if kill_seed is None else self._fire(main, random.Random(kill_seed))
            code = main.wait()
        if code:
            raise SystemExit(f"{name} ended with {code}:\n" + (self.place / f"{name}.log").read_text()[-4000:])
        return Run(
            folder=folder,
            result=json.loads((self.place / f"{name}.json").read_text().splitlines()[-1]),
            seconds=time.perf_counter() - start_s,
            kills=kills,
            goodput=goodput(read_process_times(folder / FILE)),
        )

    def _line(self, name: str, num_steps: int, checkpoints: str) -> list[str]:
        changes = {
            "budget.num_steps": num_steps,
            "data.rows_per_step": 2,
            "data.row_tokens": self.size.row_tokens,
            "parallel.track": RANKS,
            "log_every": 1,
            "checkpoint.every_steps": "null",
            "checkpoint.every_seconds": "null",
        }
        sets = [f"--set=trainer.{key}={value}" for key, value in changes.items()] + [
            f"--set=trainer.checkpoint.{checkpoints}"
        ]
        train = ["train", "server.pretrain", "--size", self.size.model, "--data", str(self.place / "text"), "--json", *sets]
        train += ["--output", str(self.place / name), "--name", name]
        if not self.torchrun:
            return [sys.executable, "-m", "openafm", *train, "--processes", str(RANKS), "--restarts", "999"]
        elastic = ["--nproc-per-node", str(RANKS), "--max-restarts", "999", "--monitor-interval", "0.1"]
        return [sys.executable, "-m", "torch.distributed.run", *elastic, "-m", "openafm", *train]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "OMP_NUM_THREADS": "1", "OPENAFM_HOME": str(self.place / "home")}

    def _fire(self, main: subprocess.Popen[bytes], chance: random.Random) -> int:
        """Kill ranks until the run has ended, starting with its first step; return the number of kills."""
        kills, times_file = 0, self.place / "disturbed" / FILE
        while main.poll() is None and not any(times.step for times in read_process_times(times_file)):
            time.sleep(0.05)
        next_s = time.monotonic() + chance.expovariate(1 / self.size.mtbf_s)
        while main.poll() is None and kills < self.size.most_kills:
            ranks = self._ranks(main.pid)
            if time.monotonic() < next_s or not ranks or any(times.ended for times in read_process_times(times_file)):
                time.sleep(0.05)
                continue
            with _gone_is_fine():
                os.kill(chance.choice(ranks), signal.SIGKILL)
                kills += 1
            next_s += chance.expovariate(1 / self.size.mtbf_s)
        return kills

    def _ranks(self, main: int) -> list[int]:
        """Return the workers: children of torchrun, or of the fork server."""
        children = _children(main)
        return children if self.torchrun else [rank for child in children for rank in _children(child)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code, under a minute")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    parser.add_argument("--torchrun", action="store_true", help="let torchrun start the processes")
    parser.add_argument(
        "--out", type=Path, help=f"folder of the report and the plot; by default {REPORTS.name}, if not quick"
    )
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        command = Command(size=size, place=Path(folder), torchrun=options.torchrun)
        write_text(Path(folder) / "text")
        figures = compare(command)
    report = {"figures": figures, "setting": setting(size, options.torchrun)}
    out = options.out or (None if options.quick else REPORTS)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "goodput.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        plot(figures, out / "goodput.png")
    if not options.json:
        for name, value in figures.items():
            print(f"{name:28} {value:,.4f}" if isinstance(value, float) else f"{name:28} {value}")
    print(json.dumps(report))


def compare(command: Command) -> dict[str, float | int | bool]:
    """A trial, a disturbed run and an undisturbed one."""
    size = command.size
    every = size.trial_steps // 6
    step_s, checkpoint_s = costs(command.run("trial", size.trial_steps, f"every_steps={every}"), every)
    interval_s = max(math.sqrt(2 * checkpoint_s * size.mtbf_s), step_s)
    num_steps = max(size.trial_steps, round(size.seconds / step_s))
    fired = command.run("disturbed", num_steps, f"every_seconds={interval_s:.2f}", kill_seed=SEED)
    alone = command.run("alone", num_steps, f"every_seconds={interval_s:.2f}")
    found, lost = fired.goodput, fired.goodput.lost
    restart_s = (lost["start"] - alone.goodput.lost["start"]) / max(fired.kills, 1)
    return {
        "goodput": found.share,
        "kills": fired.kills,
        "bit_equal": fired.losses == alone.losses and fired.result["signature"] == alone.result["signature"],
        "young_daly_goodput": daly_goodput(size.mtbf_s, interval_s, checkpoint_s, restart_s),
        "goodput_of_command": found.productive / fired.seconds,
        "goodput_undisturbed": alone.goodput.share,
        "productive_seconds_undisturbed": alone.goodput.productive,
        "steps": num_steps,
        "step_seconds": step_s,
        "checkpoint_seconds": checkpoint_s,
        "checkpoint_interval_seconds": interval_s,
        "restart_seconds": restart_s,
        "wall_seconds": found.wall,
        "mean_seconds_between_kills": found.wall / max(fired.kills, 1),
        **{f"lost_{cause}": seconds / found.wall for cause, seconds in lost.items()},
    }


def costs(trial: Run, every: int) -> tuple[float, float]:
    """Return the seconds of a step, and those of a checkpoint: its stall, and the slowdown of the following steps.

    The first steps of a process are left out, and the last checkpoint, which the run waits for.
    """
    lines = [line for line in read_metrics(trial.folder) if "loss" in line]
    steps = [after["seconds"] - before["seconds"] for before, after in pairwise(lines)]  # steps[i] is update i + 2
    plain = [seconds for i, seconds in enumerate(steps) if i > 3 and (i + 2) % every > every // 2]
    step_s = statistics.median(plain)
    slowed = [sum(steps[i : i + every // 2]) - every // 2 * step_s for i in range(every - 1, len(steps) - every, every)]
    num_stalls = (len(lines) - 1) // every
    return step_s, lines[-1]["lost_seconds/checkpoint"] / num_stalls + max(0.0, statistics.median(slowed))


def daly_goodput(mtbf_s: float, interval_s: float, checkpoint_s: float, restart_s: float) -> float:
    """Return the share of useful time in Daly's model (doi 10.1016/j.future.2004.11.016), equation 20."""
    wall_s = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((interval_s + checkpoint_s) / mtbf_s)
    return interval_s / wall_s


def write_text(folder: Path) -> None:
    """Write a corpus of words in random order, which are enough for the vocabulary of nano."""
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(12_000)]
    folder.mkdir()
    lines = (" ".join(chance.choices(words, k=60)) for _ in range(4000))
    (folder / "words.txt").write_text("\n\n".join(lines), encoding="utf-8")


def setting(size: Size, torchrun: bool) -> str:
    started = "torchrun" if torchrun else "openafm train --processes"
    return (
        f"server.{size.model}, {RANKS} processes of one thread, track parallel, 2 rows of {size.row_tokens} tokens a step, "
        f"started by {started}; SIGKILL every {size.mtbf_s:g} s on average, seed {SEED}"
    )


def plot(figures: dict[str, float | int | bool], path: Path) -> None:
    """Plot the wall time of the disturbed run by cause."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shares = {name.removeprefix("lost_"): 100 * share for name, share in figures.items() if name.startswith("lost_")}
    shares = dict(sorted(((cause, share) for cause, share in shares.items() if share >= 0.01), key=lambda item: item[1]))
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    axes.barh(list(shares), list(shares.values()))
    for row, share in enumerate(shares.values()):
        axes.text(share, row, f" {share:.2f} %", va="center")
    axes.set_xlabel("% of wall time lost")
    axes.set_xlim(0, 1.2 * max(shares.values(), default=1))
    goodput_percent, model_percent = 100 * figures["goodput"], 100 * figures["young_daly_goodput"]
    axes.set_title(
        f"goodput {goodput_percent:.1f} %, {figures['kills']} kills; Young-Daly {model_percent:.1f} %", fontsize=10
    )
    figure.savefig(path, dpi=150)


def _children(process: int) -> list[int]:
    try:
        threads = list(Path(f"/proc/{process}/task").iterdir())
        return sorted(int(child) for thread in threads for child in (thread / "children").read_text().split())
    except OSError:
        return []


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    """Ignore a process that has already ended."""
    try:
        yield
    except ProcessLookupError:
        return


if __name__ == "__main__":
    main()
