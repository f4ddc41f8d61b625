"""Sums of losses over microbatches and processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from openafm.training.device import host_numbers
from openafm.training.distributed.parallel import Parallelism
from openafm.training.objectives.base import Losses


@dataclass(frozen=True, kw_only=True)
class LossSums:
    """Sums over `count` items of all processes; `expert_tokens` by layer as in `Losses`, of all tracks."""

    loss: float
    count: int
    flops: int
    num_tokens: int
    parts: Mapping[str, float]
    expert_tokens: Mapping[int, Tensor]

    @property
    def means(self) -> dict[str, float]:
        """Return `loss` and the parts per item."""
        sums = {"loss": self.loss, **self.parts}
        return {name: value / max(self.count, 1) for name, value in sums.items()}

    @staticmethod
    def total(sums: Iterable[LossSums]) -> LossSums:
        """Return the sum of sums, without expert tokens."""
        found, parts = list(sums), Counter[str]()
        for one in found:
            parts.update(one.parts)
        return LossSums(
            loss=sum(one.loss for one in found),
            count=sum(one.count for one in found),
            flops=sum(one.flops for one in found),
            num_tokens=sum(one.num_tokens for one in found),
            parts=parts,
            expert_tokens={},
        )


class LossAccumulator:
    """Collect the losses of microbatches on the device, and add them up on the host with one wait for it."""

    def __init__(self) -> None:
        self._totals: list[Tensor] = []
        self._parts: list[tuple[str, Tensor]] = []
        self._expert_tokens: dict[int, Tensor] = {}
        self._count = self._flops = self._num_tokens = 0

    def add(self, losses: Losses, num_tokens: int) -> None:
        """Add the losses of a microbatch."""
        self._totals.append(losses.total.detach())
        self._parts += losses.parts.items()
        self._count += losses.count
        self._flops += losses.flops
        self._num_tokens += num_tokens
        for layer, counts in losses.expert_tokens.items():
            self._expert_tokens[layer] = self._expert_tokens.get(layer, 0) + counts

    def read(self) -> LocalLosses:
        """Return the sums of this process. The host waits for the device."""
        values = host_numbers([*self._totals, *(part for _, part in self._parts)])
        losses, parts = values[: len(self._totals)], dict.fromkeys((name for name, _ in self._parts), 0.0)
        for (name, _), value in zip(self._parts, values[len(losses) :], strict=True):
            parts[name] += value
        return LocalLosses(
            losses=losses,
            count=self._count,
            flops=self._flops,
            num_tokens=self._num_tokens,
            parts=parts,
            expert_tokens={layer: counts.cpu() for layer, counts in self._expert_tokens.items()},
        )


@dataclass(frozen=True, kw_only=True)
class LocalLosses:
    """The losses of this process: one sum for each microbatch in `losses`, and sums of the rest."""

    losses: list[float]
    count: int
    flops: int
    num_tokens: int
    parts: Mapping[str, float]
    expert_tokens: Mapping[int, Tensor]

    def over_processes(self, parallelism: Parallelism) -> LossSums:
        """Return the sums over all processes, equal in every process."""
        parts, layers = sorted(self.parts), sorted(self.expert_tokens)
        numbers = [sum(self.losses), self.count, self.flops, self.num_tokens, *(self.parts[name] for name in parts)]
        counts = [self.expert_tokens[layer].double() for layer in layers]
        flat = torch.cat([torch.tensor(numbers, dtype=torch.float64), *(c.flatten() for c in counts)])
        total = parallelism.sum_over_data(flat)
        loss, count, flops, num_tokens, *sums = total[: len(numbers)].tolist()
        summed_counts = total[len(numbers) :].split([c.numel() for c in counts])
        return LossSums(
            loss=loss,
            count=round(count),
            flops=round(flops),
            num_tokens=round(num_tokens),
            parts=dict(zip(parts, sums, strict=True)),
            expert_tokens={
                layer: parallelism.gather_tracks(summed.view(c.shape)).long()
                for layer, summed, c in zip(layers, summed_counts, counts, strict=True)
            },
        )
