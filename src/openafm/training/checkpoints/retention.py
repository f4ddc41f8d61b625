"""Which checkpoints of a run stay: the newest, those of every N steps, and those with the lowest held-out losses."""

from __future__ import annotations

from pathlib import Path

from openafm.training.checkpoints.folder import checkpoint_paths, remove_checkpoint, sort_key, step_of
from openafm.training.checkpoints.record import CheckpointRecord, DamagedCheckpointError, read_record
from openafm.training.config import CheckpointConfig


def remove_old(folder: Path, path: Path, config: CheckpointConfig) -> None:
    """Remove the checkpoints up to `path` that the config does not keep.

    Newer checkpoints are left alone: they are damaged, or the run would have resumed from them.
    """
    until_now = [other for other in checkpoint_paths(folder) if sort_key(other) <= sort_key(path)]
    kept = set(until_now[: config.keep])
    if (every := config.keep_every_steps) is not None:
        kept |= {other for other in until_now if (step := step_of(other)) and step % every == 0}
    if config.keep_best:
        records = [(other, record) for other in until_now if (record := _record(other)) is not None]
        losses = [(record.held_out_loss, other) for other, record in records if record.held_out_loss is not None]
        # A stable sort: of equal losses, the newest stays.
        kept |= {other for _, other in sorted(losses, key=lambda item: item[0])[: config.keep_best]}
    for other in until_now:
        if other not in kept:
            remove_checkpoint(other)


def stored_losses(folder: Path) -> list[float]:
    """Return the held-out losses of the checkpoints in a folder."""
    records = [_record(path) for path in checkpoint_paths(folder)]
    return [record.held_out_loss for record in records if record is not None and record.held_out_loss is not None]


class BestLosses:
    """The lowest `count` losses of the checkpoints that were written."""

    def __init__(self, count: int, losses: list[float]) -> None:
        self._count = count
        self._losses = sorted(losses)[:count]

    def includes(self, loss: float) -> bool:
        """Return True if a checkpoint with this loss would be one of the best."""
        return len(self._losses) < self._count or (self._count > 0 and loss < self._losses[-1])

    def add(self, loss: float) -> None:
        self._losses = sorted([*self._losses, loss])[: self._count]


def _record(path: Path) -> CheckpointRecord | None:
    """Return the record of a checkpoint; None if it is damaged, so that the checkpoint has no loss."""
    try:
        return read_record(path)
    except DamagedCheckpointError:
        return None
