"""A run divided over processes: the mesh, each process's part of the model, and the collectives (report 4.3).

Along `track` and `expert` a process holds its part of the weights as plain tensors; along `shard` FSDP shards the rest.
Optimizer, average and checkpoints see plain local tensors, which are views of FSDP's shards. Gradients are sums over the
data, not means: the trainer divides once, by the items of the whole step. A single process opens no process group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter

from openafm.core.errors import UsageError
from openafm.data.loading.batch import Batch
from openafm.models.attention.spans import Span
from openafm.models.config import DecoderConfig
from openafm.models.decoder import Decoder
from openafm.models.feed_forward.experts import Experts, Router
from openafm.models.layers import RMSNorm
from openafm.models.parallel.context_parallel import GroupKeyValueExchange
from openafm.models.parallel.expert_parallel import share_experts
from openafm.models.parallel.track_parallel import has_track_dim, share_tracks
from openafm.models.vision.clip import ClipModel
from openafm.training.distributed.config import MeshShape, ParallelConfig
from openafm.training.distributed.processes import Processes
from openafm.training.objectives.base import Losses, Objective

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor, Placement

BUCKET_BYTES = 64 << 20  # of gradients per all-reduce


@dataclass(frozen=True, kw_only=True)
class ParameterLayout:
    """The part of a parameter in a process: its tracks or all, its experts or all, a shard along `shard_dim` or all."""

    of_tracks: bool
    of_experts: bool
    shard_dim: int | None


class Parallelism:
    """The part of this process in a run.

    Attributes:
        shape: the sizes of the axes.
        mesh: the processes along `replicate` and `context` together, `shard`, `expert`, `track`, in this order; None for a
            single process.
        data_rank, data_world: the rows of a step that this process reads.

    Raises:
        MeshError: the config does not fit the processes or the model.
    """

    def __init__(self, config: ParallelConfig, model: DecoderConfig, processes: Processes, device: str = "cpu") -> None:
        self.processes, self.rank, self.world, self.is_main = processes, processes.rank, processes.world, processes.is_main
        self.shape: MeshShape = config.shape(processes.world)
        config.check_model(model)
        self.data_rank, self.data_world = self.shape.data_rank(self.rank), self.shape.data_world
        self.mesh: DeviceMesh | None = None
        self._host_mesh: DeviceMesh | None = None
        self._context: dist.ProcessGroup | None = None
        self._head: str | None = None  # the parameter whose rows the ranks of `track` divide in the loss
        self._layouts: dict[str, ParameterLayout] = {}
        self._sharded: dict[str, tuple[Parameter, Parameter]] = {}  # FSDP's parameter, and a view of its local shard
        self._whole: dict[str, Parameter] = {}
        if processes.world > 1:
            self._build_meshes(torch.device(device).type)

    def _build_meshes(self, device: str) -> None:
        """Build the mesh, and further meshes over the same processes with neighboring axes merged."""
        from torch.distributed.device_mesh import init_device_mesh

        shape = self.shape

        def mesh_of(where: str, **axes: int) -> DeviceMesh:
            return init_device_mesh(where, tuple(axes.values()), mesh_dim_names=tuple(axes))

        self.mesh = mesh_of(device, **shape.weight_axes)
        self._host_mesh = self.mesh if device == "cpu" else mesh_of("cpu", **shape.weight_axes)
        dense_shard, inner = shape.shard * shape.expert, shape.expert * shape.track
        self._dense_mesh = mesh_of(device, replicate=shape.copies, shard=dense_shard, track=shape.track)
        self._data = mesh_of(device, data=shape.copies * dense_shard, track=shape.track).get_group("data")
        self._expert_data = mesh_of(device, data=shape.copies * shape.shard, inner=inner).get_group("data")
        if shape.context > 1:
            context_mesh = mesh_of(device, outer=shape.replicate, context=shape.context, inner=dense_shard * shape.track)
            self._context = context_mesh.get_group("context")

    def group_names(self) -> dict[str | tuple[int, ...], str]:
        """Return the names of the axes by this process's groups, and by their ranks; of equal ranks, the first group's."""
        if self.mesh is None:
            return {}
        groups = {axis: self.mesh.get_group(axis) for axis in self.shape.weight_axes}
        groups |= {"shard+expert": self._dense_mesh.get_group("shard")}
        groups |= {"data": self._data, "data of experts": self._expert_data}
        names: dict[str | tuple[int, ...], str] = {}
        for name, group in groups.items():
            names.setdefault(tuple(dist.get_process_group_ranks(group)), name)
        return names if self._context is None else {self._context.group_name: "context", **names}

    def apply(self, model: Decoder, device: torch.device | str) -> dict[str, Parameter]:
        """Reduce the whole model, with equal weights on every process, to this process's part, and move it to `device`.

        A model on the meta device gets memory for this process's part alone, with undefined values. Returns the trainable
        parameters by name as plain local tensors, for the optimizer.
        """
        if model.device.type != "meta":
            model.to(device)
        if not self._layouts:
            self.divide(model)
        if model.device.type == "meta":
            model.to_empty(device=device)
        learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        if self.mesh is None:
            return learning
        for name, parameter in learning.items():
            if self._layouts[name].shard_dim is None:
                self._whole[name] = parameter
            else:
                self._sharded[name] = (parameter, Parameter(cast("DTensor", parameter).to_local().detach()))
        return {name: self._sharded[name][1] if name in self._sharded else parameter for name, parameter in learning.items()}

    def divide(self, model: Decoder) -> None:
        """Keep this process's tracks and experts of the model, exchange keys and values, and shard the rest with FSDP."""
        if self.mesh is None:
            return
        if self.shape.track > 1:
            share_tracks(model, self.mesh.get_group("track"))
            if self.shape.vocabulary_ranks(model.config.vocab_size) > 1:
                model.vocabulary_group = self.mesh.get_group("track")
                self._head = "embedding" if model.output is None else "output.weight"
        if self.shape.expert > 1:
            share_experts(model, self.mesh.get_group("expert"))
        if self._context is not None:
            model.key_value_exchange = GroupKeyValueExchange(self._context, self.shape.context_layout)
        self._layouts = self._partition(model)
        if isinstance(model, ClipModel):
            model.gather = partial(gather_vectors, group=self._data)
        if self._is_sharded:
            self._shard(model, self.mesh)

    def _partition(self, model: Decoder) -> dict[str, ParameterLayout]:
        """Return the layout of each parameter, by its module and shape."""
        of_router = {p for module in model.modules() if isinstance(module, Router) for p in module.parameters()}
        of_norms = {p for module in model.modules() if isinstance(module, RMSNorm) for p in module.parameters()}
        of_experts = {
            p
            for module in model.modules()
            if isinstance(module, Experts) and self.shape.expert > 1
            for p in (module.gate, module.up, module.down)
        }
        layouts: dict[str, ParameterLayout] = {}
        for name, parameter in model.named_parameters():
            tracks, experts = model.tracks is not None and has_track_dim(name), parameter in of_experts
            pieces = self.shape.shard * (1 if experts else self.shape.expert)
            first_free = parameter.ndim - 2 if experts else int(tracks)
            dims: Iterable[int] = range(first_free, parameter.ndim) if pieces > 1 and parameter not in of_router else ()
            # FSDP and checkpoints need even shards; a parameter without such a dim, a short vector, stays whole.
            if parameter in of_norms and model.compute_dtype is not torch.float32:
                dims = ()  # norms compute in fp32, FSDP gathers in 16 bits
            shard_dim = next((dim for dim in dims if parameter.shape[dim] % pieces == 0), None)
            layouts[name] = ParameterLayout(of_tracks=tracks, of_experts=experts, shard_dim=shard_dim)
        return layouts

    def _shard(self, model: Decoder, mesh: DeviceMesh) -> None:
        """Shard parameters along `shard`, and those outside of experts along `expert` too."""
        from openafm.training.distributed.fully_sharded import shard

        layouts = {parameter: self._layouts[name] for name, parameter in model.named_parameters()}
        axes = ("replicate", "shard") if self.shape.copies > 1 else ("shard",)
        shard(
            model,
            {parameter: layout.shard_dim for parameter, layout in layouts.items() if layout.shard_dim is not None},
            self._dense_mesh[axes],
            {parameter for parameter, layout in layouts.items() if layout.of_experts},
            mesh[axes],
            model.compute_dtype,
        )

    @property
    def _is_sharded(self) -> bool:
        """Return True if FSDP shards a parameter of this run."""
        return any(layout.shard_dim is not None for layout in self._layouts.values())

    def before_backward(self, model: Decoder, *, is_last: bool) -> None:
        """Make FSDP reduce gradients over `replicate` only in the last backward pass of a step."""
        if self._is_sharded:
            cast("FSDPModule", model).set_requires_all_reduce(is_last)

    def part_of_rows(self, batch: Batch) -> Batch:
        """Return the part of the rows whose positions this process computes: all of them without context parallelism."""
        shape = self.shape
        if shape.context == 1:
            return batch
        return batch.part_of_rows(shape.context_layout, shape.context_rank(self.rank), shape.context)

    def losses(self, objective: Objective, model: Decoder, batch: Batch) -> Losses:
        """Return the losses of a batch, a part of `part_of_rows`.

        A process without targets runs a dummy batch, so that collectives match.
        """
        if self.mesh is None or batch.num_targets:
            return objective(model, batch)
        losses = objective(model, self.part_of_rows(dummy_batch(batch)))
        return Losses(
            total=losses.total * 0,
            count=0,
            parts={name: part * 0 for name, part in losses.parts.items()},
            expert_tokens={layer: counts * 0 for layer, counts in losses.expert_tokens.items()},
        )

    def reduce_gradients(self) -> None:
        """Sum the gradients over the data ranks into the optimizer's parameters, after the last backward pass."""
        if self.mesh is None:
            return
        for sharded, local in self._sharded.values():
            local.grad = None if sharded.grad is None else cast("DTensor", sharded.grad).to_local()
            sharded.grad = None
        by_group: dict[dist.ProcessGroup, list[Tensor]] = {}
        for name, parameter in self._whole.items():
            if parameter.grad is not None:
                group = self._expert_data if self._layouts[name].of_experts else self._data
                by_group.setdefault(group, []).append(parameter.grad)
        for group, gradients in by_group.items():
            _sum_in_buckets(gradients, group)
        self._average_head_gradient()

    def _average_head_gradient(self) -> None:
        """Average the gradient of the head over the ranks of `track`, which may have divided its rows in the loss."""
        if self.mesh is None or self._head is None:
            return
        parameter = self._sharded[self._head][1] if self._head in self._sharded else self._whole.get(self._head)
        if parameter is not None and parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=self.mesh.get_group("track"))
            parameter.grad /= self.shape.track

    def sum_over_data(self, tensor: Tensor) -> Tensor:
        """Return the sum over the data ranks, equal on all processes."""
        if self.mesh is None:
            return tensor
        total = tensor.to(self.mesh.device_type, copy=True)
        dist.all_reduce(total, group=self._data)
        return total.to(tensor.device)

    def gather_tracks(self, tensor_TX: Tensor) -> Tensor:
        """Return the values of all tracks along the first dim, from those of the local tracks."""
        if self.mesh is None or self.shape.track == 1:
            return tensor_TX
        local_TX = tensor_TX.to(self.mesh.device_type).contiguous()
        pieces = [torch.empty_like(local_TX) for _ in range(self.shape.track)]
        dist.all_gather(pieces, local_TX, group=self.mesh.get_group("track"))
        return torch.cat(pieces).to(tensor_TX.device)

    def total_norm(self, gradients: Mapping[str, Tensor]) -> float:
        """Return the norm of the whole gradient, from the local parts by parameter name."""
        if self.mesh is None:
            return float(torch.nn.utils.get_total_norm(list(gradients.values()), foreach=True))
        norms = torch._foreach_norm(list(gradients.values()), 2)
        copies = [float(self._num_copies(self._layouts[name])) for name in gradients]
        squares = torch.stack(norms).double().square() / torch.tensor(copies, device=norms[0].device, dtype=torch.float64)
        total = squares.sum()
        dist.all_reduce(total)
        return float(total.sqrt())

    def _num_copies(self, layout: ParameterLayout) -> int:
        """Return how many processes hold the same part."""
        pieces = self.shape.track if layout.of_tracks else 1
        if layout.of_experts:
            pieces *= self.shape.expert
            pieces *= 1 if layout.shard_dim is None else self.shape.shard
        elif layout.shard_dim is not None:
            pieces *= self.shape.shard * self.shape.expert
        return self.world // pieces

    def global_view(self, name: str, local_tensor: Tensor) -> DTensor:
        """Return a host tensor of a parameter's local shape, or a number per parameter, as a DTensor, without a copy.

        Weights, moments of the optimizer and averages have the same layout.

        Raises:
            UsageError: no parameter has this name.
        """
        from torch.distributed.tensor import DTensor

        if self._host_mesh is None or name not in self._layouts:
            raise UsageError(f"the divided model has no parameter '{name}'")
        return DTensor.from_local(local_tensor, self._host_mesh, self.placements(name, local_tensor.ndim), run_check=False)

    def part_of(self, name: str, whole: Tensor) -> Tensor:
        """Return this process's part of a host tensor of a parameter's global shape."""
        from torch.distributed.tensor import distribute_tensor

        if self._host_mesh is None:
            return whole
        placements = self.placements(name, whole.ndim)
        return distribute_tensor(whole, self._host_mesh, placements, src_data_rank=None).to_local()

    def local(self, tensor: Tensor) -> Tensor:
        """Return the local part of a tensor from `global_view`; for a single process the tensor itself."""
        return tensor if self.mesh is None else cast("DTensor", tensor).to_local()

    def placements(self, name: str, ndim: int) -> tuple[Placement, ...]:
        """Return a parameter's placements along the axes of `mesh`; scalars are replicated."""
        from torch.distributed.tensor import Replicate, Shard

        layout = self._layouts[name]
        dense: Placement = Replicate() if layout.shard_dim is None or not ndim else Shard(layout.shard_dim)
        of_experts: Placement = Shard(int(layout.of_tracks)) if layout.of_experts and ndim else dense
        if layout.of_experts and not ndim:
            of_experts = Replicate()
        return Replicate(), dense, of_experts, Shard(0) if layout.of_tracks and ndim else Replicate()

    def free_gathered(self, model: Decoder) -> None:
        """Free gathered weights, so that FSDP gathers the changed ones."""
        if self._is_sharded:
            cast("FSDPModule", model).reshard()


def _sum_in_buckets(gradients: list[Tensor], group: dist.ProcessGroup) -> None:
    """All-reduce in place, several small tensors per call."""
    if group.size() == 1:
        return
    bucket: list[Tensor] = []
    for gradient in gradients:
        bucket.append(gradient)
        if sum(g.nbytes for g in bucket) >= BUCKET_BYTES or gradient is gradients[-1]:
            flat = torch.cat([g.flatten() for g in bucket])
            dist.all_reduce(flat, group=group)
            for g, summed in zip(bucket, flat.split([prod(g.shape) for g in bucket]), strict=True):
                g.copy_(summed.view(g.shape))
            bucket = []


def gather_vectors(x_IE: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, int]:
    """Return the vectors of all ranks of a group in order, and the index of this rank's first one.

    Ranks may have different numbers of vectors. Gradients flow back to the rank that computed a vector: the sum of those of
    all ranks.
    """
    from torch.distributed._functional_collectives import all_gather_single_autograd

    counts = [torch.zeros(1, dtype=torch.long, device=x_IE.device) for _ in range(dist.get_world_size(group))]
    dist.all_gather(counts, torch.tensor([len(x_IE)], device=x_IE.device), group=group)
    sizes = [int(count) for count in counts]
    padded_IE = F.pad(x_IE, (0, 0, 0, max(sizes) - len(x_IE)))
    gathered = all_gather_single_autograd(padded_IE, gather_dim=0, group=group).split(max(sizes))
    vectors_AE = torch.cat([each_IE[:size] for each_IE, size in zip(gathered, sizes, strict=True)])
    return vectors_AE, sum(sizes[: dist.get_rank(group)])


def dummy_batch(batch: Batch) -> Batch:
    """Return a batch of one row with one token in the loss, with the whole row length and the token fields of `batch`."""
    row_tokens = batch.tokens_BS.shape[1] if batch.row_part is None else batch.row_part.row_tokens
    tokens_BS = np.zeros((1, row_tokens), dtype=np.int64)
    loss_mask_BS = np.zeros_like(tokens_BS, dtype=np.bool_)
    loss_mask_BS[0, 0] = True
    return Batch(
        tokens_BS=tokens_BS,
        targets_BS=tokens_BS,
        loss_mask_BS=loss_mask_BS,
        documents=(Span(row=0, start=0, stop=1),),
        token_fields={  # without masks over the vocabulary: a mask of zeros would allow no token
            name: np.zeros(tokens_BS.shape, dtype=values.dtype)
            for name, values in batch.token_fields.items()
            if values.ndim == 2
        },
    )
