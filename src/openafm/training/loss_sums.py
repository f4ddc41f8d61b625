"""What the microbatches of a step, or of an evaluation, add up to, here and in all processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from openafm.training.distributed.parallel import Parallelism
from openafm.training.objectives.base import Losses


@dataclass(frozen=True, kw_only=True)
class LossSums:
    """Sums over `count` items; `expert_tokens` by layer as in `Losses`, of all tracks once all processes are added."""

    loss: float
    count: int
    flops: int
    num_tokens: int
    parts: Mapping[str, float]
    expert_tokens: Mapping[int, Tensor]

    @property
    def means(self) -> dict[str, float]:
        """`loss` and the parts, for each item."""
        sums = {"loss": self.loss, **self.parts}
        return {name: value / max(self.count, 1) for name, value in sums.items()}


@dataclass
class LossAccumulator:
    """Takes the losses of one microbatch after another."""

    loss: float = 0.0
    count: int = 0
    flops: int = 0
    num_tokens: int = 0
    parts: Counter[str] = field(default_factory=Counter)
    expert_tokens: dict[int, Tensor] = field(default_factory=dict)

    def add(self, losses: Losses, num_tokens: int) -> float:
        """Returns the loss of this microbatch, a sum over its items."""
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
        """The sums of all data; the same numbers in every process."""
        parts, layers = sorted(self.parts), sorted(self.expert_tokens)
        numbers = [self.loss, self.count, self.flops, self.num_tokens, *(self.parts[name] for name in parts)]
        counts = [self.expert_tokens[layer].double() for layer in layers]
        flat = torch.cat([torch.tensor(numbers, dtype=torch.float64), *(c.flatten() for c in counts)])
        total = parallelism.sum_over_data(flat)
        loss, count, flops, num_tokens, *sums = total[: len(numbers)].tolist()
        pieces = total[len(numbers) :].split([c.numel() for c in counts])
        return LossSums(
            loss=loss,
            count=round(count),
            flops=round(flops),
            num_tokens=round(num_tokens),
            parts=dict(zip(parts, sums, strict=True)),
            expert_tokens={
                layer: parallelism.gather_tracks(piece.view(c.shape)).long()
                for layer, piece, c in zip(layers, pieces, counts, strict=True)
            },
        )
