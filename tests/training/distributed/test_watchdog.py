"""The watchdog ends a hanging process and writes its stacks; it ignores a working or a suspended one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import exit_code, in_child, tiny_run, write_corpus

from openafm.core.config import ConfigError
from openafm.data.loading import loader
from openafm.training import run
from openafm.training.config import TrainerConfig
from openafm.training.distributed.watchdog import EXIT_CODE, WatchdogConfig, watchdog
from openafm.training.observability.goodput import FILE, goodput, read_process_times
from openafm.training.observability.metrics import read_metrics
from openafm.training.run import TrainingResult, train

NEVER = threading.Event()


def train_in_child(config: TrainerConfig, output: Path, stderr: Path) -> int:
    """Start `train` in a process of its own, whose batch 30 never arrives, and return its id."""
    whole_batch = loader.Loader.batch

    def lost_file_server(self: loader.Loader, step: int) -> Any:
        if step == 30:
            NEVER.wait()
        return whole_batch(self, step)

    def work() -> TrainingResult:
        with stderr.open("w") as file:
            os.dup2(file.fileno(), 2)
        loader.Loader.batch = lost_file_server  # type: ignore[method-assign]
        return train(config, output)

    return in_child(work)


def hang_at_the_start(config: TrainerConfig, output: Path) -> TrainingResult:
    run._check = lambda config, ranks: NEVER.wait()  # type: ignore[assignment, misc]
    return train(config, output)


SLOW = """
import sys, time
from pathlib import Path
from openafm.training.distributed.watchdog import WatchdogConfig, watchdog

def failing_report():
    raise OSError("the disk is full")

with watchdog(WatchdogConfig(seconds=0.5, start_seconds=30.0), Path(sys.argv[1]), failing_report) as watching:
    time.sleep(1.0)  # the start
    for _ in range(4):
        watching.heartbeat()
        time.sleep(0.2)
    watching.heartbeat(is_long=True)
    time.sleep(1.0)
    watching.heartbeat()
    print("working", flush=True)
    while sys.argv[2] == "works":
        watching.heartbeat()
        time.sleep(0.05)
    time.sleep(30)
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={"PYTHONPATH": ":".join([str(Path(__file__).parents[1]), *sys.path]), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
def test_a_hanging_run_ends_with_its_stacks_and_resumes(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    output = tmp_path / "run"
    config = tiny_run(corpus, num_steps=40, watchdog=WatchdogConfig(seconds=2.0, start_seconds=120.0))
    process = train_in_child(config, output, tmp_path / "stderr.txt")
    assert exit_code(process) == EXIT_CODE
    stderr = (tmp_path / "stderr.txt").read_text()
    report = (output / "hang-0.txt").read_text()
    for stacks in (stderr, report):
        assert re.search(rf"process {process} made no progress for [23] s", stacks)
        assert "in lost_file_server" in stacks  # the thread that waits
        assert "in run" in stacks  # the one that waits for it
    assert "pg_status" in json.loads((output / "hang-0.collectives.json").read_bytes())
    assert read_metrics(output)[-1]["step"] == 30
    assert goodput(read_process_times(output / FILE)).lost["hang"] >= 1.9

    result = train(tiny_run(corpus, num_steps=40), output)  # with another watchdog config
    assert result.finished
    undisturbed = train(tiny_run(corpus, num_steps=40), tmp_path / "undisturbed")
    assert result.loss == undisturbed.loss
    assert result.goodput.lost["hang"] >= 1.9
    assert result.goodput.starts == 2


def test_a_hang_at_the_start_is_booked_as_a_hang(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    output = tmp_path / "run"
    config = tiny_run(corpus, watchdog=WatchdogConfig(seconds=1.0, start_seconds=1.0))
    assert exit_code(in_child(lambda: hang_at_the_start(config, output))) == EXIT_CODE
    lost = goodput(read_process_times(output / FILE)).lost
    assert lost["hang"] >= 0.9
    assert lost["start"] == 0


def test_the_start_and_long_work_have_a_longer_timeout(tmp_path: Path) -> None:
    process = start(SLOW, str(tmp_path / "hang.txt"), "hangs")
    printed, _ = process.communicate()
    assert printed == "working\n"
    assert process.returncode == EXIT_CODE
    assert "made no progress for" in (tmp_path / "hang.txt").read_text()


@pytest.mark.long
def test_a_suspended_process_is_not_ended(tmp_path: Path) -> None:
    process = start(SLOW, str(tmp_path / "hang.txt"), "works")
    assert process.stdout is not None
    process.stdout.readline()
    for _ in range(3):
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.1)
    assert process.poll() is None
    process.kill()
    process.wait()
    assert not (tmp_path / "hang.txt").exists()


def test_without_a_config_there_is_no_watchdog(tmp_path: Path) -> None:
    with watchdog(None, tmp_path / "hang.txt", lambda: None) as watching:
        watching.heartbeat()
    with pytest.raises(ConfigError, match=r"start_seconds must be at least seconds \(600.0\)"):
        WatchdogConfig(start_seconds=10)
    with pytest.raises(ConfigError, match="above 0"):
        WatchdogConfig(seconds=0)
