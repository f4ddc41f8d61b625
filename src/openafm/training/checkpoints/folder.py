"""The checkpoints folder of a run: find the checkpoint to resume from, quarantine damaged ones, remove old ones."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from openafm.training.checkpoints.checkpoint import ALONE, Checkpoint, open_checkpoint
from openafm.training.checkpoints.record import (
    AnotherRunError,
    CheckpointError,
    DamagedCheckpointError,
    is_checkpoint_file,
)
from openafm.training.config import TrainerConfig
from openafm.training.distributed.processes import Processes
from openafm.training.resuming import resume_difference

_NAME = re.compile(r"step-\d{8,}")
_TEMPORARY_NAME = re.compile(r"\.step-\d{8,}\.[0-9a-f]+")


def checkpoint_paths(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, newest first."""
    return sorted((path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)), key=sort_key, reverse=True)


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step."""
    return folder / f"step-{step:08}"


def step_of(path: Path) -> int:
    """Return the step of a checkpoint, from its name."""
    return int(path.name.removeprefix("step-"))


def sort_key(path: Path) -> tuple[int, str]:
    """Sort checkpoints by step: names of steps with more than eight digits are longer."""
    return len(path.name), path.name


def remove_incomplete(folder: Path) -> None:
    """Remove incomplete checkpoints of killed writers. The caller holds the lock of the run."""
    for path in folder.glob(".step-*"):
        if _TEMPORARY_NAME.fullmatch(path.name):
            shutil.rmtree(path)


def remove_checkpoint(path: Path) -> None:
    """Remove the files of a checkpoint. Files that no checkpoint has stay, in a folder renamed to `other-step-...`."""
    for file in list(path.iterdir()):
        if is_checkpoint_file(file.name):
            file.unlink()
    if any(path.iterdir()):
        path.rename(path.with_name(f"other-{path.name}"))
    else:
        path.rmdir()


def quarantine_newer(folder: Path, step: int) -> None:
    """Rename the checkpoints beyond `step`, which were damaged when the run resumed. The caller holds the run's lock."""
    for path in checkpoint_paths(folder):
        if sort_key(path) > sort_key(checkpoint_path(folder, step)):
            quarantined = folder / f"damaged-{path.name}"
            if quarantined.exists():
                remove_checkpoint(quarantined)
            path.rename(quarantined)


def newest_checkpoint(
    folder: Path, config: TrainerConfig, data_digest: str, note: Callable[[str], None], processes: Processes = ALONE
) -> Checkpoint | None:
    """Return the checkpoint to resume a run from; see `newest_intact`.

    Raises:
        AnotherRunError: the newest one belongs to another config, naming the key, or to other data.
        DamagedCheckpointError: there are checkpoints, but all are damaged.
    """
    return newest_intact(folder, note, processes, lambda found: _check_same_run(found, config, data_digest))


def newest_intact(
    folder: Path,
    note: Callable[[str], None],
    processes: Processes = ALONE,
    check: Callable[[Checkpoint], None] = lambda found: None,
) -> Checkpoint | None:
    """Return the newest checkpoint that passes verification, None if there are no checkpoints. Damaged ones are noted.

    The processes see the same folder, share the verification, and return the same checkpoint. `check` gets each checkpoint
    before its files are verified, and its errors are raised.

    Raises:
        DamagedCheckpointError: there are checkpoints, but all are damaged.
    """

    def opened(path: Path) -> Checkpoint | DamagedCheckpointError:
        try:
            checkpoint = open_checkpoint(path)
            check(checkpoint)
            checkpoint.verify(processes.rank, processes.world)
            return checkpoint
        except DamagedCheckpointError as error:
            return error

    paths, damage = processes.run_on_main(lambda: checkpoint_paths(folder)), ""
    for path in paths:
        found = processes.run_on_all(partial(opened, path))
        damages = processes.all_gather(str(found) if isinstance(found, DamagedCheckpointError) else None)
        if isinstance(found, Checkpoint) and not any(damages):
            return found
        damage = next(filter(None, damages))
        if processes.is_main:
            note(f"skipping a damaged checkpoint: {damage}")
    if paths:
        error = DamagedCheckpointError(
            f"all {len(paths)} checkpoints in {folder} are damaged, the oldest one because {damage}; restore one, or move "
            "the folder away to start at step 0"
        )
        error.shared = True
        raise error
    return None


def _check_same_run(checkpoint: Checkpoint, config: TrainerConfig, data_digest: str) -> None:
    difference = resume_difference(checkpoint.config, config)
    if difference is not None:
        raise AnotherRunError(
            f"{checkpoint.path} belongs to another run: {difference}; choose another output folder or the same config"
        )
    if checkpoint.record.data_digest != data_digest:
        raise AnotherRunError(
            f"{checkpoint.path} was trained on other data than that in "
            f"{', '.join(source.path for source in config.data.sources)}; choose another output folder or restore the data"
        )


def intact_checkpoint(folder: Path, note: Callable[[str], None]) -> Checkpoint:
    """Return the newest intact checkpoint of a folder.

    Raises:
        CheckpointError: the folder has no intact checkpoint.
    """
    found = newest_intact(folder, note)
    if found is None:
        raise CheckpointError(f"{folder} has no checkpoint; train a run first")
    return found
