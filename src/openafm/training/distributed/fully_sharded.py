"""FSDP over a mesh: weights are sharded layer by layer and gathered for use; gradients are reduced to the shards.

Separate from `parallel.py` because its imports take as long as the start of a small run, and a single process needs none.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import Shard
from torch.nn import Parameter

from openafm.models.decoder import Decoder


def shard(
    model: Decoder,
    dims: Mapping[Parameter, int],
    mesh: DeviceMesh,
    of_experts: Container[Parameter],
    expert_mesh: DeviceMesh,
    dtype: torch.dtype,
) -> None:
    """Shard the parameters in `dims` along these dims, those of the experts over `expert_mesh`, all others over `mesh`.

    The weights of layers are gathered in `dtype`, in which they compute; shards, sums of gradients, and the embedding and
    head, whose gradients add up over repeated tokens and chunks, are fp32.

    The layer at which the prompt bypass starts is sharded with the parameters outside of layers: its two halves run
    separately, and the first has no output at which FSDP could hook its backward pass.
    """
    whole = set(model.parameters()) - dims.keys()

    in_dtype = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    in_fp32 = MixedPrecisionPolicy(cast_forward_inputs=False)

    def shard_module(module: nn.Module, along: DeviceMesh, *, free_after_forward: bool, ignored: set[Parameter]) -> None:
        fully_shard(
            module,
            mesh=along,
            reshard_after_forward=free_after_forward,
            mp_policy=in_fp32 if module is model or dtype is torch.float32 else in_dtype,
            shard_placement_fn=lambda parameter: Shard(dims[parameter]),
            ignored_params=ignored,
        )
        cast(FSDPModule, module).set_gradient_divide_factor(1.0)
        cast(FSDPModule, module).set_force_sum_reduction_for_comms(True)

    for index, layer in enumerate(model.layers):
        experts = {p for p in layer.parameters() if p in of_experts} - whole
        if experts:
            others = set(layer.parameters()) - experts
            shard_module(cast(nn.Module, layer.feed_forward), expert_mesh, free_after_forward=True, ignored=whole | others)
        if index != model.config.num_prefill_layers - 1:
            shard_module(layer, mesh, free_after_forward=True, ignored=whole)
            register_fsdp_forward_method(layer, "read")
    shard_module(model, mesh, free_after_forward=False, ignored=whole)
    for method in ("hidden", "hidden_at", "last_hidden", "embed_images"):
        register_fsdp_forward_method(model, method)
