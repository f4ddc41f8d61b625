"""Sparse upcycling: a dense decoder's weights as the start of one with experts (report 4.3; arXiv 2212.05055).

A token's experts are weighted to add up to 1, so as long as they are copies of one feed-forward the two models compute the
same.

Shapes: T tracks (absent without), E experts, F hidden dim, D model dim, U hidden units to forget.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openafm.models.decoder import Decoder
from openafm.models.experts import Experts
from openafm.models.upcycling_config import UpcyclingConfig, upcycled_config


@torch.no_grad()
def upcycle(dense: Decoder, upcycling: UpcyclingConfig, seed: int = 0) -> Decoder:
    """A decoder of `upcycled_config` with the weights of `dense`, its routers drawn from `seed`.

    Raises:
        UpcyclingError: see `upcycled_config`.
    """
    with torch.device("meta"):
        upcycled = upcycled_config(dense.config, upcycling).build()
    upcycled.to_empty(device=dense.device)
    upcycled.compute_dtype = dense.compute_dtype
    theirs = upcycled.state_dict()
    for name, weight in dense.state_dict().items():
        if name in theirs:
            theirs[name].copy_(weight)
        else:  # layers.1.feed_forward.gate.weight [F, D] of a Linear becomes layers.1.feed_forward.gate [E, F, D]
            theirs[name.removesuffix(".weight")].copy_(weight.unsqueeze(-3))
    generator = torch.Generator(device=dense.device).manual_seed(seed)
    for experts in upcycled.modules():
        if isinstance(experts, Experts):
            experts.router.initialize(generator)
            upcycling.experts.apply(experts, generator)
    return upcycled.train(dense.training)


@torch.no_grad()
def forget_units(experts: Experts, share: float, generator: torch.Generator) -> None:
    """Draw the weights of a `share` of every expert's hidden units anew, from a normal law with the moments of the old."""
    for gate_FD, up_FD, down_DF in zip(_each(experts.gate), _each(experts.up), _each(experts.down), strict=True):
        num_units = len(gate_FD)
        units_U = torch.randperm(num_units, generator=generator, device=generator.device)[: round(share * num_units)]
        for weight_FD in (gate_FD, up_FD, down_DF.T):
            old_UD = weight_FD[units_U]
            fresh_UD = torch.empty_like(old_UD).normal_(generator=generator)
            weight_FD[units_U] = old_UD.mean() + old_UD.std() * fresh_UD


def _each(weights: Tensor) -> Tensor:
    """The experts of all tracks one after another, as views of their weights."""
    return weights.flatten(0, -3)
