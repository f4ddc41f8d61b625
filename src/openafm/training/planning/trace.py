"""A trace of a planned step: the trainer's own code for rank 0, under fake tensors and a fake group of all ranks.

Fake tensors have shapes and no values, a fake group has ranks and no processes: one CPU traces thousands of devices. The
trace shows what the program does: each collective with its group and bytes, and the peak memory of tensors.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from openafm.core.errors import UsageError
from openafm.data.loading.batch import Batch
from openafm.models.attention import document_attention
from openafm.models.attention.spans import Span
from openafm.models.feed_forward.experts import Experts
from openafm.models.parallel.expert_parallel import AllToAllExchange, even_counts
from openafm.training.distributed.config import MeshShape, ParallelConfig
from openafm.training.distributed.parallel import Parallelism
from openafm.training.distributed.processes import Processes
from openafm.training.objectives import cross_entropy
from openafm.training.objectives.base import NextToken
from openafm.training.planning.plan import Plan
from openafm.training.state import PreparedModel, TrainingState

DATA_AXES = ("replicate", "data", "data of experts")
"""Axes along which ranks hold copies of weights: their collectives sum gradients, and alone may cross slices."""

_KINDS = {
    "_allgather_base_": "all-gather",
    "allgather_": "all-gather",
    "all_gather_into_tensor": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "reduce_scatter_tensor": "reduce-scatter",
    "allreduce_": "all-reduce",
    "all_reduce": "all-reduce",
    "alltoall_base_": "all-to-all",
}


class TraceError(UsageError):
    """A step cannot be traced here: this process has a process group already."""


@dataclass(frozen=True, kw_only=True)
class TracedCollective:
    """All calls of one kind along one axis in a step.

    `bytes` are those that the rank gives or gets in all calls: the whole that it gathers, reduces or exchanges.
    """

    axis: str
    kind: str
    ranks: int
    count: int
    bytes: int
    crosses_slices: bool


@dataclass(frozen=True, kw_only=True)
class StepTrace:
    """One step of rank 0: its collectives, and the bytes of its tensors: held between steps, and at the peak.

    `weights` includes their average. Memory of libraries, and memory that the allocator keeps, are not counted.
    """

    ranks: int
    collectives: tuple[TracedCollective, ...]
    weights: int
    optimizer: int
    peak: int

    @property
    def crossing(self) -> tuple[TracedCollective, ...]:
        """The collectives across slices."""
        return tuple(collective for collective in self.collectives if collective.crosses_slices)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ranks": self.ranks,
            "weights": self.weights,
            "optimizer": self.optimizer,
            "peak": self.peak,
            "collectives": [asdict(collective) for collective in self.collectives],
            "collectives_crossing_slices": sum(collective.count for collective in self.crossing),
            "axes_crossing_slices": sorted({collective.axis for collective in self.crossing}),
        }


def trace_step(plan: Plan) -> StepTrace:
    """Trace the step of a plan: forward and backward pass of each microbatch, sums of gradients, optimizer.

    Attention uses the flash kernel, as on a GPU; experts are evenly loaded. Losses are not read.

    Raises:
        TraceError: this process has a process group.
        MeshError: the layout does not divide the model.
    """
    with _fake_processes(plan.shape.world) as processes, _as_on_a_gpu():
        config = ParallelConfig(
            **{axis: size for axis, size in plan.shape.axes.items() if axis != "replicate"},
            slices=plan.shape.slices,
            context_layout=plan.shape.context_layout,
        )
        parallelism = Parallelism(config, plan.model, processes)
        with torch.device("meta"):
            model = plan.model.build()
        model.compute_dtype = getattr(torch, plan.workload.precision)
        if plan.workload.activation_checkpointing is not None:
            plan.workload.activation_checkpointing.apply(model)
        parallelism.divide(model)
        recorder, memory = _Recorder(parallelism), _MemoryMeter()
        with FakeTensorMode(allow_non_fake_inputs=True), memory.resizes_counted(), memory:
            state = TrainingState(
                PreparedModel(model=model), plan.workload.optimizer, plan.workload.ema, num_steps=1, parallelism=parallelism
            )
            for module in model.modules():
                if isinstance(module, Experts) and isinstance(module.exchange, AllToAllExchange):
                    module.exchange.count_rows = even_counts
            weights = memory.now
            _make_optimizer_state(state)
            held = memory.now
            with recorder:
                _step(plan, state)
    return StepTrace(
        ranks=plan.shape.world,
        collectives=recorder.collectives,
        weights=weights,
        optimizer=held - weights,
        peak=memory.peak,
    )


def _make_optimizer_state(state: TrainingState) -> None:
    """Let the optimizers allocate their state, which they do in their first step."""
    for parameter in state.parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    for optimizer in state.optimizers:
        optimizer.step()
        optimizer.zero_grad()


def _step(plan: Plan, state: TrainingState) -> None:
    """Do what `Trainer.update` does, without reading a value."""
    objective, parallelism = NextToken(), state.parallelism
    left = plan.rows_per_device
    while left:
        rows = min(left, plan.microbatch_rows)
        left -= rows
        losses = parallelism.losses(objective, state.model, parallelism.part_of_rows(_batch(plan, rows)))
        parallelism.before_backward(state.model, is_last=not left)
        losses.total.backward()
        del losses
    parallelism.reduce_gradients()
    for optimizer in state.optimizers:
        optimizer.step()
        optimizer.zero_grad()
    state.update_ema()


def _batch(plan: Plan, num_rows: int) -> Batch:
    """Return rows full of documents, of which all but the last positions carry loss."""
    length = plan.workload.row_tokens
    each = min(plan.workload.document_tokens or length, length)
    documents = [Span(row, start, min(start + each, length)) for row in range(num_rows) for start in range(0, length, each)]
    loss_mask_BS = np.ones((num_rows, length), dtype=np.bool_)
    for row, _, stop in documents:
        loss_mask_BS[row, stop - 1] = False
    tokens_BS = np.zeros((num_rows, length), dtype=np.int64)
    return Batch(tokens_BS=tokens_BS, targets_BS=tokens_BS, loss_mask_BS=loss_mask_BS, documents=tuple(documents))


@contextmanager
def _fake_processes(world: int) -> Iterator[Processes]:
    """Open a group of `world` ranks that exchanges nothing, as rank 0."""
    if dist.is_initialized():
        raise TraceError("a trace needs a process without a process group; run it outside of torchrun")
    if world == 1:
        yield Processes()
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        yield Processes(rank=0, world=world)
    finally:
        dist.destroy_process_group()


@contextmanager
def _as_on_a_gpu() -> Iterator[None]:
    """Treat tensors on the CPU as those of a GPU: the flash kernel in every precision, the softmax of a chunk at once."""
    before = document_attention.FLASH_DEVICES, document_attention.FLASH_DTYPES
    blocks = cross_entropy.BLOCK_DEVICES
    document_attention.FLASH_DEVICES = before[0] | {"cpu"}
    document_attention.FLASH_DTYPES = (*before[1], torch.float32)
    cross_entropy.BLOCK_DEVICES = blocks - {"cpu"}
    try:
        yield
    finally:
        document_attention.FLASH_DEVICES, document_attention.FLASH_DTYPES = before
        cross_entropy.BLOCK_DEVICES = blocks


class _MemoryMeter(TorchDispatchMode):
    """Count the bytes of the storages that operations allocate: those alive `now`, and their `peak`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            if isinstance(tensor, FakeTensor):  # a DTensor is a wrapper: its local tensor is counted
                self._set(tensor.untyped_storage())
        return result

    def _set(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = 0
            weakref.finalize(storage, self._free, key)
        self.now += storage.nbytes() - self._sizes[key]
        self._sizes[key] = storage.nbytes()
        self.peak = max(self.peak, self.now)

    def _free(self, key: int) -> None:
        self.now -= self._sizes.pop(key)

    @contextmanager
    def resizes_counted(self) -> Iterator[None]:
        """Count changes of a storage's size: FSDP frees and allocates gathered weights in this way."""
        resize = torch.UntypedStorage.resize_

        def counted(storage: torch.UntypedStorage, size: int) -> Any:
            resized = resize(storage, size)
            self._set(storage)
            return resized

        torch.UntypedStorage.resize_ = counted  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]


class _Recorder(TorchDispatchMode):
    """Record the collectives that are called while it is active."""

    def __init__(self, parallelism: Parallelism) -> None:
        super().__init__()
        self._names = parallelism.group_names()
        self._shape: MeshShape = parallelism.shape
        self._found: dict[tuple[str, str], TracedCollective] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            kind = _KINDS.get(func.__name__.split(".")[0])
            if kind is not None:
                self._add(kind, args)
        return func(*args, **(kwargs or {}))

    def _add(self, kind: str, args: Sequence[Any]) -> None:
        group = _group(args)
        ranks = tuple(dist.get_process_group_ranks(group))
        if len(ranks) == 1:
            return
        size = max(tensor.nbytes for tensor in _tensors(args))
        axis = self._names.get(group.group_name) or self._names.get(ranks, "all ranks")
        within = self._shape.world // self._shape.slices
        old = self._found.get((axis, kind))
        if old is None:
            crosses = len({rank // within for rank in ranks}) > 1
            old = TracedCollective(axis=axis, kind=kind, ranks=len(ranks), count=0, bytes=0, crosses_slices=crosses)
        self._found[axis, kind] = replace(old, count=old.count + 1, bytes=old.bytes + size)

    @property
    def collectives(self) -> tuple[TracedCollective, ...]:
        return tuple(self._found.values())


def _group(args: Sequence[Any]) -> dist.ProcessGroup:
    """Return the group among the arguments of a collective: an object, or the name that functional collectives have."""
    for value in args:
        if isinstance(value, torch.ScriptObject):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if "ProcessGroup" in str(value._type()):
                    return dist.ProcessGroup.unbox(value)
    (name,) = [value for value in args if isinstance(value, str) and value not in ("sum", "avg")]
    return dist.distributed_c10d._resolve_process_group(name)  # type: ignore[attr-defined,arg-type]


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)
