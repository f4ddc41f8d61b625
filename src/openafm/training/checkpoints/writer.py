"""Writing checkpoints: whole or not at all, by one process or many, while training goes on (files: checkpoint.py)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from safetensors.torch import save_file

from openafm.core.config import dump, to_dict
from openafm.core.files import atomic_folder, file_digest, write_json
from openafm.training.checkpoints.checkpoint import ALONE, CheckpointRecord, checkpoint_path, checkpoint_paths, order
from openafm.training.config import TrainerConfig
from openafm.training.distributed.processes import Processes
from openafm.training.state import Snapshot, Tensors


def write_checkpoint(
    folder: Path, config: TrainerConfig, snapshot: Snapshot, data_digest: str, processes: Processes = ALONE
) -> Path:
    """Write `step-...` into `folder`, whole or not at all; then keep `config.checkpoint.keep`, counted back from this one.

    Newer ones are not this run's to count: had they been whole, it would have gone on from them. Several processes each
    write their parts of `snapshot`, and return when the checkpoint stands.

    Raises:
        OutOfSpaceError: the disk is full; older checkpoints are untouched.
    """
    path = checkpoint_path(folder, snapshot.step)

    def complete(temporary: Path, files: Mapping[str, str]) -> None:
        record = CheckpointRecord(
            step=snapshot.step,
            num_steps=snapshot.num_steps,
            num_tokens=snapshot.num_tokens,
            seconds=snapshot.seconds,
            data_digest=data_digest,
            num_processes=processes.world,
            files=dict(files),
        )
        (temporary / "config.json").write_text(dump(config), encoding="utf-8")
        write_json(temporary / "record.json", to_dict(record))

    if processes.control is None:
        with atomic_folder(path) as temporary:
            complete(temporary, _write_groups(temporary, snapshot.tensors))
        _keep_newest(folder, path, config.checkpoint.keep)
    else:
        _write_parts(path, snapshot.tensors, processes, complete, lambda: _keep_newest(folder, path, config.checkpoint.keep))
    return path


def _write_groups(folder: Path, tensors: Mapping[str, Tensors]) -> dict[str, str]:
    """A file for each group; their digests."""
    files = {f"{group}.safetensors": named for group, named in tensors.items()}
    for name, named in files.items():
        save_file(dict(named), folder / name)
    return {name: file_digest(folder / name) for name in files}


def _write_parts(
    path: Path,
    tensors: Mapping[str, Tensors],
    processes: Processes,
    complete: Callable[[Path, Mapping[str, str]], None],
    settle: Callable[[], None],
) -> None:
    """A file for each process; the main one makes the folder, records what stands in it, and moves it to its place."""
    from openafm.training.checkpoints.sharded import save

    with ExitStack() as opened:
        temporary = processes.main_only(lambda: opened.enter_context(atomic_folder(path)))

        def finish(files: Mapping[str, str]) -> None:
            complete(temporary, files)
            opened.close()
            settle()

        named = {f"{group}/{name}": tensor for group, named in tensors.items() for name, tensor in named.items()}
        save(temporary, named, processes, finish)


def _keep_newest(folder: Path, path: Path, keep: int) -> None:
    """Remove all but `keep` checkpoints, counted back from `path`."""
    until_now = [other for other in checkpoint_paths(folder) if order(other) <= order(path)]
    for old in until_now[keep:]:
        shutil.rmtree(old)


class CheckpointWriter:
    """Writes snapshots in the background, one at a time; what goes wrong there is raised by the next call here."""

    def __init__(self, folder: Path, config: TrainerConfig, data_digest: str, processes: Processes = ALONE) -> None:
        self._write = partial(write_checkpoint, folder, config, data_digest=data_digest, processes=processes)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[Path] | None = None

    def submit(self, snapshot: Snapshot) -> None:
        """Start to write; waits for the one before."""
        self.wait()
        self._pending = self._executor.submit(self._write, snapshot=snapshot)

    @property
    def has_failed(self) -> bool:
        """Whether something went wrong in the background, which `wait` raises; of several processes it does so in all."""
        return self._pending is not None and self._pending.done() and self._pending.exception() is not None

    def wait(self) -> None:
        """Until nothing is being written."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """End the thread; what is being written is finished."""
        self._executor.shutdown()


@contextmanager
def checkpoint_writer(
    folder: Path, config: TrainerConfig, data_digest: str, processes: Processes = ALONE
) -> Iterator[CheckpointWriter]:
    """A writer whose last checkpoint stands, or whose error is raised, when the block ends."""
    writer = CheckpointWriter(folder, config, data_digest, processes.apart())
    try:
        yield writer
        writer.wait()
    finally:
        writer.close()
