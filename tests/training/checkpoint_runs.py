"""Runs that some processes save and others resume, and checkpoints of several processes without a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from forked_processes import together
from parallel_runs import Combination
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from openafm.training.checkpoints.folder import newest_checkpoint, newest_intact
from openafm.training.checkpoints.writer import checkpoint_writer
from openafm.training.config import CheckpointConfig, TrainerConfig
from openafm.training.distributed.parallel import Parallelism
from openafm.training.distributed.processes import Processes
from openafm.training.initialization import fresh_state, resumed_state
from openafm.training.snapshot import TrainingSnapshot
from openafm.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class CheckpointJob:
    """Train `model` over `axes` up to step `stop`, from the checkpoint in `source` if given; save after step `save`."""

    model: str
    axes: dict[str, int]
    stop: int
    source: str | None = None
    save: int | None = None
    folder: str | None = None

    def config(self, corpus: Path) -> TrainerConfig:
        config = Combination(model=self.model, axes=self.axes).config(corpus)
        return replace(config, checkpoint=CheckpointConfig(keep=2))

    def losses(self, corpus: Path, processes: Processes) -> list[float]:
        """Return the losses of the steps of this job."""
        config = self.config(corpus)
        parallelism = Parallelism(config.parallel, config.model, processes)
        loader = config.data.build(parallelism.data_rank, parallelism.data_world)
        if self.source is None:
            state = fresh_state(config, "cpu", parallelism)
        else:
            found = newest_checkpoint(Path(self.source), config, loader.digest, print, processes)
            assert found is not None
            state = resumed_state(config, "cpu", found, parallelism)
        trainer = Trainer(config, state, loader)
        losses = []
        with checkpoint_writer(Path(self.folder or "none"), config, loader.digest, processes) as writer:
            while state.step < self.stop:
                losses.append(trainer.update(loader.batch(state.step)).loss)
                if state.step == self.save:
                    writer.on_save(state.snapshot())  # training continues while it is written
        return losses


def carry_out(world: int, jobs: Sequence[CheckpointJob], corpus: Path, results: Path) -> list[list[float]]:
    """Return the losses of jobs that `world` processes run one after another."""

    def work(processes: Processes) -> None:
        found = [job.losses(corpus, processes) for job in jobs]
        if processes.is_main:
            results.write_text(json.dumps(found), encoding="utf-8")

    if world == 1:
        work(Processes())
    else:
        together(world, work)
    return json.loads(results.read_text(encoding="utf-8"))


def parts_at(step: int, processes: Processes, side: int = 256) -> TrainingSnapshot:
    """Return tensors filled with the number of the step: two sharded along different dims, and a replicated one."""
    mesh = init_device_mesh("cpu", (processes.world,))
    shape = torch.Size((side, side))
    rows, columns = (
        DTensor.from_local(torch.full(shape, float(step)).chunk(processes.world, dim)[processes.rank], mesh, [Shard(dim)])
        for dim in (0, 1)
    )
    same = DTensor.from_local(torch.full((3,), float(step)), mesh, [Replicate()], run_check=False)
    return TrainingSnapshot(
        step=step,
        num_steps=1000,
        num_tokens=7 * step,
        seconds=0.5,
        tensors={"model": {"rows": rows, "columns": columns, "same": same}, "random": {"cpu": torch.tensor([1, 2])}},
    )


def check_parts(folder: Path, notes: list[str]) -> int:
    """Check that the newest intact checkpoint holds a single step; return its number."""
    found = newest_intact(folder, notes.append)
    assert found is not None
    snapshot = found.read()
    assert snapshot.tensors["model"].keys() == {"rows", "columns", "same"}
    for tensor in snapshot.tensors["model"].values():
        assert torch.equal(tensor, torch.full_like(tensor, snapshot.step))
    return snapshot.step
