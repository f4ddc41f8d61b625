"""A run over several processes equals that of one: losses, norms, counts and weights, in combinations of axes."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from forked_processes import fork_together, together
from parallel_runs import COMBINATIONS, NUM_STEPS, Combination, train_all
from parallel_runs import train as train_combination
from tiny_runs import exit_code, in_child, write_corpus

from openafm.core.errors import OpenAFMError
from openafm.data.loading.batch import Batch
from openafm.data.loading.loader import Loader
from openafm.data.shards.manifest import ShardError
from openafm.training.budgets import StepBudget
from openafm.training.checkpoints.checkpoint import open_checkpoint
from openafm.training.checkpoints.folder import checkpoint_paths
from openafm.training.config import CheckpointConfig
from openafm.training.distributed.processes import Processes, open_processes
from openafm.training.observability.metrics import read_metrics
from openafm.training.run import train

pytestmark = pytest.mark.xdist_group("parallel")  # one worker makes the fixtures

TIMEOUT_S = 240


def start_together(num_processes: int, work: Callable[[], object], folder: Path) -> list[Any]:
    """Run `work` in several processes with the environment that torchrun sets; return its results by rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])

    def run(rank: int) -> None:
        places = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update(places | {"WORLD_SIZE": str(num_processes)})
        (folder / f"{rank}.json").write_text(json.dumps(work()))

    children = [in_child(partial(run, rank)) for rank in range(num_processes)]
    assert [exit_code(child) for child in children] == [0] * num_processes
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(num_processes)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


@pytest.fixture(scope="module")
def results_of(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, Any]]:
    """Return the results by number of processes; each number is run once."""
    folder = tmp_path_factory.mktemp("results")

    @cache
    def results(num_processes: int) -> dict[str, Any]:
        file = folder / f"{num_processes}.json"
        together(num_processes, lambda processes: train_all(COMBINATIONS[num_processes], corpus, file, processes))
        return json.loads(file.read_text())

    return results


@pytest.fixture(scope="module")
def alone(corpus: Path) -> dict[str, Any]:
    """The runs of a single process, which must not open a process group."""
    with open_processes() as processes:
        found = {c.model: train_combination(c.config(corpus), processes) for c in COMBINATIONS[1]}
        assert not dist.is_initialized()
    return json.loads(json.dumps(found))


def of_processes(num_processes: int, *marks: pytest.MarkDecorator) -> list[Any]:
    return [pytest.param(num_processes, c, id=c.name, marks=marks) for c in COMBINATIONS[num_processes]]


@pytest.mark.parametrize(("num_processes", "combination"), of_processes(2) + of_processes(4, pytest.mark.slow))
def test_a_run_over_processes_equals_that_of_one(
    num_processes: int, combination: Combination, alone: dict[str, Any], results_of: Callable[[int], dict[str, Any]]
) -> None:
    expected, found = alone[combination.model], results_of(num_processes)[combination.name]
    assert len(found["losses"]) == NUM_STEPS
    assert expected["losses"][0] > expected["losses"][-1] + 0.02
    assert found["losses"] == pytest.approx(expected["losses"], abs=1e-5)
    assert found["norms"] == pytest.approx(expected["norms"], rel=1e-3)
    for name in expected["parts"][0]:
        of_steps = [[part[name] for part in run["parts"]] for run in (found, expected)]
        assert of_steps[0] == pytest.approx(of_steps[1], abs=1e-4)
    assert found["held_out"] == pytest.approx(expected["held_out"], abs=1e-5)
    assert found["num_tokens"] == expected["num_tokens"]
    assert found["expert_tokens"] == expected["expert_tokens"]
    assert found["weights"].keys() == expected["weights"].keys()
    for name, (total, norm) in expected["weights"].items():
        assert found["weights"][name] == pytest.approx([total, norm], abs=2e-3), name


@pytest.mark.parametrize(
    ("num_processes", "combination", "most"),
    [
        (2, "plain shard=2 microbatches", 0.51),
        (2, "tracks track=2", 0.6),
        *[
            pytest.param(4, name, most, marks=pytest.mark.slow)
            for name, most in (
                ("plain shard=4", 0.26),
                ("tracks track=4", 0.35),
                ("tracks shard=2 track=2 microbatches", 0.27),
                ("tracks expert=4", 0.75),
            )
        ],
    ],
)
def test_processes_hold_their_part_of_the_weights(
    results_of: Callable[[int], dict[str, Any]], num_processes: int, combination: str, most: float
) -> None:
    assert results_of(num_processes)[combination]["held"] < most


def test_a_signal_to_one_process_stops_all_at_the_same_step(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    config = replace(Combination(model="tracks", axes={"track": 2}).config(corpus), budget=StepBudget(num_steps=100_000))

    def run(processes: Processes) -> None:
        result = train(config, output, processes=processes)
        assert not result.finished
        (tmp_path / f"{processes.rank}.json").write_text(json.dumps(result.step))

    children = fork_together(2, run)
    deadline = time.monotonic() + TIMEOUT_S
    while len(read_metrics(output)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(children[1], signal.SIGTERM)
    assert [exit_code(child) for child in children] == [0, 0]
    steps = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert steps[0] == steps[1]
    assert 0 < steps[0] < config.budget.num_steps
    (newest, *_) = checkpoint_paths(output / "checkpoints")
    assert open_checkpoint(newest).record.step == steps[0]


def test_a_rank_that_cannot_read_its_data_ends_all_with_the_reason(corpus: Path, tmp_path: Path) -> None:
    """In the middle of a run; the step before is complete, and its checkpoint is saved."""
    output = tmp_path / "run"
    config = Combination(model="tracks", axes={"track": 2}).config(corpus)
    config = replace(config, evaluation=None, checkpoint=CheckpointConfig(every_steps=1))

    def run(processes: Processes) -> None:
        patched = pytest.MonkeyPatch()
        read = Loader.batch

        def damaged(loader: Loader, step: int) -> Batch:
            if processes.rank == 1 and step == 3:
                raise ShardError("shard 0 is damaged")
            return read(loader, step)

        patched.setattr(Loader, "batch", damaged)
        with pytest.raises(OpenAFMError) as raised:
            train(config, output, processes=processes)
        found = f"{type(raised.value).__name__} {raised.value} {raised.value.shared}"
        (tmp_path / f"{processes.rank}.json").write_text(json.dumps(found))

    together(2, run)
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)] == [
        "RemoteRankError process 1: shard 0 is damaged True",
        "ShardError shard 0 is damaged True",
    ]
    assert open_checkpoint(checkpoint_paths(output / "checkpoints")[0]).record.step == 3


def one_fails() -> list[str]:
    """Return the errors that this process gets when one of two fails, and the results of collective calls."""
    found = []

    def fail() -> None:
        raise OpenAFMError("the disk is full")

    with open_processes() as everyone:
        calls = (
            lambda: everyone.run_on_all(lambda: fail() if everyone.rank == 1 else None),
            lambda: everyone.run_on_main(fail),
        )
        for call in calls:
            with pytest.raises(OpenAFMError) as raised:
                call()
            found.append(f"{type(raised.value).__name__} {raised.value} {raised.value.shared}")
        rank = everyone.run_main_first(lambda: everyone.rank)
        return [*found, f"{everyone.run_on_main(lambda: 7)} {rank} {everyone.any_rank(rank == 1, False)}"]


def test_an_error_of_one_process_is_raised_by_all(tmp_path: Path) -> None:
    assert start_together(2, one_fails, tmp_path) == [
        [
            "RemoteRankError process 1: the disk is full True",
            "OpenAFMError the disk is full True",
            "7 0 (True, False)",
        ],
        [
            "OpenAFMError the disk is full True",
            "RemoteRankError process 0: the disk is full True",
            "7 1 (True, False)",
        ],
    ]
