"""Which checkpoints stay: the newest, those of every N steps, and those with the lowest held-out losses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_runs import tiny_run, write_corpus

from openafm.core.config import ConfigError
from openafm.training.checkpoints.folder import checkpoint_paths
from openafm.training.checkpoints.listing import list_checkpoints
from openafm.training.checkpoints.writer import write_checkpoint
from openafm.training.config import CheckpointConfig, EvaluationConfig, TrainerConfig
from openafm.training.initialization import fresh_state
from openafm.training.run import train


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainerConfig:
    corpus = write_corpus(tmp_path_factory.mktemp("retention") / "corpus", num_documents=8)
    found = tiny_run(corpus, num_steps=8)
    return replace(found, evaluation=EvaluationConfig(data=found.data, every_steps=2, num_batches=1))


def written(folder: Path, config: TrainerConfig, losses: dict[int, float | None], **changes: int) -> list[int]:
    """Write checkpoints with held-out losses by step; return the steps that stay."""
    config = replace(config, checkpoint=CheckpointConfig(**changes))
    snapshot = fresh_state(config, "cpu").snapshot()
    for step, loss in losses.items():
        write_checkpoint(folder, config, replace(snapshot, step=step), "data", held_out_loss=loss)
    return [int(path.name.removeprefix("step-")) for path in checkpoint_paths(folder)]


def test_every_so_many_steps_one_stays(tmp_path: Path, config: TrainerConfig) -> None:
    losses = dict.fromkeys((2, 3, 4, 6, 7, 8, 9))
    assert written(tmp_path, config, losses, keep=1, keep_every_steps=3) == [9, 6, 3]


def test_the_lowest_held_out_losses_stay(tmp_path: Path, config: TrainerConfig) -> None:
    losses = {1: 3.0, 2: 1.0, 3: 2.0, 4: None, 5: 2.5, 6: 1.0}
    assert written(tmp_path, config, losses, keep=1, keep_best=2) == [6, 2]


def test_a_damaged_record_has_no_loss(tmp_path: Path, config: TrainerConfig) -> None:
    written(tmp_path, config, {1: 1.0}, keep=1, keep_best=1)
    (tmp_path / "step-00000001" / "record.json").write_text("{}")
    assert written(tmp_path, config, {2: 9.0, 3: 8.0}, keep=1, keep_best=1) == [3]


def test_a_run_saves_the_evaluations_that_are_best_so_far(tmp_path: Path, config: TrainerConfig) -> None:
    keeping = CheckpointConfig(every_seconds=None, keep=1, keep_best=2, keep_every_steps=5)
    train(replace(config, checkpoint=keeping), tmp_path)
    listed = {found.step: found.held_out_loss for found in list_checkpoints(tmp_path)}
    assert {5, 8} <= set(listed)
    best = sorted(loss for loss in listed.values() if loss is not None)
    assert len(best) >= 2
    assert listed[5] is None


def test_losses_of_a_run_without_evaluation_cannot_be_compared(config: TrainerConfig) -> None:
    with pytest.raises(ConfigError, match="the run has no evaluation"):
        replace(config, evaluation=None, checkpoint=CheckpointConfig(keep_best=1))
    for changes in ({"keep_best": -1}, {"keep_every_steps": 0}):
        with pytest.raises(ConfigError, match=next(iter(changes))):
            CheckpointConfig(**changes)
