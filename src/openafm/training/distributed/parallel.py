"""A run shared out over processes: the mesh, what each holds of the model, and the sums that make them one (report 4.3).

Along `track` and `expert` a process holds its part of the weights as plain tensors; along `shard` FSDP cuts what is left.
Everything outside the model sees plain local tensors: those of the optimizer, the average and the checkpoints are views of
what FSDP keeps. Gradients are sums over the data, never means: the trainer divides once, by the items of the whole step.
One process alone opens no process group and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from openafm.core.errors import UsageError
from openafm.data.batch import Batch
from openafm.models.config import DecoderConfig
from openafm.models.decoder import Decoder
from openafm.models.expert_parallel import share_experts
from openafm.models.experts import Experts, Router
from openafm.models.spans import Span
from openafm.models.track_parallel import has_track_dim, share_tracks
from openafm.training.distributed.config import MeshShape, ParallelConfig
from openafm.training.distributed.processes import Processes
from openafm.training.objectives.base import Losses, Objective

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor, Placement

BUCKET_BYTES = 64 << 20  # of gradients that are summed in one call


class UnknownParameterError(UsageError):
    """A name that no parameter of the model that was shared out has."""


@dataclass(frozen=True, kw_only=True)
class ParameterLayout:
    """What a process holds of one parameter: its tracks or all, its experts or all, a cut along `shard_dim` or none."""

    of_tracks: bool
    of_experts: bool
    shard_dim: int | None


class Parallelism:
    """The share of this process in a run.

    Attributes:
        shape: the sizes of the axes.
        mesh: the processes along `replicate`, `shard`, `expert`, `track`, in this order; None when alone.
        data_rank, data_world: which rows of a step this process reads.

    Raises:
        MeshError: the config does not fit the processes or the model.
    """

    def __init__(self, config: ParallelConfig, model: DecoderConfig, processes: Processes, device: str = "cpu") -> None:
        self.processes, self.rank, self.world, self.is_main = processes, processes.rank, processes.world, processes.is_main
        self.shape: MeshShape = config.shape(processes.world)
        config.check_model(model)
        self.data_rank, self.data_world = self.rank // self.shape.track, self.shape.data_world
        self.mesh: DeviceMesh | None = None
        self._host_mesh: DeviceMesh | None = None
        self._parts: dict[str, ParameterLayout] = {}
        self._cut: dict[str, tuple[Parameter, Parameter]] = {}  # FSDP's, and our view of it
        self._whole: dict[str, Parameter] = {}
        if processes.world > 1:
            self._build_meshes(torch.device(device).type)

    def _build_meshes(self, device: str) -> None:
        """The mesh, and others over the same processes in which neighboring axes are one."""
        from torch.distributed.device_mesh import init_device_mesh

        shape = self.shape

        def mesh_of(where: str, **axes: int) -> DeviceMesh:
            return init_device_mesh(where, tuple(axes.values()), mesh_dim_names=tuple(axes))

        self.mesh = mesh_of(device, **shape.axes)
        self._host_mesh = self.mesh if device == "cpu" else mesh_of("cpu", **shape.axes)
        dense_shard, inner = shape.shard * shape.expert, shape.expert * shape.track
        self._dense_mesh = mesh_of(device, replicate=shape.replicate, shard=dense_shard, track=shape.track)
        self._data = mesh_of(device, data=shape.data_world, track=shape.track).get_group("data")
        self._expert_data = mesh_of(device, data=shape.replicate * shape.shard, inner=inner).get_group("data")

    def apply(self, model: Decoder, device: torch.device | str) -> dict[str, Parameter]:
        """Cut the whole model, whose weights are the same in every process, to what this one holds, and move it there.

        Returns what learns by name, local and plain: what an optimizer is to be given.
        """
        if self.mesh is None:
            model.to(device)
            return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        if self.shape.track > 1:
            share_tracks(model, self.mesh.get_group("track"))
        if self.shape.expert > 1:
            share_experts(model, self.mesh.get_group("expert"))
        model.to(device)
        self._parts = self._partition(model)
        if self._is_cut:
            self._shard(model, self.mesh)
        learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        for name, parameter in learning.items():
            if self._parts[name].shard_dim is None:
                self._whole[name] = parameter
            else:
                self._cut[name] = (parameter, Parameter(cast("DTensor", parameter).to_local().detach()))
        return {name: self._cut[name][1] if name in self._cut else parameter for name, parameter in learning.items()}

    def _partition(self, model: Decoder) -> dict[str, ParameterLayout]:
        """What is held of each parameter, told by where it stands and by its shape."""
        of_router = {p for module in model.modules() if isinstance(module, Router) for p in module.parameters()}
        of_experts = {
            p
            for module in model.modules()
            if isinstance(module, Experts) and self.shape.expert > 1
            for p in (module.gate, module.up, module.down)
        }
        parts: dict[str, ParameterLayout] = {}
        for name, parameter in model.named_parameters():
            tracks, experts = model.tracks is not None and has_track_dim(name), parameter in of_experts
            pieces = self.shape.shard * (1 if experts else self.shape.expert)
            first_free = parameter.ndim - 2 if experts else int(tracks)
            dims = range(first_free, parameter.ndim) if pieces > 1 and parameter not in of_router else ()
            # FSDP and checkpoints want even pieces; what has no dim that gives them, a short vector, stays whole.
            shard_dim = next((dim for dim in dims if parameter.shape[dim] % pieces == 0), None)
            parts[name] = ParameterLayout(of_tracks=tracks, of_experts=experts, shard_dim=shard_dim)
        return parts

    def _shard(self, model: Decoder, mesh: DeviceMesh) -> None:
        """Cut what is cut along `shard`, and along `expert` what is not of experts."""
        from openafm.training.distributed.fully_sharded import shard

        parts = {parameter: self._parts[name] for name, parameter in model.named_parameters()}
        axes = ("replicate", "shard") if self.shape.replicate > 1 else ("shard",)
        shard(
            model,
            {parameter: part.shard_dim for parameter, part in parts.items() if part.shard_dim is not None},
            self._dense_mesh[axes],
            {parameter for parameter, part in parts.items() if part.of_experts},
            mesh[axes],
        )

    @property
    def _is_cut(self) -> bool:
        """Whether FSDP has a part in this run."""
        return any(part.shard_dim is not None for part in self._parts.values())

    def before_backward(self, model: Decoder, *, is_last: bool) -> None:
        """Let FSDP sum gradients over `replicate` in the last backward pass of a step only."""
        if self._is_cut:
            cast("FSDPModule", model).set_requires_all_reduce(is_last)

    def losses(self, objective: Objective, model: Decoder, batch: Batch) -> Losses:
        """The losses of a batch; a process without anything to learn goes through the motions, since others wait for it."""
        if self.mesh is None or batch.num_targets:
            return objective(model, batch)
        losses = objective(model, dummy_batch(batch))
        return Losses(
            total=losses.total * 0,
            count=0,
            parts={name: part * 0 for name, part in losses.parts.items()},
            expert_tokens={layer: counts * 0 for layer, counts in losses.expert_tokens.items()},
        )

    def reduce_gradients(self) -> None:
        """Sum the gradients over the data and put them where the optimizer looks for them, after the last backward pass."""
        if self.mesh is None:
            return
        for sharded, local in self._cut.values():
            local.grad = None if sharded.grad is None else cast("DTensor", sharded.grad).to_local()
            sharded.grad = None
        by_group: dict[dist.ProcessGroup, list[Tensor]] = {}
        for name, parameter in self._whole.items():
            if parameter.grad is not None:
                group = self._expert_data if self._parts[name].of_experts else self._data
                by_group.setdefault(group, []).append(parameter.grad)
        for group, gradients in by_group.items():
            _sum_in_buckets(gradients, group)

    def sum_over_data(self, tensor: Tensor) -> Tensor:
        """The sum over the processes that read rows of their own; the same in all."""
        if self.mesh is None:
            return tensor
        total = tensor.to(self.mesh.device_type, copy=True)
        dist.all_reduce(total, group=self._data)
        return total.to(tensor.device)

    def gather_tracks(self, tensor_TX: Tensor) -> Tensor:
        """What the tracks held here have, and what those of the other processes have, along the first dim."""
        if self.mesh is None or self.shape.track == 1:
            return tensor_TX
        local_TX = tensor_TX.to(self.mesh.device_type).contiguous()
        pieces = [torch.empty_like(local_TX) for _ in range(self.shape.track)]
        dist.all_gather(pieces, local_TX, group=self.mesh.get_group("track"))
        return torch.cat(pieces).to(tensor_TX.device)

    def total_norm(self, gradients: Mapping[str, Tensor]) -> float:
        """The norm of the whole gradient, from what each process holds of it, by name."""
        if self.mesh is None:
            return float(torch.nn.utils.get_total_norm(list(gradients.values()), foreach=True))
        norms = torch._foreach_norm(list(gradients.values()), 2)
        copies = [float(self._num_copies(self._parts[name])) for name in gradients]
        squares = torch.stack(norms).double().square() / torch.tensor(copies, device=norms[0].device, dtype=torch.float64)
        total = squares.sum()
        dist.all_reduce(total)
        return float(total.sqrt())

    def _num_copies(self, part: ParameterLayout) -> int:
        """How many processes hold the same piece."""
        pieces = self.shape.track if part.of_tracks else 1
        if part.of_experts:
            pieces *= self.shape.expert
            pieces *= 1 if part.shard_dim is None else self.shape.shard
        elif part.shard_dim is not None:
            pieces *= self.shape.shard * self.shape.expert
        return self.world // pieces

    def global_view(self, name: str, local_tensor: Tensor) -> DTensor:
        """A tensor of a parameter's shape, or a number beside it, on the host, as the piece of the whole that it is.

        Holds for weights, moments of the optimizer and averages alike; no copy is made.

        Raises:
            UnknownParameterError: no parameter has this name.
        """
        from torch.distributed.tensor import DTensor

        if self._host_mesh is None or name not in self._parts:
            raise UnknownParameterError(f"no parameter '{name}' was shared out")
        return DTensor.from_local(local_tensor, self._host_mesh, self.placements(name, local_tensor.ndim), run_check=False)

    def local(self, tensor: Tensor) -> Tensor:
        """What this process holds of a tensor that `global_view` gave; alone, all of it."""
        return tensor if self.mesh is None else cast("DTensor", tensor).to_local()

    def placements(self, name: str, ndim: int) -> tuple[Placement, ...]:
        """How a parameter lies along `replicate`, `shard`, `expert`, `track`; what has no dims is the same everywhere."""
        from torch.distributed.tensor import Replicate, Shard

        part = self._parts[name]
        cut: Placement = Replicate() if part.shard_dim is None or not ndim else Shard(part.shard_dim)
        of_experts: Placement = Shard(int(part.of_tracks)) if part.of_experts and ndim else cut
        if part.of_experts and not ndim:
            of_experts = Replicate()
        return Replicate(), cut, of_experts, Shard(0) if part.of_tracks and ndim else Replicate()

    def free_gathered(self, model: Decoder) -> None:
        """Free what FSDP has gathered: it is read anew from the weights, which have been changed."""
        if self._is_cut:
            cast("FSDPModule", model).reshard()


def _sum_in_buckets(gradients: list[Tensor], group: dist.ProcessGroup) -> None:
    """All-reduce in place, many small tensors at once."""
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


def dummy_batch(batch: Batch) -> Batch:
    """A batch with rows as long, of a single token that carries loss and is stored nowhere: it has no origin."""
    tokens_BS = np.zeros((1, batch.tokens_BS.shape[1]), dtype=np.int64)
    loss_mask_BS = np.zeros_like(tokens_BS, dtype=np.bool_)
    loss_mask_BS[0, 0] = True
    return Batch(
        tokens_BS=tokens_BS,
        targets_BS=tokens_BS,
        loss_mask_BS=loss_mask_BS,
        documents=(Span(row=0, start=0, stop=1),),
        origins=(),
    )
