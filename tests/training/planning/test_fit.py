"""The memory check of a run on a card: the planned peak, the smallest change that fits, and the refusal before the start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import tiny_run, write_corpus

from openafm.adapters.config import LoRAConfig
from openafm.core.config import override
from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.models.sizes import named_size
from openafm.training.budgets import StepBudget
from openafm.training.config import BFloat16Config, TrainerConfig
from openafm.training.device import DeviceConfig
from openafm.training.distributed.config import ParallelConfig
from openafm.training.optimizer_config import AdamWConfig, MuonConfig
from openafm.training.planning.chips import GIB
from openafm.training.planning.fit import DeviceMemoryError, check_memory, planned_run, smallest_change
from openafm.training.run import train


def run_of(size: str, rows: int, row_tokens: int, **changes: Any) -> TrainerConfig:
    data = LoaderConfig(sources=(SourceConfig(name="text", path="text"),), rows_per_step=rows, row_tokens=row_tokens)
    budget = StepBudget(num_steps=1)
    config = TrainerConfig(model=named_size(size), data=data, budget=budget, precision=BFloat16Config())
    return replace(config, **changes)


def peak(config: TrainerConfig, processes: int, changes: dict[str, str]) -> int:
    return planned_run(override(config, changes), processes, 0).memory.peak


RECOMPUTED = {"activation_checkpointing": "{}"}
KEPT = {"activation_checkpointing": '{"keep_attention": true}'}


@pytest.mark.parametrize(
    ("processes", "change"),
    [
        (1, {"microbatch_rows": "4"}),
        (1, {"microbatch_rows": "1"}),
        (1, {**KEPT, "microbatch_rows": "1"}),
        (1, {**RECOMPUTED, "microbatch_rows": "1"}),
        (4, {**RECOMPUTED, "microbatch_rows": "1", "parallel.shard": "2"}),
        (4, {**RECOMPUTED, "microbatch_rows": "1", "parallel.shard": "4"}),
    ],
)
def test_the_smallest_change_that_fits(processes: int, change: dict[str, str]) -> None:
    """The memory is exactly that of a change: a cheaper one does not fit."""
    config = run_of("on_device.base", 8 * processes, 4096)
    assert smallest_change(config, processes, peak(config, processes, change)) == (change, processes)


def test_more_processes_when_nothing_else_fits() -> None:
    config = run_of("on_device.base", 2, 4096)
    found = smallest_change(config, 2, 12 * GIB)
    assert found is not None
    changes, processes = found
    assert processes > 2
    assert peak(config, processes, changes) <= 12 * GIB
    assert changes["parallel.shard"] == str(processes)
    assert smallest_change(config, 2, GIB) is None


def test_weights_that_must_stay_whole_are_not_divided() -> None:
    config = run_of("on_device.base", 4, 1024, optimizer=MuonConfig())
    assert smallest_change(config, 4, 24 * GIB) is None
    assert smallest_change(replace(config, optimizer=AdamWConfig()), 4, 24 * GIB) is not None


def test_the_refusal_names_memory_and_options() -> None:
    config = run_of("on_device.base", 8, 4096, parallel=ParallelConfig(replicate=4))
    free = peak(config, 4, {**RECOMPUTED, "microbatch_rows": "1", "parallel.replicate": "null", "parallel.shard": "4"})
    with pytest.raises(DeviceMemoryError) as refused:
        check_memory(config, 4, free)
    needed = planned_run(config, 4, 0).memory.peak
    for words in (
        f"a step needs {needed / GIB:.1f} GiB",
        f"{free / GIB:.1f} GiB are free",
        "--set 'trainer.activation_checkpointing={}' --set trainer.microbatch_rows=1 --set trainer.parallel.replicate=null"
        " --set trainer.parallel.shard=4,",
        "--set trainer.device.check_memory=false",
    ):
        assert words in str(refused.value)
    check_memory(config, 4, needed)
    with pytest.raises(DeviceMemoryError, match="smaller size, shorter rows, or on larger devices"):
        check_memory(config, 4, 1 << 20)
    check_memory(replace(config, adapter=LoRAConfig(rank=2)), 4, 0)  # frozen weights are not planned


def test_a_run_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_run(write_corpus(tmp_path / "corpus"), 1)
    monkeypatch.setattr("openafm.training.run.device_memory", lambda device: (1 << 16, 1 << 30))
    with pytest.raises(DeviceMemoryError, match="a step needs"):
        train(config, tmp_path / "run")
    assert not list((tmp_path / "run").glob("*"))
    train(replace(config, device=DeviceConfig(check_memory=False)), tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints").is_dir()
