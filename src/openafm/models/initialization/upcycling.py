"""Sparse upcycling: initialize a mixture of experts from a dense decoder (report 4.3; arXiv 2212.05055).

The weights of a token's experts add up to 1, so the model computes the dense model's outputs while its experts are copies of
one feed-forward.

Shapes: T tracks (absent without), E experts, F hidden dim, D model dim, U hidden units to replace.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openafm.models.decoder import Decoder
from openafm.models.feed_forward.experts import Experts
from openafm.models.initialization.upcycling_config import UpcyclingConfig, upcycled_config


@torch.no_grad()
def upcycle(dense: Decoder, upcycling: UpcyclingConfig, seed: int = 0) -> Decoder:
    """Return a decoder of `upcycled_config` with the weights of `dense` and routers drawn from `seed`.

    Raises:
        UpcyclingError: see `upcycled_config`.
    """
    with torch.device("meta"):
        upcycled = upcycled_config(dense.config, upcycling).build()
    upcycled.to_empty(device=dense.device)
    upcycled.compute_dtype = dense.compute_dtype
    weights = upcycled.state_dict()
    for name, weight in dense.state_dict().items():
        if name in weights:
            weights[name].copy_(weight)
        else:  # layers.1.feed_forward.gate.weight [F, D] of a Linear becomes layers.1.feed_forward.gate [E, F, D]
            weights[name.removesuffix(".weight")].copy_(weight.unsqueeze(-3))
    generator = torch.Generator(device=dense.device).manual_seed(seed)
    for experts in upcycled.modules():
        if isinstance(experts, Experts):
            experts.router.initialize(generator)
            upcycling.experts.apply(experts, generator)
    return upcycled.train(dense.training)


@torch.no_grad()
def redraw_units(experts: Experts, share: float, generator: torch.Generator) -> None:
    """Redraw the weights of a `share` of each expert's hidden units from a normal distribution with their moments."""
    for gate_FD, up_FD, down_DF in zip(_each(experts.gate), _each(experts.up), _each(experts.down), strict=True):
        num_units = len(gate_FD)
        units_U = torch.randperm(num_units, generator=generator, device=generator.device)[: round(share * num_units)]
        for weight_FD in (gate_FD, up_FD, down_DF.T):
            old_UD = weight_FD[units_U]
            fresh_UD = torch.empty_like(old_UD).normal_(generator=generator)
            weight_FD[units_U] = old_UD.mean() + old_UD.std() * fresh_UD


def _each(weights: Tensor) -> Tensor:
    """Return views of the weights of all experts of all tracks."""
    return weights.flatten(0, -3)
