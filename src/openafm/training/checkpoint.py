"""Checkpoints: whole or absent, verified when read, written while training goes on. Safetensors and JSON, never pickle.

checkpoints/step-00001200/  config.json  record.json  model.safetensors  optimizer.safetensors  random.safetensors
                            ema.safetensors, when the run keeps an average
checkpoints/damaged-step-00001400/  set aside unread by the run that went on from step 1200
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file

from openafm.core.config import Config, ConfigError, dump, from_dict, to_dict
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.files import atomic_folder, write_json
from openafm.training.config import TrainerConfig, first_difference
from openafm.training.state import Snapshot

FORMAT = "openafm.checkpoint"
VERSION = 1


class CheckpointError(OpenAFMError):
    """A checkpoint that cannot be used."""


class DamagedCheckpointError(CheckpointError):
    """A file of a checkpoint is missing or does not hold the bytes that were written."""


class AnotherRunError(UsageError):
    """The output folder holds a run of another config or of other data."""


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord(Config):
    """What `record.json` holds. `data_digest` vouches for the data, `files` maps each file to its SHA-256 in hex."""

    format: str = FORMAT
    version: int = VERSION
    step: int
    num_steps: int
    num_tokens: int
    seconds: float
    data_digest: str
    files: dict[str, str]

    def __post_init__(self) -> None:
        self.require(
            (self.format, self.version) == (FORMAT, VERSION),
            f"is {self.format} version {self.version}, this openafm reads {FORMAT} version {VERSION}",
        )
        for name in self.files:
            self.require(
                Path(name).name == name and name.endswith(".safetensors"),
                f"names the file {name!r}, expected plain names that end in .safetensors",
            )


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint on disk whose record has been read; `load` reads and verifies the rest."""

    path: Path
    config: TrainerConfig
    record: CheckpointRecord

    def load(self) -> Snapshot:
        """The state that was saved.

        Raises:
            DamagedCheckpointError: a file is not what was written.
        """
        for name, digest in self.record.files.items():
            if _digest(self.path / name) != digest:
                raise DamagedCheckpointError(f"{self.path / name} was changed after it was written; remove {self.path}")
        return Snapshot(
            step=self.record.step,
            num_steps=self.record.num_steps,
            num_tokens=self.record.num_tokens,
            seconds=self.record.seconds,
            tensors={Path(name).stem: load_file(self.path / name) for name in self.record.files},
        )


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the config and the record of a checkpoint.

    Raises:
        DamagedCheckpointError: they are missing or unreadable.
    """
    try:
        record = from_dict(CheckpointRecord, json.loads((path / "record.json").read_text(encoding="utf-8")))
        config = from_dict(TrainerConfig, json.loads((path / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, ConfigError) as error:
        raise DamagedCheckpointError(f"{path} is not a readable checkpoint: {error}") from error
    return Checkpoint(path=path, config=config, record=record)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left half-written. Call it under the lock of the run."""
    for path in folder.glob(".step-*"):
        shutil.rmtree(path)


def checkpoint_paths(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first."""
    return sorted(folder.glob("step-*"), key=_order, reverse=True)


def set_aside_newer(folder: Path, step: int) -> None:
    """Rename the checkpoints beyond `step`, which a run that goes on from there could not read. Call it under its lock."""
    for path in checkpoint_paths(folder):
        if _order(path) > _order(_checkpoint_path(folder, step)):
            aside = folder / f"damaged-{path.name}"
            if aside.exists():
                shutil.rmtree(aside)
            path.rename(aside)


def newest_snapshot(folder: Path, config: TrainerConfig, data_digest: str, note: Callable[[str], None]) -> Snapshot | None:
    """The state to go on from, or None if there is no whole checkpoint. Damaged ones are passed over with a `note`.

    Raises:
        AnotherRunError: the newest one belongs to another config, naming the key, or to other data.
    """
    for path in checkpoint_paths(folder):
        try:
            checkpoint = open_checkpoint(path)
            _check_same_run(checkpoint, config, data_digest)
            return checkpoint.load()
        except DamagedCheckpointError as error:
            note(f"passing over a damaged checkpoint: {error}")
    return None


def _check_same_run(checkpoint: Checkpoint, config: TrainerConfig, data_digest: str) -> None:
    difference = first_difference(checkpoint.config, config, TrainerConfig.ANY_VALUE_RESUMES)
    if difference is not None:
        raise AnotherRunError(
            f"{checkpoint.path} belongs to another run: {difference}; choose another output folder or the same config"
        )
    if checkpoint.record.data_digest != data_digest:
        raise AnotherRunError(
            f"{checkpoint.path} was trained on other data than now stands in "
            f"{', '.join(source.path for source in config.data.sources)}; choose another output folder or restore the data"
        )


def write_checkpoint(folder: Path, config: TrainerConfig, snapshot: Snapshot, data_digest: str) -> Path:
    """Write `step-...` into `folder`, whole or not at all; then keep `config.checkpoint.keep`, counted back from this one.

    Newer ones are not this run's to count: had they been whole, it would have gone on from them.

    Raises:
        OutOfSpaceError: the disk is full; older checkpoints are untouched.
    """
    path = _checkpoint_path(folder, snapshot.step)
    with atomic_folder(path) as temporary:
        files = {f"{group}.safetensors": tensors for group, tensors in snapshot.tensors.items()}
        for name, tensors in files.items():
            save_file(dict(tensors), temporary / name)
        record = CheckpointRecord(
            step=snapshot.step,
            num_steps=snapshot.num_steps,
            num_tokens=snapshot.num_tokens,
            seconds=snapshot.seconds,
            data_digest=data_digest,
            files={name: _digest(temporary / name) for name in files},
        )
        (temporary / "config.json").write_text(dump(config), encoding="utf-8")
        write_json(temporary / "record.json", to_dict(record))
    until_now = [other for other in checkpoint_paths(folder) if _order(other) <= _order(path)]
    for old in until_now[config.checkpoint.keep :]:
        shutil.rmtree(old)
    return path


class CheckpointWriter:
    """Writes snapshots in the background, one at a time; what goes wrong there is raised by the next call here."""

    def __init__(self, folder: Path, config: TrainerConfig, data_digest: str) -> None:
        self._folder, self._config, self._data_digest = folder, config, data_digest
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[Path] | None = None

    def submit(self, snapshot: Snapshot) -> None:
        """Start to write; waits for the one before."""
        self.wait()
        self._pending = self._executor.submit(write_checkpoint, self._folder, self._config, snapshot, self._data_digest)

    def check(self) -> None:
        """Raise what went wrong in the background, if it has ended; do not wait."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Until nothing is being written."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """End the thread; what is being written is finished."""
        self._executor.shutdown()


@contextmanager
def checkpoint_writer(folder: Path, config: TrainerConfig, data_digest: str) -> Iterator[CheckpointWriter]:
    """A writer whose last checkpoint stands, or whose error is raised, when the block ends."""
    writer = CheckpointWriter(folder, config, data_digest)
    try:
        yield writer
        writer.wait()
    finally:
        writer.close()


def _checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08}"


def _order(path: Path) -> tuple[int, str]:
    """Sorts by step: names beyond the padding of eight digits are longer."""
    return len(path.name), path.name


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise DamagedCheckpointError(f"{path} is missing; remove {path.parent}") from error
