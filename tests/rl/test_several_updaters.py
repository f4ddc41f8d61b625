"""Several processes that update one policy give the weights of one process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forked_processes import together
from tiny_policies import tiny_policy_run

from openafm.rl.buffer import ReplayBuffer
from openafm.rl.config import RLConfig
from openafm.rl.packing import RowLengthError
from openafm.rl.run import train_policy
from openafm.rl.updater import ReplaySource
from openafm.training.distributed.config import ParallelConfig
from openafm.training.distributed.parallel import Parallelism
from openafm.training.distributed.processes import Processes, RemoteRankError
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.run import load_trained


def run(config: RLConfig, folder: Path, processes: Processes | None = None) -> None:
    assert train_policy(config, folder, processes=processes).finished


def last_line(folder: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return found


@pytest.mark.parametrize("shard", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_two_updaters_equal_one(tmp_path: Path, shard: int) -> None:
    config = tiny_policy_run(tmp_path, num_steps=2)
    config = replace(config, trainer=replace(config.trainer, optimizer=AdamWConfig(learning_rate=1e-3, weight_decay=0.0)))
    run(config, tmp_path / "one")
    divided = replace(config, trainer=replace(config.trainer, parallel=ParallelConfig(shard=shard), microbatch_rows=1))
    together(2, lambda processes: run(divided, tmp_path / "two", processes))
    one, two = (load_trained(tmp_path / name).state_dict() for name in ("one", "two"))
    for name, expected in one.items():
        torch.testing.assert_close(two[name], expected, atol=1e-6, rtol=0)
    for name in ("loss", "reward", "kl", "entropy", "gradient_norm", "trained", "generated"):
        assert last_line(tmp_path / "two")[name] == pytest.approx(last_line(tmp_path / "one")[name], abs=1e-5)


def test_a_rank_without_its_batch_ends_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_policy_run(tmp_path)

    def fail_on_rank_1(groups: object, objective: object, *, rank: int, **settings: object) -> None:
        if rank:
            raise RowLengthError("too long")

    def read(processes: Processes) -> None:
        parallelism = Parallelism(ParallelConfig(), config.trainer.model, processes)
        source = ReplaySource(config, ReplayBuffer(tmp_path / "buffer", "0" * 64), None, None, parallelism)
        with pytest.raises(RowLengthError if processes.rank else RemoteRankError):
            next(source.batches(0))

    monkeypatch.setattr(ReplaySource, "_read", lambda source, step: [])
    monkeypatch.setattr("openafm.rl.updater.step_batch", fail_on_rank_1)
    together(2, read)
