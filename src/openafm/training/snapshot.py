"""A copy of the training state between two steps: what checkpoints store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

Tensors = Mapping[str, Tensor]


class PartsByName(Mapping[str, Tensor]):
    """This process's parts of tensors by name, as DTensors that `wrap` makes when they are read.

    A DTensor takes 0.2 ms to make, longer than the copy of most parts; a checkpoint
    makes them for its plan only, and writes the `local` tensors.
    """

    def __init__(self, local: Tensors, wrap: Callable[[str, Tensor], Tensor]) -> None:
        self.local, self._wrap = local, wrap

    def __getitem__(self, name: str) -> Tensor:
        return self._wrap(name, self.local[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.local)

    def __len__(self) -> int:
        return len(self.local)


@dataclass(frozen=True, kw_only=True)
class TrainingSnapshot:
    """A copy of the state on the host.

    `tensors` are grouped: model, optimizer, random and, if the run averages its weights, ema. With several processes they
    are DTensors that hold this process's part.
    """

    step: int
    num_steps: int
    num_tokens: int
    seconds: float
    tensors: Mapping[str, Tensors]
