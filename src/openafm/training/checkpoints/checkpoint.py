"""Checkpoints: whole or absent, verified when read. Safetensors and JSON, never pickle.

checkpoints/step-00001200/  config.json  record.json  model.safetensors  optimizer.safetensors  random.safetensors
                            ema.safetensors, when the run keeps an average
checkpoints/step-00001300/  config.json  record.json  index.json  rank-00000-of-00004.safetensors ...
                            of four processes; each holds the parts that its process wrote (sharded_checkpoint.py)
checkpoints/damaged-step-00001400/  set aside unread by the run that went on from step 1300

Any number of processes reads either kind. What is written counts once the main process has moved the folder, with the
record, to its place.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from openafm.core.config import Config, ConfigError, UnknownKindError, from_dict
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.files import file_digest
from openafm.training.checkpoints.index import INDEX, Index, read_index
from openafm.training.config import TrainerConfig, first_difference
from openafm.training.distributed.processes import Processes
from openafm.training.snapshot import Tensors, TrainingSnapshot

FORMAT = "openafm.checkpoint"
VERSION = 2
READABLE = (1, 2)  # 1 has no num_processes: one
ALONE = Processes()


class CheckpointError(OpenAFMError):
    """A checkpoint that cannot be used."""


class DamagedCheckpointError(CheckpointError):
    """A file of a checkpoint is missing or does not hold the bytes that were written."""


class LayoutMismatchError(CheckpointError):
    """The tensors of a checkpoint are not those of the model that its config describes."""


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
    num_processes: int = 1
    files: dict[str, str]

    def __post_init__(self) -> None:
        self.require(
            self.format == FORMAT and self.version in READABLE,
            f"is {self.format} version {self.version}, this openafm reads {FORMAT} versions up to {VERSION}",
        )
        for name in self.files:
            self.require(
                name == INDEX or (Path(name).name == name and name.endswith(".safetensors")),
                f"names the file {name!r}, expected plain names that end in .safetensors, or {INDEX}",
            )

    @property
    def is_sharded(self) -> bool:
        """Whether its files hold parts of tensors."""
        return INDEX in self.files


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint on disk whose record has been read; `load` verifies and reads the rest."""

    path: Path
    config: TrainerConfig
    record: CheckpointRecord

    def verify(self, share: int = 0, num_shares: int = 1) -> None:
        """Compare files with their digests: all, or one of `num_shares` even shares.

        Raises:
            DamagedCheckpointError: a file is not what was written.
        """
        for name in sorted(self.record.files)[share::num_shares]:
            if _digest(self.path / name) != self.record.files[name]:
                raise DamagedCheckpointError(f"{self.path / name} was changed after it was written; remove {self.path}")

    def load(self) -> TrainingSnapshot:
        """The state that was saved, whole, whichever processes wrote it.

        Raises:
            DamagedCheckpointError: a file is not what was written.
        """
        self.verify()
        return self.read()

    def read(self) -> TrainingSnapshot:
        """What `load` gives, of a checkpoint that has been verified."""
        return self._snapshot({group: self._whole(group) for group in self._groups})

    def read_into(self, targets: Mapping[str, Tensor], processes: Processes) -> TrainingSnapshot:
        """Fill `targets` by GROUP/NAME, this process's parts of what `index` names, and give them back as a snapshot."""
        from openafm.training.checkpoints.sharded import load

        load(self.path, self.index, targets, processes)
        tensors: dict[str, dict[str, Tensor]] = {name: {} for name in self._groups}
        for key, tensor in targets.items():
            name, _, rest = key.partition("/")
            tensors[name][rest] = tensor
        return self._snapshot(tensors)

    def weights(self) -> Tensors:
        """The averaged weights where the run keeps them, else the weights; whole, of a checkpoint that has been verified."""
        return self._whole("ema" if "ema" in self._groups else "model")

    @cached_property
    def index(self) -> Index:
        """Its tensors by GROUP/NAME.

        Raises:
            DamagedCheckpointError: the files cannot be read.
        """
        try:
            return read_index(self.path, sorted(self.record.files))
        except (OSError, ValueError, SafetensorError) as error:
            raise DamagedCheckpointError(f"{self.path} is not a readable checkpoint: {error}") from error

    def check_layout(self, shapes: Mapping[str, torch.Size]) -> None:
        """Compare the weights with the parameters of a model, by name and whole shape.

        Raises:
            LayoutMismatchError: naming the first that differs.
        """
        for group in self._groups & {"model", "ema"}:
            found = {name: self.index[f"{group}/{name}"].shape for name in self._names(group)}
            for name in [*shapes, *found]:
                if found.get(name) != shapes.get(name):
                    raise LayoutMismatchError(
                        f"{self.path} holds another model than its config describes: {name} is "
                        f"{_shape(found.get(name))} there, {_shape(shapes.get(name))} in the model; start the run anew in "
                        "another folder"
                    )

    @property
    def _groups(self) -> set[str]:
        return {key.partition("/")[0] for key in self.index}

    def _names(self, group: str) -> list[str]:
        return [key.removeprefix(f"{group}/") for key in self.index if key.startswith(f"{group}/")]

    def _whole(self, group: str) -> dict[str, Tensor]:
        """The tensors of a group, whole."""
        if not self.record.is_sharded:
            return load_file(self.path / f"{group}.safetensors")
        from openafm.training.checkpoints.sharded import load

        stored = {name: self.index[f"{group}/{name}"] for name in self._names(group)}
        tensors = {name: torch.empty(it.shape, dtype=it.dtype) for name, it in stored.items()}
        load(self.path, self.index, {f"{group}/{name}": tensor for name, tensor in tensors.items()}, ALONE)
        return tensors

    def _snapshot(self, tensors: Mapping[str, Tensors]) -> TrainingSnapshot:
        return TrainingSnapshot(
            step=self.record.step,
            num_steps=self.record.num_steps,
            num_tokens=self.record.num_tokens,
            seconds=self.record.seconds,
            tensors=tensors,
        )


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the config and the record of a checkpoint.

    Raises:
        DamagedCheckpointError: they are missing or unreadable.
        UnknownKindError: the config names a kind of a plugin that is not loaded.
    """
    try:
        record = from_dict(CheckpointRecord, json.loads((path / "record.json").read_text(encoding="utf-8")))
        config = from_dict(TrainerConfig, json.loads((path / "config.json").read_text(encoding="utf-8")))
    except UnknownKindError:
        raise
    except (OSError, ValueError, ConfigError) as error:
        raise DamagedCheckpointError(f"{path} is not a readable checkpoint: {error}") from error
    return Checkpoint(path=path, config=config, record=record)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left half-written. Call it under the lock of the run."""
    for path in folder.glob(".step-*"):
        shutil.rmtree(path)


def checkpoint_paths(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first."""
    return sorted(folder.glob("step-*"), key=order, reverse=True)


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step stands."""
    return folder / f"step-{step:08}"


def order(path: Path) -> tuple[int, str]:
    """Sorts checkpoints by step: names beyond the padding of eight digits are longer."""
    return len(path.name), path.name


def quarantine_newer(folder: Path, step: int) -> None:
    """Rename the checkpoints beyond `step`, which a run that goes on from there could not read. Call it under its lock."""
    for path in checkpoint_paths(folder):
        if order(path) > order(checkpoint_path(folder, step)):
            aside = folder / f"damaged-{path.name}"
            if aside.exists():
                shutil.rmtree(aside)
            path.rename(aside)


def newest_checkpoint(
    folder: Path, config: TrainerConfig, data_digest: str, note: Callable[[str], None], processes: Processes = ALONE
) -> Checkpoint | None:
    """The checkpoint for a run to go on from, as `newest_whole`.

    Raises:
        AnotherRunError: the newest one belongs to another config, naming the key, or to other data.
    """
    return newest_whole(folder, note, processes, lambda found: _check_same_run(found, config, data_digest))


def newest_whole(
    folder: Path,
    note: Callable[[str], None],
    processes: Processes = ALONE,
    check: Callable[[Checkpoint], None] = lambda found: None,
) -> Checkpoint | None:
    """The newest checkpoint that is whole, verified, or None. Damaged ones are passed over with a `note`.

    Processes see the same folder, share the work of verifying, and come to the same answer. `check` sees a checkpoint before
    its files are read; what it raises is raised.
    """

    def opened(path: Path) -> Checkpoint | DamagedCheckpointError:
        try:
            checkpoint = open_checkpoint(path)
            check(checkpoint)
            checkpoint.verify(processes.rank, processes.world)
            return checkpoint
        except DamagedCheckpointError as error:
            return error

    for path in processes.run_on_main(lambda: checkpoint_paths(folder)):
        found = processes.run_on_all(partial(opened, path))
        damages = processes.all_gather(str(found) if isinstance(found, DamagedCheckpointError) else None)
        if isinstance(found, Checkpoint) and not any(damages):
            return found
        if processes.is_main:
            note(f"passing over a damaged checkpoint: {next(filter(None, damages))}")
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


def _digest(path: Path) -> str:
    try:
        return file_digest(path)
    except FileNotFoundError as error:
        raise DamagedCheckpointError(f"{path} is missing; remove {path.parent}") from error


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))
