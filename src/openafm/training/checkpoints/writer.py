"""Writing checkpoints in the background, atomically, by one process or many. `checkpoint.py` describes the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from safetensors.torch import save_file

from openafm.core.config import dump
from openafm.core.files import atomic_folder, file_checksum
from openafm.training.checkpoints.checkpoint import ALONE
from openafm.training.checkpoints.folder import checkpoint_path
from openafm.training.checkpoints.record import CONFIG, CheckpointRecord
from openafm.training.checkpoints.retention import BestLosses, remove_old, stored_losses
from openafm.training.config import TrainerConfig
from openafm.training.distributed.processes import Processes
from openafm.training.observers import Observer, StepResult
from openafm.training.snapshot import Tensors, TrainingSnapshot

if TYPE_CHECKING:
    from openafm.training.checkpoints.sharded_save import ShardedSave


def write_checkpoint(
    folder: Path,
    config: TrainerConfig,
    snapshot: TrainingSnapshot,
    data_digest: str,
    processes: Processes = ALONE,
    held_out_loss: float | None = None,
    sharded: ShardedSave | None = None,
) -> Path:
    """Write `step-...` into `folder` atomically; then remove those that `config.checkpoint` does not keep (retention.py).

    Several processes each write their parts of `snapshot` and return once the checkpoint is complete. `sharded` plans them
    and keeps its plan for the next checkpoint of the run.

    Raises:
        OutOfSpaceError: the disk is full; older checkpoints are untouched.
    """
    path = checkpoint_path(folder, snapshot.step)

    def complete(temporary: Path, files: Mapping[str, str]) -> None:
        (temporary / CONFIG).write_text(dump(config), encoding="utf-8")
        record = CheckpointRecord(
            step=snapshot.step,
            num_steps=snapshot.num_steps,
            num_tokens=snapshot.num_tokens,
            seconds=snapshot.seconds,
            data_digest=data_digest,
            num_processes=processes.world,
            held_out_loss=held_out_loss,
            files={**files, CONFIG: file_checksum(temporary / CONFIG)},
        )
        record.write(temporary)

    if processes.control is None:
        with atomic_folder(path) as temporary:
            complete(temporary, _write_groups(temporary, snapshot.tensors))
        remove_old(folder, path, config.checkpoint)
    else:
        from openafm.training.checkpoints.sharded_save import ShardedSave

        def on_complete() -> None:
            remove_old(folder, path, config.checkpoint)

        _write_parts(path, snapshot.tensors, processes, sharded or ShardedSave(), complete, on_complete)
    return path


def _write_groups(folder: Path, tensors: Mapping[str, Tensors]) -> dict[str, str]:
    """Write a file for each group; return their checksums."""
    files = {f"{group}.safetensors": named for group, named in tensors.items()}
    for name, named in files.items():
        save_file(dict(named), folder / name)
    return {name: file_checksum(folder / name) for name in files}


def _write_parts(
    path: Path,
    tensors: Mapping[str, Tensors],
    processes: Processes,
    sharded: ShardedSave,
    complete: Callable[[Path, Mapping[str, str]], None],
    on_complete: Callable[[], None],
) -> None:
    """Write a file for each process; the main one creates the folder, writes the record and moves it into place."""
    with ExitStack() as opened:
        temporary = processes.run_on_main(lambda: opened.enter_context(atomic_folder(path)))

        def finish(files: Mapping[str, str]) -> None:
            complete(temporary, files)
            opened.close()
            on_complete()

        sharded.save(temporary, tensors, processes, finish)


class CheckpointWriter(Observer):
    """Write snapshots in the background, one at a time, at the config's intervals."""

    def __init__(self, folder: Path, config: TrainerConfig, data_digest: str, processes: Processes = ALONE) -> None:
        self._write = partial(write_checkpoint, folder, config, data_digest=data_digest, processes=processes)
        if processes.control is not None:
            from openafm.training.checkpoints.sharded_save import ShardedSave

            self._write = partial(self._write, sharded=ShardedSave())
        self._config = config.checkpoint
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[Path] | None = None
        self._step, self._saved_s = 0, perf_counter()
        self._best = BestLosses(self._config.keep_best, stored_losses(folder) if self._config.keep_best else [])
        self._evaluated: tuple[int, float] | None = None

    def on_step(self, result: StepResult) -> None:
        self._step = result.step

    def on_evaluation(self, step: int, losses: Mapping[str, float]) -> None:
        self._evaluated = (step, losses["held_out_loss"])

    @property
    def requests_save(self) -> bool:
        config = self._config
        for steps in (config.every_steps, config.keep_every_steps):
            if steps is not None and self._step > 0 and self._step % steps == 0:
                return True
        loss = self._loss_at(self._step)
        is_best = loss is not None and self._best.includes(loss)
        return is_best or (config.every_seconds is not None and perf_counter() - self._saved_s >= config.every_seconds)

    def _loss_at(self, step: int) -> float | None:
        """Return the held-out loss after `step` steps; None if there was no evaluation."""
        return self._evaluated[1] if self._evaluated is not None and self._evaluated[0] == step else None

    def on_save(self, snapshot: TrainingSnapshot) -> None:
        """Start to write, after waiting for the previous checkpoint.

        Raises:
            OutOfSpaceError: the previous checkpoint did not fit on the disk.
        """
        self.wait()
        loss = self._loss_at(snapshot.step)
        if loss is not None:
            self._best.add(loss)
        self._pending = self._executor.submit(self._write, snapshot=snapshot, held_out_loss=loss)
        self._saved_s = perf_counter()

    @property
    def has_failed(self) -> bool:
        """Return True if the last write failed. With several processes it then fails on all of them."""
        return self._pending is not None and self._pending.done() and self._pending.exception() is not None

    def raise_failure(self) -> None:
        self.wait()

    def wait(self) -> None:
        """Wait until the last snapshot is written; raise the error of a failed write."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Finish the last write and end the thread."""
        self._executor.shutdown()


@contextmanager
def checkpoint_writer(
    folder: Path, config: TrainerConfig, data_digest: str, processes: Processes = ALONE
) -> Iterator[CheckpointWriter]:
    """Open a writer. The end of the block waits for the last checkpoint and raises the error of a failed write."""
    writer = CheckpointWriter(folder, config, data_digest, processes.with_new_group())
    try:
        yield writer
        writer.wait()
    finally:
        writer.close()
