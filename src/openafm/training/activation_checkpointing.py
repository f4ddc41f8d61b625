"""Activation checkpointing: layers recompute their activations in the backward pass instead of keeping them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from openafm.models.attention_context import AttentionContext
from openafm.models.decoder import Decoder

LayerPass = Callable[[Tensor, AttentionContext], Tensor]


def recompute_layers(model: Decoder, layers: Iterable[int]) -> None:
    """Make these layers keep their input only, and the keys and values that they store, until the backward pass.

    Layers keep their names and parameters. Install it before FSDP, whose hooks must lie outside of the recomputation.
    """
    for index in layers:
        layer = model.layers[index]
        for name in ("forward", "read"):
            setattr(layer, name, _recomputed(getattr(layer, name)))


def _recomputed(layer_pass: LayerPass) -> LayerPass:
    @wraps(layer_pass)
    def recomputed(x_BSD: Tensor, context: AttentionContext) -> Tensor:
        if not torch.is_grad_enabled():
            return layer_pass(x_BSD, context)
        output: Tensor = checkpoint(layer_pass, x_BSD, context, use_reentrant=False)
        return output

    return recomputed
