"""Copies of the weights are compared across ranks: a changed bit ends the run on all ranks and names the rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forked_processes import together
from tiny_runs import step_result, tiny_run, write_corpus

from openafm.core.config import ConfigError
from openafm.training.distributed.config import ParallelConfig
from openafm.training.distributed.processes import Processes
from openafm.training.observability.replicas import (
    RankDigests,
    ReplicaCheckConfig,
    ReplicaMismatchError,
    describe_mismatch,
    has_mismatch,
    parameter_digests,
    replicas,
)
from openafm.training.observers import Observer, StepResult
from openafm.training.run import train
from openafm.training.trainer import Trainer


def digests(*values: int) -> list[RankDigests]:
    """The digests of ranks with one parameter w."""
    return [RankDigests(host=f"host{rank}", by_name={"v": 0, "w": value}) for rank, value in enumerate(values)]


def test_the_minority_is_named_and_two_ranks_are_both_suspects() -> None:
    three = ParallelConfig().shape(3)
    assert "rank 1 (host1) differ from those of 2 replicas, first in w" in describe_mismatch(digests(5, 6, 5), three)
    found = describe_mismatch(digests(5, 6), ParallelConfig().shape(2))
    assert "ranks 0 (host0), 1 (host1) differ, first in w" in found


def test_only_copies_of_the_same_part_are_compared() -> None:
    shape = ParallelConfig(shard=2).shape(4)
    assert [list(ranks) for ranks in replicas(shape)] == [[0, 2], [1, 3]]
    assert not has_mismatch(["a", "b", "a", "b"], shape)
    assert has_mismatch(["a", "b", "a", "c"], shape)
    assert has_mismatch(["a", "b"], ParallelConfig(replicate=1, context=2).shape(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_any_changed_value_changes_the_digest(dtype: torch.dtype) -> None:
    weights = {"a": torch.randn(3, 5).to(dtype).t(), "b": torch.tensor(1.0, dtype=dtype)}
    before = parameter_digests(weights)
    assert parameter_digests({name: weight.clone() for name, weight in weights.items()}) == before
    weights["a"][2, 1] = -weights["a"][2, 1]
    after = parameter_digests(weights)
    assert after["a"] != before["a"]
    assert after["b"] == before["b"]


class FlipBit(Observer):
    """Change the lowest bit of one weight of a rank at a step."""

    def __init__(self, step: int) -> None:
        self.step, self.weights = step, torch.empty(0)

    def on_step(self, result: StepResult) -> None:
        if result.step == self.step:
            self.weights.view(torch.int32)[0, 0] ^= 1


def test_a_flipped_bit_of_one_rank_ends_the_run_on_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    config = replace(tiny_run(corpus, num_steps=8), replica_check=ReplicaCheckConfig(every_steps=2))
    fault = FlipBit(step=3)
    whole_init = Trainer.__init__

    def remembered(self: Trainer, *arguments: object) -> None:
        whole_init(self, *arguments)  # type: ignore[arg-type]
        fault.weights = next(weight.data for weight in self.state.parameters.values() if weight.ndim == 2)

    def work(processes: Processes) -> None:
        monkeypatch.setattr(Trainer, "__init__", remembered)
        observers = [fault] if processes.rank == 2 else []
        with pytest.raises(ReplicaMismatchError, match=r"rank 2 .* differ from those of 2 replicas.*after step 4.*step 2"):
            train(config, tmp_path / "run", processes=processes, observers=observers)

    together(3, work)


def test_an_interval_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="every_steps"):
        ReplicaCheckConfig(every_steps=0)
    assert step_result().local_seconds == 0
