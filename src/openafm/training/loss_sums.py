"""Sums of losses over microbatches and processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

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
        accumulator = LossAccumulator()
        for one in sums:
            accumulator.loss += one.loss
            accumulator.count += one.count
            accumulator.flops += one.flops
            accumulator.num_tokens += one.num_tokens
            accumulator.parts.update(one.parts)
        return LossSums(
            loss=accumulator.loss,
            count=accumulator.count,
            flops=accumulator.flops,
            num_tokens=accumulator.num_tokens,
            parts=accumulator.parts,
            expert_tokens={},
        )


@dataclass
class LossAccumulator:
    """Add up the losses of microbatches."""

    loss: float = 0.0
    count: int = 0
    flops: int = 0
    num_tokens: int = 0
    parts: Counter[str] = field(default_factory=Counter)
    expert_tokens: dict[int, Tensor] = field(default_factory=dict)

    def add(self, losses: Losses, num_tokens: int) -> float:
        """Add the losses of a microbatch; return its loss, a sum over its items."""
        loss = losses.total.item()
        self.loss += loss
        self.count += losses.count
        self.flops += losses.flops
        self.num_tokens += num_tokens
        self.parts.update({name: part.item() for name, part in losses.parts.items()})
        for layer, counts in losses.expert_tokens.items():
            self.expert_tokens[layer] = self.expert_tokens.get(layer, 0) + counts.cpu()
        return loss

    def over_processes(self, parallelism: Parallelism) -> LossSums:
        """Return the sums over all processes, equal in every process."""
        parts, layers = sorted(self.parts), sorted(self.expert_tokens)
        numbers = [self.loss, self.count, self.flops, self.num_tokens, *(self.parts[name] for name in parts)]
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
