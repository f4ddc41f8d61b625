"""Ranks of a real run, or their launcher, are killed: the run restarts or ends, and its weights stay bit-identical."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from openafm.training.observability.goodput import FILE, ProcessTimes, goodput, read_process_times
from openafm.training.observability.metrics import read_metrics

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="finds the processes of a run in /proc"),
    pytest.mark.xdist_group("elastic"),
]

TORCHRUN = [
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node=2",
    "--max-restarts=9",
    "--monitor-interval=0.1",
]
OURS = ["--processes=2", "--restarts=9"]
NUM_STEPS = 32


def command(place: Path, name: str, torchrun: bool) -> list[str]:
    changes = {
        "budget.num_steps": NUM_STEPS,
        "data.rows_per_step": 2,
        "data.row_tokens": 32,
        "parallel.track": 2,
        "log_every": 1,
        "checkpoint.every_steps": 5,
    }
    sets = [f"--set=trainer.{key}={value}" for key, value in changes.items()]
    train = ["-m", "openafm", "train", "server.pretrain", "--size=micro", f"--data={place / 'text'}", "--json", *sets]
    train += [f"--output={place / name}", f"--name={name}"]
    return [sys.executable, *TORCHRUN, *train] if torchrun else [sys.executable, *train, *OURS]


def start(place: Path, name: str, torchrun: bool) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENAFM_HOME": str(place / "home")}
    with (place / f"{name}.log").open("w") as log:
        line = command(place, name, torchrun)
        return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)


def finish(process: subprocess.Popen[str], place: Path, name: str) -> dict[str, object]:
    printed, _ = process.communicate()
    assert process.returncode == 0, (place / f"{name}.log").read_text()[-3000:]
    lines = printed.splitlines()
    assert len(lines) == 1  # only rank 0 prints
    return json.loads(lines[0])


def children(process: int) -> list[int]:
    threads = Path(f"/proc/{process}/task").iterdir()
    return sorted(int(child) for thread in threads for child in (thread / "children").read_text().split())


def ranks_of(process: subprocess.Popen[str], torchrun: bool) -> list[int]:
    below = children(process.pid)
    return below if torchrun else [rank for child in below for rank in children(child)]


def wait_for(process: subprocess.Popen[str], folder: Path, starts: int, step: int) -> list[ProcessTimes]:
    """Until the process number `starts` of the main rank has reached `step`."""
    while len(times := read_process_times(folder / FILE)) < starts or times[-1].step < step:
        assert process.poll() is None
        time.sleep(0.02)
    return times


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elastic")
    (folder / "text").mkdir()
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefghijklmnop", k=chance.randint(2, 9))) for _ in range(3000)]
    texts = (" ".join(chance.choices(words, k=40)) for _ in range(1000))
    (folder / "text" / "words.txt").write_text("\n\n".join(texts))
    return folder


@pytest.fixture(scope="module")
def undisturbed(place: Path) -> dict[str, object]:
    return finish(start(place, "undisturbed", torchrun=False), place, "undisturbed")


@pytest.mark.slow
@pytest.mark.parametrize("torchrun", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["openafm", "torchrun"])
def test_killed_ranks_are_restarted_and_the_run_ends_bit_identically(
    place: Path, undisturbed: dict[str, object], torchrun: bool
) -> None:
    name = f"killed-{torchrun}"
    process = start(place, name, torchrun)
    for number, rank in enumerate([1, 0] if not torchrun else [1], start=1):
        wait_for(process, place / name, starts=number, step=12 * number + 2)
        os.kill(ranks_of(process, torchrun)[rank], signal.SIGKILL)
    result = finish(process, place, name)
    assert result["signature"] == undisturbed["signature"]
    curves = [[(line["step"], line["loss"]) for line in read_metrics(place / run)] for run in (name, "undisturbed")]
    assert curves[0] == curves[1]
    assert [step for step, _ in curves[0]] == list(range(1, NUM_STEPS + 1))
    found = goodput(read_process_times(place / name / FILE))
    assert found.starts == (2 if torchrun else 3)
    assert found.lost["start"] > 0
    assert result["goodput"] == pytest.approx(found.share)


def is_running(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_workers_save_and_end_on_sigterm_and_when_their_launcher_dies(place: Path, undisturbed: dict[str, object]) -> None:
    name = "stopped"
    process = start(place, name, torchrun=False)
    wait_for(process, place / name, starts=1, step=12)
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate()
    assert process.returncode == 0, (place / f"{name}.log").read_text()[-3000:]
    assert_saved(place / name)

    process = start(place, name, torchrun=False)
    wait_for(process, place / name, starts=2, step=24)
    ranks = ranks_of(process, torchrun=False)
    process.kill()
    deadline_s = time.monotonic() + 60
    while any(map(is_running, ranks)):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    process.communicate()
    assert_saved(place / name)

    assert finish(start(place, name, torchrun=False), place, name)["signature"] == undisturbed["signature"]
    assert goodput(read_process_times(place / name / FILE)).lost["rework"] == 0


def assert_saved(run: Path) -> None:
    """Check that the last process of a run ended in order and saved its last step."""
    last = read_process_times(run / FILE)[-1]
    assert last.ended
    assert (run / "checkpoints" / f"step-{last.step:08}").is_dir()


@pytest.mark.slow
def test_a_worker_killed_at_its_start_is_replaced_at_once(place: Path) -> None:
    process = start(place, "killed-at-start", torchrun=False)
    while len(ranks := ranks_of(process, torchrun=False)) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(ranks[1], signal.SIGKILL)
    killed_s = time.monotonic()
    while len(set(ranks_of(process, torchrun=False)) - set(ranks)) < 2:
        assert process.poll() is None
        assert time.monotonic() - killed_s < 20, "the agent waits 30 s for workers that ignore SIGTERM"
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
def test_a_config_error_is_printed_once_without_restarts(place: Path) -> None:
    bad = [*command(place, "bad", torchrun=False), "--set=trainer.parallel.track=3"]
    done = subprocess.run(bad, capture_output=True, text=True, env={**os.environ, "OPENAFM_HOME": str(place / "home")})
    assert done.returncode == 2
    printed = [line for line in done.stderr.splitlines() if line.startswith("openafm: ")]
    assert len(printed) == 1
    assert "track" in printed[0]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGUSR1, 75)], ids=["SIGTERM", "SIGUSR1"])
def test_the_launcher_forwards_signals(place: Path, undisturbed: dict[str, object], number: int, code: int) -> None:
    name = f"forwarded-{number}"
    process = start(place, name, torchrun=False)
    wait_for(process, place / name, starts=1, step=12)
    process.send_signal(number)
    process.communicate()
    assert process.returncode == code, (place / f"{name}.log").read_text()[-3000:]
    assert_saved(place / name)
    assert finish(start(place, name, torchrun=False), place, name)["signature"] == undisturbed["signature"]


@pytest.mark.slow
def test_a_preemption_that_one_rank_is_told_ends_all_with_its_code(place: Path) -> None:
    process = start(place, "preempted", torchrun=False)
    wait_for(process, place / "preempted", starts=1, step=12)
    os.kill(ranks_of(process, torchrun=False)[1], signal.SIGUSR1)
    process.communicate()
    assert process.returncode == 75, (place / "preempted.log").read_text()[-3000:]
    assert_saved(place / "preempted")


@pytest.mark.slow
def test_a_killed_run_continues_on_another_number_of_processes(place: Path, undisturbed: dict[str, object]) -> None:
    process = start(place, "shrunk", torchrun=False)
    wait_for(process, place / "shrunk", starts=1, step=12)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    alone = [argument for argument in command(place, "shrunk", torchrun=False) if argument not in OURS]
    alone[alone.index("--set=trainer.parallel.track=2")] = "--set=trainer.parallel.track=1"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENAFM_HOME": str(place / "home")}
    done = subprocess.run(alone, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    losses, expected = ([line["loss"] for line in read_metrics(place / run)] for run in ("shrunk", "undisturbed"))
    assert len(losses) == NUM_STEPS
    assert losses == pytest.approx(expected, abs=1e-4)
