"""FSDP over a mesh: weights are cut up layer by layer, gathered for use, their gradients summed where they are kept.

Apart from `parallel.py` because its imports take as long as the start of a small run, and one process needs none of them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import cast

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import Shard
from torch.nn import Parameter

from openafm.models.decoder import Decoder


def shard(
    model: Decoder,
    dims: Mapping[Parameter, int],
    mesh: DeviceMesh,
    of_experts: Container[Parameter],
    expert_mesh: DeviceMesh,
) -> None:
    """Cut the parameters in `dims` along these dims, over `expert_mesh` those of the experts, over `mesh` all others.

    The layer at which the prompt bypass begins goes with what is outside of layers: its two halves run apart, and the first
    has no output through which FSDP would learn that its backward pass begins.
    """
    whole = set(model.parameters()) - dims.keys()

    def cut(module: nn.Module, along: DeviceMesh, *, free_after_forward: bool, kept: set[Parameter]) -> None:
        fully_shard(
            module,
            mesh=along,
            reshard_after_forward=free_after_forward,
            shard_placement_fn=lambda parameter: Shard(dims[parameter]),
            ignored_params=kept,
        )
        cast(FSDPModule, module).set_gradient_divide_factor(1.0)
        cast(FSDPModule, module).set_force_sum_reduction_for_comms(True)

    for index, layer in enumerate(model.layers):
        experts = {p for p in layer.parameters() if p in of_experts} - whole
        if experts:
            others = set(layer.parameters()) - experts
            cut(cast(nn.Module, layer.feed_forward), expert_mesh, free_after_forward=True, kept=whole | others)
        if index != model.config.num_prefill_layers - 1:
            cut(layer, mesh, free_after_forward=True, kept=whole)
            register_fsdp_forward_method(layer, "read")
    cut(model, mesh, free_after_forward=False, kept=whole)
    for method in ("hidden", "hidden_at", "last_hidden"):
        register_fsdp_forward_method(model, method)
