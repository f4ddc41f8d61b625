"""Parallel tracks: all tracks receive the same residual stream, and their outputs are combined (report 2.2).

A track is a leading dim: the weights of a layer and the states inside a block have it, so that one batched product computes
all tracks. Attention contexts receive the heads of all tracks concatenated. `parallel/track_parallel.py` puts collectives
into the two slots of `Tracks` where processes hold different tracks.

Shapes: T tracks held here, B batch, S sequence, D model dim, H heads and K key/value heads of a track, C head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import cast

import torch
from torch import Tensor, nn

from openafm.models.attention.context import AttentionContext, LastPositions
from openafm.models.attention.masks import Mask
from openafm.models.attention.position_embedding import PositionEmbedding
from openafm.models.config import PositionConfig, TracksConfig
from openafm.models.layers import RMSNorm, stack_tracks


class Tracks(nn.Module):
    """The boundaries of track blocks: `enter` before each layer, `leave` after it.

    Attributes:
        num_local: number of tracks whose weights this process holds.
        copy_to_tracks: slot applied to the input of a block; identity by default. Under track parallelism its backward pass
            sums the gradients over the processes.
        reduce_from_tracks: slot applied to a sum over the local tracks; identity by default. Under track parallelism it
            sums over the processes.
    """

    def __init__(self, config: TracksConfig, num_layers: int, dim: int) -> None:
        super().__init__()
        self.num_local = config.num_tracks
        self.copy_to_tracks: Callable[[Tensor], Tensor] = _identity
        self.reduce_from_tracks: Callable[[Tensor], Tensor] = _identity
        self._depth = config.block_depth
        self._divisor = config.num_tracks if config.combine == "mean" else 1
        self.norms: nn.ModuleList | None = None
        if config.norm is not None:
            self.norms = nn.ModuleList(RMSNorm(dim, config.norm.eps) for _ in range(num_layers // config.block_depth))
            stack_tracks(self.norms, config.num_tracks)

    def enter(self, layer: int, x: Tensor) -> Tensor:
        """Return the input of layer number `layer`: at the start of a block x_BSD expanded to x_TBSD, else x itself."""
        if layer % self._depth:
            return x
        return self.copy_to_tracks(x).expand(self.num_local, *x.shape)

    def leave(self, layer: int, x_TBSD: Tensor) -> Tensor:
        """Return the output of layer number `layer`: at the end of a block the tracks combined into x_BSD, else x itself."""
        block, place = divmod(layer, self._depth)
        if place < self._depth - 1:
            return x_TBSD
        if self.norms is not None:
            x_TBSD = self.norms[block](x_TBSD)
        return self.reduce_from_tracks(x_TBSD.sum(dim=0) / self._divisor)

    def initialize(self) -> None:
        for norm in cast("Iterable[RMSNorm]", self.norms or ()):
            norm.initialize()


def _identity(x: Tensor) -> Tensor:
    return x


class TracksAsHeads(AttentionContext):
    """Adapter of a context for the layers of track blocks: the heads of all tracks are concatenated."""

    def __init__(self, below: AttentionContext, num_tracks: int) -> None:
        super().__init__(below.positions_BS)
        self._below, self._num_tracks = below, num_tracks

    def position_embedding(self, config: PositionConfig, head_dim: int) -> PositionEmbedding:
        return self._below.position_embedding(config, head_dim)

    def store(self, layer: int, k_TBSKC: Tensor, v_TBSKC: Tensor) -> None:
        self._below.store(layer, _concatenated_heads(k_TBSKC), _concatenated_heads(v_TBSKC))

    def discarding_stored(self) -> AbstractContextManager[None]:
        return self._below.discarding_stored()

    def attend(self, layer: int, q_TBSHC: Tensor, mask: Mask) -> Tensor:
        o_BSHC = self._below.attend(layer, _concatenated_heads(q_TBSHC), mask)
        return torch.stack(o_BSHC.chunk(self._num_tracks, dim=2))

    def last(self) -> LastPositions:
        last = self._below.last()
        return LastPositions(indices_D=last.indices_D, context=TracksAsHeads(last.context, self._num_tracks))


def _concatenated_heads(x_TBSHC: Tensor) -> Tensor:
    """Return x as [B, S, T * H, C]."""
    return x_TBSHC.permute(1, 2, 0, 3, 4).flatten(2, 3)
