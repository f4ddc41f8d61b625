"""Checkpoints: complete or absent, verified when read. Safetensors and JSON, never pickle.

checkpoints/step-00001200/  config.json  record.json  model.safetensors  optimizer.safetensors  random.safetensors
                            ema.safetensors, if the run averages its weights
checkpoints/step-00001300/  config.json  record.json  index.json  rank-00000-of-00004.safetensors ...
                            written by four processes, each with its blocks of the tensors (sharded_save.py)
checkpoints/damaged-step-00001400/  quarantined by the run that resumed from step 1300

Any number of processes reads either kind. A checkpoint is complete once rank 0 has moved its folder, with the record, into
place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from openafm.core.config import ConfigError, UnknownKindError, from_dict
from openafm.core.files import file_checksum, file_digest
from openafm.training.checkpoints.index import Index, read_index
from openafm.training.checkpoints.record import (
    CONFIG,
    CheckpointError,
    CheckpointRecord,
    DamagedCheckpointError,
    read_json,
    read_record,
)
from openafm.training.config import TrainerConfig
from openafm.training.distributed.processes import Processes
from openafm.training.snapshot import Tensors, TrainingSnapshot

ALONE = Processes()
GROUPS = {"model", "optimizer", "random", "ema"}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint on disk whose record and config have been read; `load` verifies and reads the tensors."""

    path: Path
    config: TrainerConfig
    record: CheckpointRecord

    def verify(self, share: int = 0, num_shares: int = 1) -> None:
        """Compare files with their checksums: all of them, or one of `num_shares` equal shares.

        Raises:
            DamagedCheckpointError: a file is missing or was changed.
        """
        for name in sorted(self.record.files)[share::num_shares]:
            _verify_file(self.path / name, self.record.files[name])

    def load(self) -> TrainingSnapshot:
        """Verify the files and return the whole state, written by any number of processes.

        Raises:
            DamagedCheckpointError: a file is missing or was changed.
        """
        self.verify()
        return self.read()

    def read(self) -> TrainingSnapshot:
        """Return the whole state of a verified checkpoint."""
        return self._snapshot({group: self._whole(group) for group in self._groups})

    def read_into(self, targets: Mapping[str, Tensor], processes: Processes) -> TrainingSnapshot:
        """Fill `targets`, this process's parts by GROUP/NAME as in `index`, and return them as a snapshot."""
        from openafm.training.checkpoints.sharded_load import load

        load(self.path, self.index, targets, processes)
        tensors: dict[str, dict[str, Tensor]] = {name: {} for name in self._groups}
        for key, tensor in targets.items():
            name, _, rest = key.partition("/")
            tensors[name][rest] = tensor
        return self._snapshot(tensors)

    def weights(self) -> Tensors:
        """Return the whole weights of a verified checkpoint, averaged if the run averages them."""
        return self._whole("ema" if "ema" in self._groups else "model")

    @cached_property
    def index(self) -> Index:
        """The tensors by GROUP/NAME.

        Raises:
            DamagedCheckpointError: the files cannot be read.
        """
        try:
            return read_index(self.path, sorted(self.record.files.keys() - {CONFIG}))
        except (OSError, ValueError, SafetensorError) as error:
            raise DamagedCheckpointError(f"{self.path} is not a readable checkpoint: {error}") from error

    def check_layout(self, shapes: Mapping[str, torch.Size]) -> None:
        """Compare all tensors with the parameters of a model, by name and global shape.

        Raises:
            CheckpointError: a tensor is missing, unknown, or has another shape; the message names the first.
        """
        needed = {"model", "random"} | ({"ema"} if self.config.ema is not None else set())
        # The file of an optimizer without state, such as plain SGD, holds no tensor.
        if self.record.step > 0 and (self.record.is_sharded or "optimizer.safetensors" not in self.record.files):
            needed = needed | {"optimizer"}
        if self._groups - GROUPS or needed - self._groups:
            raise CheckpointError(f"{self.path} holds the tensors {sorted(self._groups)}; needed are {sorted(needed)}")
        for group in self._groups & {"model", "ema"}:
            found = {name: self.index[f"{group}/{name}"].shape for name in self._names(group)}
            for name in [*shapes, *found]:
                self._check_shape(name, found.get(name), shapes.get(name))
        for key in self._names("optimizer"):
            shape, parameter = self.index[f"optimizer/{key}"].shape, key.rpartition("/")[0]
            if shape or parameter not in shapes:
                self._check_shape(f"optimizer/{key}", shape, shapes.get(parameter))
        state = self.index.get("random/cpu")
        if state is None or (state.dtype, state.shape) != (torch.uint8, torch.get_rng_state().shape):
            raise CheckpointError(f"{self.path} holds no random state of this torch; start the run in another folder")

    def _check_shape(self, name: str, found: tuple[int, ...] | None, expected: torch.Size | None) -> None:
        if found != expected:
            raise CheckpointError(
                f"{self.path} does not fit the model of its config: {name} is {_shape(found)} in the checkpoint, "
                f"{_shape(expected)} in the model; start the run in another folder"
            )

    @property
    def _groups(self) -> set[str]:
        return {key.partition("/")[0] for key in self.index}

    def _names(self, group: str) -> list[str]:
        return [key.removeprefix(f"{group}/") for key in self.index if key.startswith(f"{group}/")]

    def _whole(self, group: str) -> dict[str, Tensor]:
        """Return the whole tensors of a group."""
        if not self.record.is_sharded:
            return load_file(self.path / f"{group}.safetensors")
        from openafm.training.checkpoints.sharded_load import load

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
    """Read the record and the config of a checkpoint.

    Raises:
        DamagedCheckpointError: one of them is missing, unreadable, or was changed.
        UnknownKindError: the config names a kind of a plugin that is not loaded.
    """
    record = read_record(path)
    if CONFIG in record.files:
        _verify_file(path / CONFIG, record.files[CONFIG])
    try:
        config = from_dict(TrainerConfig, read_json(path / CONFIG))
    except UnknownKindError:
        raise
    except ConfigError as error:
        raise DamagedCheckpointError(f"{path / CONFIG} is not the config of a run: {error}") from error
    return Checkpoint(path=path, config=config, record=record)


def _verify_file(path: Path, recorded: str) -> None:
    compute = file_checksum if recorded.startswith("crc32:") else file_digest
    try:
        is_intact = compute(path) == recorded
    except OSError as error:
        raise DamagedCheckpointError(f"{path} is not readable: {error}; remove {path.parent}") from error
    if not is_intact:
        raise DamagedCheckpointError(f"{path} was changed after it was written; remove {path.parent}")


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))
