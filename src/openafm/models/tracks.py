"""Parallel tracks: one residual stream goes into all of them, and what they make of it is combined (report 2.2).

A track is a leading dim: the weights of a layer and the states inside a block carry it, so that one batched product computes
all tracks. Attention contexts see the heads of all tracks side by side and know nothing of tracks. Nor does anything here
know of processes: where a process holds some of the tracks only, whoever shared them out has put collectives into the two
slots.

Shapes: T tracks held here, B batch, S sequence, D model dim, H heads and K key/value heads of a track, C head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn

from openafm.models.attention_context import AttentionContext, LastPositions
from openafm.models.config import PositionConfig, TracksConfig
from openafm.models.layers import RMSNorm, spread_over_tracks
from openafm.models.masks import Mask
from openafm.models.position_embedding import PositionEmbedding


class Tracks(nn.Module):
    """The boundaries of track blocks: `dispatch` before a block, `combine` after it.

    Attributes:
        num_local: tracks whose weights this process holds; all of them unless they were shared out.
        spread: slot on the way into a block, identity by default. Its gradient is the sum over the tracks, so under track
            parallelism it sums gradients over the processes.
        gather: slot for a sum over the tracks held here; under track parallelism it sums over the processes.
    """

    def __init__(self, config: TracksConfig, num_layers: int, dim: int) -> None:
        super().__init__()
        self.num_local = config.num_tracks
        self.spread: Callable[[Tensor], Tensor] = _identity
        self.gather: Callable[[Tensor], Tensor] = _identity
        self._depth = config.block_depth
        self._divisor = config.num_tracks if config.combine == "mean" else 1
        self.norms: nn.ModuleList | None = None
        if config.norm is not None:
            self.norms = nn.ModuleList(RMSNorm(dim, config.norm.eps) for _ in range(num_layers // config.block_depth))
            spread_over_tracks(self.norms, config.num_tracks)

    def enter(self, layer: int, x: Tensor) -> Tensor:
        """The input of layer number `layer`: at the start of a block, x_BSD as x_TBSD, one view of it for each track."""
        if layer % self._depth:
            return x
        return self.spread(x).expand(self.num_local, *x.shape)

    def leave(self, layer: int, x_TBSD: Tensor) -> Tensor:
        """The output of layer number `layer`: at the end of a block, the tracks combined into x_BSD."""
        block, place = divmod(layer, self._depth)
        if place < self._depth - 1:
            return x_TBSD
        if self.norms is not None:
            x_TBSD = self.norms[block](x_TBSD)
        return self.gather(x_TBSD.sum(dim=0) / self._divisor)

    def initialize(self) -> None:
        for norm in cast("Iterable[RMSNorm]", self.norms or ()):
            norm.initialize()


def _identity(x: Tensor) -> Tensor:
    return x


class TracksAsHeads(AttentionContext):
    """A context as the attention of a track block sees it: heads of all tracks stand beside each other in the one below."""

    def __init__(self, below: AttentionContext, num_tracks: int) -> None:
        super().__init__(below.positions_BS)
        self._below, self._num_tracks = below, num_tracks

    def position_embedding(self, config: PositionConfig, head_dim: int) -> PositionEmbedding:
        return self._below.position_embedding(config, head_dim)

    def store(self, layer: int, k_TBSKC: Tensor, v_TBSKC: Tensor) -> None:
        self._below.store(layer, _side_by_side(k_TBSKC), _side_by_side(v_TBSKC))

    def attend(self, layer: int, q_TBSHC: Tensor, mask: Mask) -> Tensor:
        o_BSHC = self._below.attend(layer, _side_by_side(q_TBSHC), mask)
        return torch.stack(o_BSHC.chunk(self._num_tracks, dim=2))

    def last(self) -> LastPositions:
        last = self._below.last()
        return LastPositions(indices_D=last.indices_D, context=TracksAsHeads(last.context, self._num_tracks))


def _side_by_side(x_TBSHC: Tensor) -> Tensor:
    """[T, B, S, H, C] as [B, S, T * H, C]."""
    return x_TBSHC.permute(1, 2, 0, 3, 4).flatten(2, 3)
