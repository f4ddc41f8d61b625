"""Slow ranks are named, with their machine."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forked_processes import together
from tiny_runs import tiny_run, write_corpus

from openafm.core.config import ConfigError
from openafm.data.loading.loader import Loader
from openafm.training import run
from openafm.training.distributed.processes import Processes
from openafm.training.observability.stragglers import RankTime, StragglerConfig, slow_ranks


def times(*seconds: float) -> list[RankTime]:
    return [RankTime(host=f"host{rank}", seconds=one) for rank, one in enumerate(seconds)]


def test_ranks_far_above_the_median_are_named() -> None:
    (line,) = slow_ranks(times(0.10, 0.11, 0.30, 0.10), ratio=1.5)
    assert line == "rank 2 (host2) takes 0.300 s a step, 3.0 times the median of 4 ranks"
    assert slow_ranks(times(0.1, 0.3), ratio=1.5) == ["rank 1 (host1) takes 0.300 s a step, 3.0 times the median of 2 ranks"]
    assert slow_ranks(times(0.10, 0.11, 0.14), ratio=1.5) == []
    assert slow_ranks(times(0.001, 0.009), ratio=1.5) == []  # within the noise of a scheduler


@pytest.mark.slow
def test_a_slow_rank_of_a_run_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_run(write_corpus(tmp_path / "corpus"), num_steps=4)
    config = replace(config, stragglers=StragglerConfig(every_steps=4, ratio=1.5))
    whole_batch = Loader.batch

    def work(processes: Processes) -> None:
        notes: list[str] = []
        monkeypatch.setattr(run, "_note", notes.append)

        def slow_batch(self: Loader, step: int) -> Any:
            time.sleep(3.0 if processes.rank == 1 else 0.0)
            return whole_batch(self, step)

        monkeypatch.setattr(Loader, "batch", slow_batch)
        run.train(config, tmp_path / "run", processes=processes)
        named = [note for note in notes if "times the median" in note]
        assert [note.partition(" (")[0] for note in named] == (["step 4: rank 1"] if processes.is_main else [])

    together(2, work)


def test_impossible_values_are_refused() -> None:
    for changes in ({"every_steps": 0}, {"ratio": 1.0}):
        with pytest.raises(ConfigError, match=next(iter(changes))):
            StragglerConfig(**changes)
