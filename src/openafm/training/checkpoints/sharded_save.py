"""Tensors of a checkpoint that several processes write, each block once; sharded_load.py reads them.

torch.distributed.checkpoint (DCP) plans which process writes which block. The plan is kept: the layout of a training state
does not change between checkpoints, and planning costs more CPU time than writing. The files are safetensors and JSON
(index.py): torch's own storage uses pickle, which runs code when it is read.
Saving runs in the caller's thread: the given state is already a copy on the host, so training continues meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.tensor import DTensor

from openafm.core.errors import OpenAFMError, portable_error
from openafm.core.files import file_checksum, room_for
from openafm.training.checkpoints.index import INDEX, Index, IndexedTensor, TensorBlock, write_index
from openafm.training.distributed.processes import Processes
from openafm.training.snapshot import PartsByName, Tensors

T = TypeVar("T")
Finish = Callable[[Mapping[str, str]], None]
"""Called on rank 0 with the checksum of every file, once all files are written."""


@dataclass(frozen=True, kw_only=True)
class BlockPlan:
    """The blocks that this rank writes, for tensors of one layout.

    Attributes:
        layout: names, dtypes and shapes of the parts that the plan is for.
        keys: tensors whose local part this rank writes.
        index: all blocks of all ranks, on rank 0; empty on the others.
    """

    layout: tuple[Any, ...]
    keys: tuple[str, ...]
    index: Index


class ShardedSave:
    """Writes checkpoints of one run. It keeps the plan of the last one, for tensors of the same layout."""

    def __init__(self) -> None:
        self._plan: BlockPlan | None = None

    def save(self, folder: Path, groups: Mapping[str, Tensors], processes: Processes, finish: Finish) -> None:
        """Write this process's parts of tensors into `folder`, together with all processes; return after `finish`.

        Tensors are DTensors over all processes, or equal on each, under the same names everywhere.

        Raises:
            OutOfSpaceError: the disk of one of the processes is full; all raise it.
        """
        parts = {f"{group}/{name}": part for group, named in groups.items() for name, part in _local(named).items()}
        layout = tuple((key, part.dtype, part.shape) for key, part in parts.items())
        (is_new,) = processes.any_rank(self._plan is None or self._plan.layout != layout)
        if self._plan is None or is_new:
            self._plan = plan_blocks(groups, layout, processes)
        plan, file = self._plan, file_of_rank(processes.rank, processes.world)
        checksum = _on_all(processes, lambda: _write(folder / file, {key: parts[key].contiguous() for key in plan.keys}))
        checksums = processes.all_gather((file, checksum))

        def complete() -> None:
            with room_for(folder):
                write_index(folder, plan.index)
                files = {name: found for name, found in sorted(checksums) if found is not None}
                finish(files | {INDEX: file_checksum(folder / INDEX)})

        _on_all(processes, complete if processes.is_main else lambda: None)


def plan_blocks(groups: Mapping[str, Tensors], layout: tuple[Any, ...], processes: Processes) -> BlockPlan:
    """Return which blocks of the tensors this rank writes. All ranks call it; rank 0 plans."""
    planner = DefaultSavePlanner(flatten_state_dict=False)

    def plan_local() -> SavePlan:
        tensors = {f"{group}/{name}": tensor for group, named in groups.items() for name, tensor in named.items()}
        planner.set_up_planner(tensors, is_coordinator=processes.is_main)
        return planner.create_local_plan()

    local = _on_all(processes, plan_local)
    gathered: list[Any] | None = [None] * processes.world if processes.is_main else None
    dist.gather_object(local, gathered, group=processes.control, group_dst=0)

    def plan_global() -> tuple[list[tuple[str, ...]] | None, Index]:
        if gathered is None:
            return None, {}
        plans, metadata = planner.create_global_plan(gathered)
        return [_keys(plan) for plan in plans], _index(plans, metadata)

    keys, index = _on_all(processes, plan_global)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, keys, group=processes.control, group_src=0)
    return BlockPlan(layout=layout, keys=mine[0], index=index)


def file_of_rank(rank: int, world: int) -> str:
    """Return the name of the file that a rank writes."""
    return f"rank-{rank:05}-of-{world:05}.safetensors"


@torch.no_grad()
def _local(named: Tensors) -> Tensors:
    """Return this process's parts as plain tensors."""
    if isinstance(named, PartsByName):
        return named.local
    return {name: tensor.to_local() if isinstance(tensor, DTensor) else tensor for name, tensor in named.items()}


def _keys(plan: SavePlan) -> tuple[str, ...]:
    """Return the tensors of a rank's plan; empty blocks, which uneven shards leave, are not written."""
    return tuple(
        item.index.fqn for item in plan.items if item.tensor_data is not None and item.tensor_data.chunk.sizes.numel()
    )


def _index(plans: list[SavePlan], metadata: Metadata) -> dict[str, IndexedTensor]:
    """Return the tensors with the blocks that the ranks of `plans` write."""
    blocks: dict[str, list[TensorBlock]] = {key: [] for key in metadata.state_dict_metadata}
    for rank, plan in enumerate(plans):
        file = file_of_rank(rank, len(plans))
        for item in plan.items:
            chunk = None if item.tensor_data is None else item.tensor_data.chunk
            if chunk is not None and chunk.sizes.numel():
                key = item.index.fqn
                block = TensorBlock(file=file, key=key, offsets=tuple(chunk.offsets), shape=tuple(chunk.sizes))
                blocks[key].append(block)
    return {
        key: IndexedTensor(dtype=stored.properties.dtype, shape=tuple(stored.size), blocks=tuple(blocks[key]))
        for key, stored in metadata.state_dict_metadata.items()
        if isinstance(stored, TensorStorageMetadata)
    }


def _write(path: Path, tensors: dict[str, Tensor]) -> str | None:
    """Write a file, flushed to disk, and return its checksum; without tensors there is no file."""
    if not tensors:
        return None
    with room_for(path):
        save_file(tensors, path)
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    return file_checksum(path)


def _on_all(processes: Processes, work: Callable[[], T]) -> T:
    """Run `work` on every rank; if it fails on one, all raise the error of the first that failed."""
    results: list[T] = []
    failure = None
    try:
        results.append(work())
    except Exception as error:
        failure = error
    failures = processes.all_gather(None if failure is None else portable_error(failure))
    first = next((found for found in failures if found is not None), None)
    if first is None:
        return results[0]
    if isinstance(first, OpenAFMError):
        first.shared = True
    raise first from failure
