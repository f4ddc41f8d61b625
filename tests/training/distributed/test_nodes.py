"""Nodes find each other at an address; lost nodes, unequal nodes and impossible options are typed errors."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from torch.distributed import TCPStore
from torch.distributed.elastic.utils.distributed import get_free_port

from openafm.core.errors import OpenAFMError, UsageError
from openafm.recipes.prepare import prepare_run
from openafm.recipes.run import ConfigsDifferError, run_recipe
from openafm.training.distributed import nodes
from openafm.training.distributed.nodes import Meeting, NodeFacts, NodeLostError, NodesConfig, NodesDifferError, meet
from openafm.training.distributed.processes import Processes
from openafm.training.observability.goodput import FILE, read_process_times
from openafm.training.observability.metrics import read_metrics

NUM_STEPS = 24


def join_all(configs: Sequence[tuple[NodesConfig, int]]) -> list[Meeting | OpenAFMError]:
    """Let nodes join in threads, each with its number of processes; return what each got."""

    def outcome(future: Future[Meeting]) -> Meeting | OpenAFMError:
        try:
            return future.result()
        except OpenAFMError as error:
            return error

    with ThreadPoolExecutor(len(configs)) as executor:
        return [outcome(one) for one in [executor.submit(meet, config, processes) for config, processes in configs]]


def node(rank: int, port: int, number: int = 2, seconds: float = 60.0) -> NodesConfig:
    return NodesConfig(nodes=number, node_rank=rank, rendezvous=f"localhost:{port}", join_seconds=seconds)


def test_nodes_meet_in_one_store() -> None:
    port = get_free_port()
    first, second = join_all([(node(0, port), 4), (node(1, port), 4)])
    assert isinstance(first, Meeting)
    assert isinstance(second, Meeting)
    assert first.run == second.run
    assert (first.address, second.address) == ("localhost", "127.0.0.1")
    first.store.set("key", "value")
    assert second.store.get("key") == b"value"


@pytest.mark.slow
def test_a_node_that_does_not_join_is_named_on_all() -> None:
    port = get_free_port()
    found = join_all([(node(0, port, number=4, seconds=8.0), 1), (node(2, port, number=4, seconds=60.0), 1)])
    for error in found:
        assert isinstance(error, NodeLostError)
        assert "node 1, 3 of 4 did not join" in str(error)
        assert error.exit_code == 75


def test_an_absent_first_node_is_a_lost_node() -> None:
    with pytest.raises(NodeLostError, match="node 0 did not answer at localhost"):
        meet(node(1, get_free_port(), seconds=1.0), 1)


def test_unequal_nodes_are_refused_on_all() -> None:
    port = get_free_port()
    for error in join_all([(node(0, port), 4), (node(1, port), 8)]):
        assert isinstance(error, NodesDifferError)
        assert "processes 4" in str(error)
        assert "has 8" in str(error)
    facts = [NodeFacts(versions=f"torch {number}", processes=1, host=f"host{number}", run="r") for number in (1, 1, 2)]
    assert nodes.difference(facts) == (
        "host1 has versions torch 1, host2 has torch 2; install the same versions on all nodes"
    )


def test_a_node_that_joins_again_is_compared_with_the_first() -> None:
    port = get_free_port()
    first, _ = join_all([(node(0, port), 4), (node(1, port), 4)])
    assert isinstance(first, Meeting)  # its store stays open
    assert meet(node(1, port), 4).run == first.run
    with pytest.raises(NodesDifferError, match="start the same number"):
        meet(node(1, port), 2)


def test_impossible_options_are_refused() -> None:
    for changes, text in (
        ({"nodes": 2, "node_rank": 2, "rendezvous": "a:1"}, "counted from 0"),
        ({"nodes": 2}, "need the address of node 0"),
        ({"nodes": 2, "rendezvous": "host"}, "got 'host'"),
        ({"nodes": 2, "rendezvous": "host:99999"}, "got 'host:99999'"),
    ):
        with pytest.raises(UsageError, match=text):
            NodesConfig(**changes)
    port = get_free_port()
    with pytest.raises(UsageError, match="use a free port"):
        occupied = TCPStore("localhost", port, is_master=True, wait_for_workers=False)
        assert occupied.port == port
        meet(node(0, port), 1)


class Everyone(Processes):
    """Two ranks, of which the other one has another value than this one."""

    def all_gather(self, value: object) -> list[object]:
        return [value, "another value"]


def test_processes_with_unequal_configs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openafm.training.distributed.processes.open_processes", lambda config: nullcontext(Everyone()))
    with pytest.raises(ConfigsDifferError, match="rank 1 has another config than rank 0"):
        run_recipe(prepare_run("server.pretrain", "micro"), tmp_path / "run", "unequal")
    assert not (tmp_path / "run").exists()


def start(place: Path, name: str, port: int, rank: int | None, *further: str) -> subprocess.Popen[str]:
    """Start a node of a run of two processes, or with rank None a single node with both."""
    changes = {
        "budget.num_steps": NUM_STEPS,
        "data.rows_per_step": 2,
        "data.row_tokens": 32,
        "parallel.track": 2,
        "log_every": 1,
        "checkpoint.every_steps": 5,
    }
    line = [
        sys.executable,
        "-m",
        "openafm",
        "train",
        "server.pretrain",
        "--size=micro",
        f"--data={place / 'text'}",
        "--json",
    ]
    line += [f"--set=trainer.{key}={value}" for key, value in changes.items()]
    line += [f"--output={place / name}", f"--name={name}", "--restarts=3", *further]
    line += ["--processes=2"] if rank is None else ["--nodes=2", f"--node-rank={rank}", f"--rendezvous=localhost:{port}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENAFM_HOME": str(place / "home")}
    with (place / f"{name}-{rank}.log").open("w") as log:
        return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)


def finish(processes: Sequence[subprocess.Popen[str]]) -> dict[str, object]:
    """Wait until all have ended with 0; return what the one with rank 0 printed."""
    printed = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    (result,) = [json.loads(text) for text in printed if text]
    return result


def wait_until(condition: Callable[[], bool], processes: Sequence[subprocess.Popen[str]]) -> None:
    while not condition():
        assert all(process.poll() is None for process in processes)
        time.sleep(0.05)


def children(process: int) -> list[int]:
    threads = Path(f"/proc/{process}/task").iterdir()
    return sorted(int(child) for thread in threads for child in (thread / "children").read_text().split())


def workers(process: subprocess.Popen[str]) -> list[int]:
    return [worker for child in children(process.pid) for worker in children(child)]


def has_reached(folder: Path, starts: int, step: int) -> bool:
    times = read_process_times(folder / FILE)
    return len(times) >= starts and times[-1].step >= step


def losses(run: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in read_metrics(run) if "loss" in line]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nodes")
    (folder / "text").mkdir()
    for number in range(60):
        chance = random.Random(number)
        words = ["".join(chance.choices("abcdefghijklmnop", k=chance.randint(2, 9))) for _ in range(400)]
        (folder / "text" / f"{number}.txt").write_text(" ".join(words))
    return folder


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes of a run in /proc")
def test_two_nodes_train_as_one_also_after_a_worker_is_killed(place: Path) -> None:
    alone = finish([start(place, "alone", 0, None)])
    port = get_free_port()
    both = [start(place, "both", port, rank) for rank in (0, 1)]
    wait_until(lambda: has_reached(place / "both", starts=1, step=7), both)
    os.kill(workers(both[1])[0], signal.SIGKILL)
    assert finish(both)["signature"] == alone["signature"]
    assert losses(place / "both") == losses(place / "alone")
    assert len(read_process_times(place / "both" / FILE)) == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes of a run in /proc")
def test_a_lost_node_ends_the_run_and_the_same_command_resumes(place: Path) -> None:
    port = get_free_port()
    both = [start(place, "lost", port, rank, "--join-seconds=20") for rank in (0, 1)]
    wait_until(lambda: has_reached(place / "lost", starts=1, step=7), both)
    for process in [*workers(both[1]), both[1].pid]:
        os.kill(process, signal.SIGKILL)
    both[0].communicate()
    both[1].communicate()
    log = (place / "lost-0.log").read_text()
    assert both[0].returncode == 75, log[-3000:]
    assert "a node was lost and did not join again within 20 s" in log
    port = get_free_port()
    assert finish([start(place, "lost", port, rank) for rank in (0, 1)])["steps"] == NUM_STEPS
