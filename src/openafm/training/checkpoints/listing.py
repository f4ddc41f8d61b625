"""The checkpoints of a run folder at a glance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from openafm.training.checkpoints.checkpoint import (
    CheckpointError,
    DamagedCheckpointError,
    checkpoint_paths,
    open_checkpoint,
)


@dataclass(frozen=True, kw_only=True)
class ListedCheckpoint:
    """A folder among a run's checkpoints. What only its record tells is None where that cannot be read.

    `format` says whether its files hold whole tensors or parts; `layout` are the axes over which processes shared the run
    out that wrote it; `damage` is None for a whole one.
    """

    name: str
    step: int | None
    num_bytes: int
    format: Literal["whole", "parts"] | None
    num_processes: int | None
    layout: str | None
    damage: str | None


def list_checkpoints(output: Path) -> list[ListedCheckpoint]:
    """All of them, newest first, verified, then those that were set aside.

    Raises:
        CheckpointError: the folder is none of a run.
    """
    folder = output / "checkpoints"
    if not folder.is_dir():
        raise CheckpointError(f"{output} is not the folder of a run: it has no checkpoints")
    return [_listed(path) for path in (*checkpoint_paths(folder), *sorted(folder.glob("damaged-*"), reverse=True))]


def _listed(path: Path) -> ListedCheckpoint:
    num_bytes = sum(file.stat().st_size for file in path.iterdir())
    try:
        checkpoint = open_checkpoint(path)
    except DamagedCheckpointError as error:
        return ListedCheckpoint(
            name=path.name, step=None, num_bytes=num_bytes, format=None, num_processes=None, layout=None, damage=str(error)
        )
    damage = None
    try:
        checkpoint.verify()
    except DamagedCheckpointError as error:
        damage = str(error)
    record = checkpoint.record
    axes = checkpoint.config.parallel.shape(record.num_processes).axes
    return ListedCheckpoint(
        name=path.name,
        step=record.step,
        num_bytes=num_bytes,
        format="parts" if record.is_sharded else "whole",
        num_processes=record.num_processes,
        layout=" x ".join(f"{axis} {size}" for axis, size in axes.items() if size > 1) or "one process",
        damage=damage,
    )
