"""Tensors of a checkpoint that any number of processes reads, through torch.distributed.checkpoint (DCP).

DCP plans which blocks of the files a process reads, whatever the layout of those that wrote them (sharded_save.py).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as planned_load
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from openafm.core.errors import OpenAFMError
from openafm.training.checkpoints.index import Index, IndexedTensor, TensorBlock
from openafm.training.checkpoints.record import DamagedCheckpointError
from openafm.training.distributed.processes import Processes

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem


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


def _metadata(stored: IndexedTensor) -> TensorStorageMetadata:
    chunks = [ChunkStorageMetadata(torch.Size(block.offsets), torch.Size(block.shape)) for block in stored.blocks]
    return TensorStorageMetadata(TensorProperties(dtype=stored.dtype), torch.Size(stored.shape), chunks)


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
