"""Tensors of a checkpoint that several processes write and any number reads, through torch.distributed.checkpoint (DCP).

DCP plans which process writes which block, each block once, and which blocks a process with another layout reads. The files
are safetensors and JSON (index.py): torch's own storage uses pickle, which runs code when it is read.
Saving runs in the caller's thread: the given state is already a copy on the host, so training continues meanwhile.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as planned_load
from torch.distributed.checkpoint.state_dict_saver import save as planned_save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from openafm.core.errors import OpenAFMError
from openafm.core.files import file_digest, room_for
from openafm.training.checkpoints.index import INDEX, Index, IndexedTensor, TensorBlock, write_index
from openafm.training.checkpoints.record import DamagedCheckpointError
from openafm.training.distributed.processes import Processes

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner

Finish = Callable[[Mapping[str, str]], None]
"""Called on rank 0 with the SHA-256 in hex of every file, once all files are written."""


def save(folder: Path, tensors: Mapping[str, Tensor], processes: Processes, finish: Finish) -> None:
    """Write this process's parts of `tensors` into `folder`, together with all processes; return after `finish`.

    `tensors` are DTensors over all processes, or equal on each, under the same names everywhere.

    Raises:
        OutOfSpaceError: the disk of one of the processes is full; all raise it.
    """
    try:
        planned_save(
            dict(tensors),
            storage_writer=_BlockWriter(folder, processes, finish),
            planner=DefaultSavePlanner(flatten_state_dict=False),
            process_group=processes.control,
        )
    except CheckpointException as error:
        _raise_first(error)


def load(folder: Path, index: Index, targets: Mapping[str, Tensor], processes: Processes) -> None:
    """Fill `targets`, whole tensors or this process's parts as DTensors, reading only the blocks they need.

    Raises:
        DamagedCheckpointError: a file does not hold the blocks that the index lists.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            planned_load(
                dict(targets),
                storage_reader=_BlockReader(folder, index),
                planner=DefaultLoadPlanner(flatten_state_dict=False),
                process_group=processes.control,
                no_dist=processes.control is None,
            )
        except CheckpointException as error:
            _raise_first(error)


@dataclass(frozen=True)
class _WrittenFile:
    """A process's file and its digest, sent to rank 0."""

    file: str
    digest: str


class _BlockWriter(StorageWriter):
    """Write one file per process; then, on rank 0, the index, and call `finish`."""

    def __init__(self, folder: Path, processes: Processes, finish: Finish) -> None:
        self._folder, self._finish = folder, finish
        self._file = f"rank-{processes.rank:05}-of-{processes.world:05}.safetensors"

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        items = [item for item in plan.items if item.tensor_data is not None and item.tensor_data.chunk.sizes.numel()]
        if not items:
            return _done([])
        path = self._folder / self._file
        tensors = {item.index.fqn: _tensor(planner.resolve_data(item)) for item in items}
        with room_for(path):
            save_file(tensors, path)
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        written = _WrittenFile(self._file, file_digest(path))
        return _done([WriteResult(item.index, tensors[item.index.fqn].nbytes, written) for item in items])

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        written = {(result.index.fqn, result.index.offset): result.storage_data for one in results for result in one}
        write_index(self._folder, {key: _stored(key, it, written) for key, it in metadata.state_dict_metadata.items()})
        digests = {one.file: one.digest for one in written.values()}
        self._finish(dict(sorted(digests.items())) | {INDEX: file_digest(self._folder / INDEX)})

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: a writer is used once."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing: rank 0 has created the folder."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False  # torch must not choose this class by a path


class _BlockReader(StorageReader):
    """Read blocks from safetensors files."""

    def __init__(self, folder: Path, index: Index) -> None:
        self._folder, self._index = folder, index
        self._blocks = {(key, torch.Size(block.offsets)): block for key, stored in index.items() for block in stored.blocks}

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return Metadata({key: _metadata(stored) for key, stored in self._index.items()})

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        per_file: dict[str, list[tuple[TensorBlock, ReadItem]]] = {}
        for item in plan.items:
            block = self._blocks[item.storage_index.fqn, torch.Size(item.storage_index.offset or ())]
            per_file.setdefault(block.file, []).append((block, item))
        for name, needed in per_file.items():
            try:
                with safe_open(self._folder / name, framework="pt") as file:
                    for block, item in needed:
                        self._read_block(file, block, item, planner)
            except (OSError, SafetensorError) as error:
                raise DamagedCheckpointError(f"{self._folder / name} is not readable: {error}") from error
        return _done(None)

    def _read_block(self, file: Any, block: TensorBlock, item: ReadItem, planner: LoadPlanner) -> None:
        stored = file.get_slice(block.key)
        if tuple(stored.get_shape()) != block.shape:
            raise DamagedCheckpointError(
                f"{self._folder / block.file} holds {block.key} as {stored.get_shape()}, the index lists {list(block.shape)}"
            )
        bounds = zip(item.storage_offsets, item.lengths, strict=True)
        target = planner.resolve_tensor(item)
        target.copy_(stored[tuple(slice(start, start + length) for start, length in bounds)])
        planner.commit_tensor(item, target)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: a reader is used once."""

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the index holds all metadata."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False  # torch must not choose this class by a path


def _stored(key: str, planned: Any, written: Mapping[tuple[str, torch.Size | None], _WrittenFile]) -> IndexedTensor:
    """Return the written blocks of a tensor; empty blocks, which uneven shards leave, are not written."""
    return IndexedTensor(
        dtype=planned.properties.dtype,
        shape=tuple(planned.size),
        blocks=tuple(
            TensorBlock(
                file=written[key, chunk.offsets].file, key=key, offsets=tuple(chunk.offsets), shape=tuple(chunk.sizes)
            )
            for chunk in planned.chunks
            if chunk.sizes.numel()
        ),
    )


def _metadata(stored: IndexedTensor) -> TensorStorageMetadata:
    chunks = [ChunkStorageMetadata(torch.Size(block.offsets), torch.Size(block.shape)) for block in stored.blocks]
    return TensorStorageMetadata(TensorProperties(dtype=stored.dtype), torch.Size(stored.shape), chunks)


def _tensor(data: Any) -> Tensor:
    tensor: Tensor = data
    return tensor.detach().contiguous()


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


def _raise_first(error: CheckpointException) -> NoReturn:
    """Raise the error of the first process that failed; all processes raise it."""
    first = error.failures[min(error.failures)][0]
    if isinstance(first, OpenAFMError):
        first.shared = True
    raise first from error
