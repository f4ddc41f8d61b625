"""Mixture-of-experts feed-forward: router, dropless dispatch, grouped products (report 2.2; arXiv 2211.15841).

The experts of all tracks are the groups of one grouped product: rows are sorted by (track, expert), each group is multiplied
by its weights, and the results are weighted by the router and added at their tokens.

Shapes: T tracks (1 without), N tokens, K experts chosen for a token, E experts of a track, G = T * E groups, M = T * N * K
rows sorted by group, D model dim, F hidden dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openafm.models.feed_forward.experts_config import ExpertsConfig, TopKRouterConfig
from openafm.models.feed_forward.gated import ACTIVATIONS
from openafm.models.layers import Sublayer

ROUTER_STD = 0.02


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Output of a router: fp32 logits of all experts, the chosen experts, and the weights of their outputs."""

    logits_TNE: Tensor
    chosen_TNK: Tensor
    weights_TNK: Tensor


class Router(nn.Module, ABC):
    """Base of the routers: computes logits in fp32 in every precision; a subclass chooses the experts."""

    def __init__(self, dim: int, num_experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, dim))

    @abstractmethod
    def choose(self, logits_TNE: Tensor) -> Routing:
        """Return the experts of each token and their weights."""

    def forward(self, x_TND: Tensor) -> Routing:
        weight_TED = self.weight if self.weight.ndim == 3 else self.weight[None]
        return self.choose(torch.bmm(x_TND.float(), weight_TED.mT))

    def stack_tracks(self, num_tracks: int) -> None:
        """Replace the weight by an uninitialized one with a leading dim of tracks."""
        self.weight = nn.Parameter(self.weight.new_empty(num_tracks, *self.weight.shape))

    def initialize(self, generator: torch.Generator) -> None:
        nn.init.normal_(self.weight, std=ROUTER_STD, generator=generator)


class TopKRouter(Router):
    """Choose the experts with the highest soft-capped logits, weighted by the softmax over them."""

    def __init__(self, config: TopKRouterConfig, dim: int, num_experts: int) -> None:
        super().__init__(dim, num_experts)
        self._config = config

    def choose(self, logits_TNE: Tensor) -> Routing:
        if self._config.soft_cap is not None:
            logits_TNE = self._config.soft_cap * torch.tanh(logits_TNE / self._config.soft_cap)
        top = logits_TNE.topk(self._config.num_chosen, dim=-1)
        return Routing(logits_TNE=logits_TNE, chosen_TNK=top.indices, weights_TNK=top.values.softmax(-1))


class ExpertExchange(Protocol):
    """Slot between dispatch and experts: sends rows to the process that holds their expert and returns the results.

    Args:
        x_MD: rows sorted by group.
        counts_TE: number of rows of each group, for all experts of the local tracks.
        compute: the local experts, a function of rows sorted by group and their counts.
    """

    def __call__(self, x_MD: Tensor, counts_TE: Tensor, compute: Callable[[Tensor, Tensor], Tensor]) -> Tensor: ...


def local_exchange(x_MD: Tensor, counts_TE: Tensor, compute: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Compute all experts in this process."""
    return compute(x_MD, counts_TE)


class Experts(Sublayer):
    """sum over the chosen experts of weight * down(activation(gate(x)) * up(x)).

    Attributes:
        gate, up, down: weights of the experts, [E, F, D], [E, F, D] and [E, D, F], with tracks T before E.
        exchange: slot for expert parallelism; by default all experts are in this process.
        observer: if not None, called with the routing of every forward pass; see `observed_routing`.
    """

    def __init__(self, config: ExpertsConfig, dim: int) -> None:
        super().__init__()
        self.router = config.router.build(dim, config.num_experts)
        self.gate = nn.Parameter(torch.empty(config.num_experts, config.hidden_dim, dim))
        self.up = nn.Parameter(torch.empty(config.num_experts, config.hidden_dim, dim))
        self.down = nn.Parameter(torch.empty(config.num_experts, dim, config.hidden_dim))
        self.exchange: ExpertExchange = local_exchange
        self.observer: Callable[[Routing], None] | None = None
        self._activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted sum of the chosen experts' outputs; x is x_TBSD with tracks, else x_BSD."""
        x_TND = x.flatten(1, -2) if self.gate.ndim == 4 else x.flatten(0, -2)[None]
        routing: Routing = self.router(x_TND)
        if self.observer is not None:
            self.observer(routing)
        num_chosen, num_experts = routing.chosen_TNK.shape[-1], routing.logits_TNE.shape[-1]
        tracks_T11 = torch.arange(len(x_TND), device=x.device)[:, None, None]
        groups_M = (routing.chosen_TNK + num_experts * tracks_T11).flatten()
        order_M = groups_M.argsort(stable=True)
        counts_G = groups_M.new_zeros(len(x_TND) * num_experts)
        counts_G.scatter_add_(0, groups_M, torch.ones_like(groups_M))  # bincount would synchronize with the device
        rows_M = order_M // num_chosen
        x_MD = x_TND.flatten(0, 1).index_select(0, rows_M)
        y_MD = self.exchange(x_MD, counts_G.view(-1, num_experts), self._compute)
        weights_M1 = routing.weights_TNK.flatten()[order_M, None].to(y_MD.dtype)
        y_ND = torch.zeros_like(x_TND).flatten(0, 1).index_add(0, rows_M, y_MD * weights_M1)
        return y_ND.view(x.shape)

    def _compute(self, x_MD: Tensor, counts_TE: Tensor) -> Tensor:
        """Return the output of each local expert on its rows."""
        ends_G = counts_TE.flatten().cumsum(0, dtype=torch.int32)
        hidden_MF = self._activation(_grouped(x_MD, self.gate, ends_G)) * _grouped(x_MD, self.up, ends_G)
        return _grouped(hidden_MF, self.down, ends_G)

    def stack_tracks(self, num_tracks: int) -> None:
        """Replace the weights by uninitialized ones with a leading dim of tracks."""
        for name in ("gate", "up", "down"):
            weight = getattr(self, name)
            setattr(self, name, nn.Parameter(weight.new_empty(num_tracks, *weight.shape)))

    def initialize(self, generator: torch.Generator, residual_scale: float) -> None:
        self.router.initialize(generator)
        for weight, scale in ((self.gate, 1.0), (self.up, 1.0), (self.down, residual_scale)):
            nn.init.normal_(weight, std=scale * weight.shape[-1] ** -0.5, generator=generator)


@contextmanager
def observed_routing(model: nn.Module) -> Iterator[dict[int, Routing]]:
    """Yield the routing of the last forward pass, by layer number and with gradients."""
    seen: dict[int, Routing] = {}
    layers = {
        index: layer.feed_forward
        for index, layer in enumerate(model.get_submodule("layers").children())
        if isinstance(layer.feed_forward, Experts)
    }
    for index, experts in layers.items():
        experts.observer = partial(seen.__setitem__, index)
    try:
        yield seen
    finally:
        for experts in layers.values():
            experts.observer = None


def _grouped(x_MD: Tensor, weights: Tensor, ends_G: Tensor) -> Tensor:
    """Return the rows of each group times the transpose of its weight [..., F, D], y_MF."""
    return F.grouped_mm(x_MD, weights.flatten(0, -3).to(x_MD.dtype).mT, offs=ends_G)
