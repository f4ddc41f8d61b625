"""Activation checkpointing: layers recompute their activations in the backward pass instead of keeping them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from openafm.models.attention.context import AttentionContext
from openafm.models.decoder import Decoder

LayerPass = Callable[[Tensor, AttentionContext], Tensor]


def recompute_layers(model: Decoder, layers: Iterable[int], *, keep_attention: bool = False) -> None:
    """Make these layers keep their input only, and the keys and values that they store, until the backward pass.

    With `keep_attention` they also keep the outputs of attention kernels, which are not computed again. Short documents in
    bf16 on CPUs have no such kernel (`short_attention.py`): their attention is computed again.
    Layers keep their names and parameters. Install it before FSDP, whose hooks must lie outside of the recomputation.
    """
    for index in layers:
        layer = model.layers[index]
        for name in ("forward", "read"):
            setattr(layer, name, _recomputed(getattr(layer, name), keep_attention))


def attention_kernels() -> list[OpOverload]:
    """Return the operations of torch that compute attention, on every type of device."""
    from torch.nn.attention import varlen  # noqa: F401 - defines the operation of the flash kernel for documents

    from openafm.models.attention import blocked_attention  # noqa: F401 - defines its operation

    return [
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
        torch.ops.torch_attn._varlen_attn.default,
        torch.ops.openafm.blocked_attention.default,
    ]


def _recomputed(layer_pass: LayerPass, keep_attention: bool) -> LayerPass:
    options: dict[str, Any] = {}
    if keep_attention:
        options["context_fn"] = partial(create_selective_checkpoint_contexts, attention_kernels())

    @wraps(layer_pass)
    def recomputed(x_BSD: Tensor, context: AttentionContext) -> Tensor:
        if not torch.is_grad_enabled():
            return layer_pass(x_BSD, context)
        is_recomputing = False

        def first_or_again(x_BSD: Tensor, context: AttentionContext) -> Tensor:
            nonlocal is_recomputing
            if not is_recomputing:
                is_recomputing = True
                return layer_pass(x_BSD, context)
            # Stored, the new keys and values would keep the activations of this pass alive until the end of the step.
            with context.discarding_stored():
                return layer_pass(x_BSD, context)

        output: Tensor = checkpoint(first_or_again, x_BSD, context, use_reentrant=False, **options)
        return output

    return recomputed
