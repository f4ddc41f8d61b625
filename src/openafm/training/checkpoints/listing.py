"""List the checkpoints of a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from openafm.core.config import UnknownKindError
from openafm.core.errors import UsageError
from openafm.training.checkpoints.checkpoint import open_checkpoint
from openafm.training.checkpoints.folder import checkpoint_paths
from openafm.training.checkpoints.record import CheckpointError, DamagedCheckpointError


@dataclass(frozen=True, kw_only=True)
class ListedCheckpoint:
    """A checkpoint of a run. Fields from the record are None if the record cannot be read.

    Attributes:
        format: whole tensors, or blocks of tensors.
        layout: the axes of the processes that wrote it.
        damage: None for an intact checkpoint.
    """

    name: str
    num_bytes: int
    step: int | None = None
    format: Literal["whole", "parts"] | None = None
    num_processes: int | None = None
    layout: str | None = None
    held_out_loss: float | None = None
    damage: str | None = None


def list_checkpoints(output: Path) -> list[ListedCheckpoint]:
    """Verify and return all checkpoints, newest first, then the quarantined ones.

    Raises:
        CheckpointError: the folder is not that of a run.
        UnknownKindError: the config names a kind of a plugin that is not loaded.
    """
    folder = output / "checkpoints"
    if not folder.is_dir():
        raise CheckpointError(f"{output} is not the folder of a run: it has no checkpoints")
    return [_listed(path) for path in (*checkpoint_paths(folder), *sorted(folder.glob("damaged-*"), reverse=True))]


def _listed(path: Path) -> ListedCheckpoint:
    num_bytes = sum(file.stat().st_size for file in path.iterdir())
    try:
        checkpoint = open_checkpoint(path)
        axes = checkpoint.config.parallel.shape(checkpoint.record.num_processes).axes
    except UnknownKindError:
        raise
    except (DamagedCheckpointError, UsageError) as error:
        return ListedCheckpoint(name=path.name, num_bytes=num_bytes, damage=str(error))
    damage = None
    try:
        checkpoint.verify()
    except DamagedCheckpointError as error:
        damage = str(error)
    record = checkpoint.record
    return ListedCheckpoint(
        name=path.name,
        num_bytes=num_bytes,
        step=record.step,
        format="parts" if record.is_sharded else "whole",
        num_processes=record.num_processes,
        held_out_loss=record.held_out_loss,
        layout=" x ".join(f"{axis} {size}" for axis, size in axes.items() if size > 1) or "one process",
        damage=damage,
    )
