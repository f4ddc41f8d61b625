"""The tensors of a checkpoint that many processes write and any number reads, through torch.distributed.checkpoint (DCP).

DCP plans: which process writes which part, each part once, and which blocks of which files a process needs that holds other
parts than were written. The files are safetensors and JSON (checkpoint_index.py): what torch's own storage puts on the disk
is pickle, and to read that is to run whatever it says. Saving runs in the thread of whoever calls: the state it is given is
a copy on the host already, so that training goes on meanwhile.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from safetensors import safe_open
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
from openafm.training.distributed.processes import Processes

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner

Finish = Callable[[Mapping[str, str]], None]
"""Called in the main process with the SHA-256 in hex of every file, when all stand."""


def save(folder: Path, tensors: Mapping[str, Tensor], processes: Processes, finish: Finish) -> None:
    """Write this process's parts of `tensors` into `folder`, with all others; return when `finish` has.

    `tensors` are DTensors over all processes, or alike in each, under the same names everywhere.

    Raises:
        OutOfSpaceError: the disk of one of the processes is full; all raise it.
    """
    try:
        planned_save(
            dict(tensors),
            storage_writer=_Writer(folder, processes, finish),
            planner=DefaultSavePlanner(flatten_state_dict=False),
            process_group=processes.control,
        )
    except CheckpointException as error:
        _raise_first(error)


def load(folder: Path, index: Index, targets: Mapping[str, Tensor], processes: Processes) -> None:
    """Fill `targets`, whole tensors or this process's parts as DTensors, reading no more of the files than they need."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            planned_load(
                dict(targets),
                storage_reader=_Reader(folder, index),
                planner=DefaultLoadPlanner(flatten_state_dict=False),
                process_group=processes.control,
                no_dist=processes.control is None,
            )
        except CheckpointException as error:
            _raise_first(error)


@dataclass(frozen=True)
class _Written:
    """What a process tells the main one about its file."""

    file: str
    digest: str


class _Writer(StorageWriter):
    """A file for each process; then the index and `finish` in the main one."""

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
        written = _Written(self._file, file_digest(path))
        return _done([WriteResult(item.index, tensors[item.index.fqn].nbytes, written) for item in items])

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        written = {(result.index.fqn, result.index.offset): result.storage_data for one in results for result in one}
        write_index(self._folder, {key: _stored(key, it, written) for key, it in metadata.state_dict_metadata.items()})
        digests = {one.file: one.digest for one in written.values()}
        self._finish(dict(sorted(digests.items())) | {INDEX: file_digest(self._folder / INDEX)})

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing to forget: a writer writes once."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """The folder stands: the main process has made it."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False  # is never to be chosen by a path


class _Reader(StorageReader):
    """Blocks of safetensors files."""

    def __init__(self, folder: Path, index: Index) -> None:
        self._folder, self._index = folder, index
        self._parts = {(key, torch.Size(part.offsets)): part for key, stored in index.items() for part in stored.parts}

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return Metadata({key: _metadata(stored) for key, stored in self._index.items()})

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        per_file: dict[str, list[tuple[TensorBlock, ReadItem]]] = {}
        for item in plan.items:
            part = self._parts[item.storage_index.fqn, torch.Size(item.storage_index.offset or ())]
            per_file.setdefault(part.file, []).append((part, item))
        for name, needed in per_file.items():
            with safe_open(self._folder / name, framework="pt") as file:
                for part, item in needed:
                    bounds = zip(item.storage_offsets, item.lengths, strict=True)
                    block = tuple(slice(start, start + length) for start, length in bounds)
                    target = planner.resolve_tensor(item)
                    target.copy_(file.get_slice(part.key)[block])
                    planner.commit_tensor(item, target)
        return _done(None)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing to forget: a reader reads once."""

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """All that there is to know stands in the index."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False  # is never to be chosen by a path


def _stored(key: str, planned: Any, written: Mapping[tuple[str, torch.Size | None], _Written]) -> IndexedTensor:
    """What stands of a tensor: parts without elements, which uneven shares leave, are not written."""
    return IndexedTensor(
        dtype=planned.properties.dtype,
        shape=tuple(planned.size),
        parts=tuple(
            TensorBlock(
                file=written[key, chunk.offsets].file, key=key, offsets=tuple(chunk.offsets), shape=tuple(chunk.sizes)
            )
            for chunk in planned.chunks
            if chunk.sizes.numel()
        ),
    )


def _metadata(stored: IndexedTensor) -> TensorStorageMetadata:
    chunks = [ChunkStorageMetadata(offsets=torch.Size(part.offsets), sizes=torch.Size(part.shape)) for part in stored.parts]
    return TensorStorageMetadata(TensorProperties(dtype=stored.dtype), torch.Size(stored.shape), chunks)


def _tensor(data: Any) -> Tensor:
    tensor: Tensor = data
    return tensor.detach().contiguous()


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


def _raise_first(error: CheckpointException) -> NoReturn:
    """Raise what the first process that failed raised; all of them do."""
    first = error.failures[min(error.failures)][0]
    if isinstance(first, OpenAFMError):
        first.shared = True
    raise first from error
