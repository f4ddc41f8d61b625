"""Compare the weights of ranks that hold copies of the same part of the model, and name a rank that differs.

After an update all copies are equal bit for bit: gradients are summed over them, and each applies the same update. A device
that computes or stores wrong bits breaks that without an error (silent data corruption).
"""

from __future__ import annotations

import hashlib
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openafm.core.config import Config
from openafm.core.errors import OpenAFMError
from openafm.training.distributed.config import MeshShape
from openafm.training.observers import Observer, StepResult

if TYPE_CHECKING:
    from torch import Tensor

    from openafm.training.distributed.processes import Processes


class ReplicaMismatchError(OpenAFMError):
    """Ranks that hold copies of the same weights have different ones. The message has the ranks and their machines."""

    shared = True


@dataclass(frozen=True, kw_only=True)
class ReplicaCheckConfig(Config):
    """Compare copies of the weights every N steps. It reads all weights once."""

    every_steps: int = 100

    def __post_init__(self) -> None:
        self.require(self.every_steps > 0, f"every_steps must be at least 1, got {self.every_steps}")


@dataclass(frozen=True, kw_only=True)
class RankDigests:
    """The digests of one rank's part of the weights."""

    host: str
    by_name: Mapping[str, int]

    @property
    def total(self) -> str:
        """Return one digest of all parameters."""
        return hashlib.sha256(repr(sorted(self.by_name.items())).encode()).hexdigest()


class ReplicaCheck(Observer):
    """Compare the weights of all replicas at the config's interval and at the last step."""

    def __init__(
        self, config: ReplicaCheckConfig, parameters: Mapping[str, Tensor], shape: MeshShape, processes: Processes
    ) -> None:
        self._every_steps, self._parameters, self._processes = config.every_steps, parameters, processes
        self._shape, self._equal_until = shape, 0

    def on_step(self, result: StepResult) -> None:
        """Compare when it is due.

        Raises:
            ReplicaMismatchError: the weights of a rank differ from those of its replicas; equal on all ranks.
        """
        if self._shape.copies == 1 or not result.is_due(self._every_steps):
            return
        mine = RankDigests(host=socket.gethostname(), by_name=parameter_digests(self._parameters))
        totals = self._processes.all_gather(mine.total)
        if has_mismatch(totals, self._shape):
            found = describe_mismatch(self._processes.all_gather(mine), self._shape)
            last = self._equal_until
            raise ReplicaMismatchError(
                f"{found} after step {result.step:,}; they were equal after step {last:,}. A device computed or stored "
                f"wrong bits: take the machine out, remove the checkpoints after step {last:,}, and repeat the command"
            )
        self._equal_until = result.step


def parameter_digests(parameters: Mapping[str, Tensor]) -> dict[str, int]:
    """Return a sum of the bits of each parameter, which any single changed value changes."""
    import torch

    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    with torch.no_grad():
        sums = [p.detach().reshape(-1).view(bits[p.element_size()]).sum(dtype=torch.int64) for p in parameters.values()]
        return dict(zip(parameters, torch.stack(sums).tolist(), strict=True)) if sums else {}


def replicas(shape: MeshShape) -> list[range]:
    """Return the ranks of each group that holds copies of the same part; `replicate` and `context` are the slowest axes."""
    size = shape.shard * shape.expert * shape.track
    return [range(part, shape.world, size) for part in range(size)]


def has_mismatch(totals: list[str], shape: MeshShape) -> bool:
    """Return True if replicas have different digests."""
    return any(len({totals[rank] for rank in ranks}) > 1 for ranks in replicas(shape))


def describe_mismatch(digests: list[RankDigests], shape: MeshShape) -> str:
    """Return which ranks differ and in which parameter. With two replicas either one can be wrong."""
    for ranks in replicas(shape):
        counts = Counter(digests[rank].total for rank in ranks)
        if len(counts) == 1:
            continue
        (common, most), (_, next_most) = counts.most_common(2)
        usual = next(rank for rank in ranks if digests[rank].total == common)
        wrong = [rank for rank in ranks if digests[rank].total != common]
        right = digests[usual].by_name
        first = next(name for name in right if any(digests[rank].by_name[name] != right[name] for rank in wrong))
        if most == next_most:
            return f"the weights of ranks {_named(ranks, digests)} differ, first in {first},"
        return f"the weights of rank {_named(wrong, digests)} differ from those of {most} replicas, first in {first},"
    raise ValueError("no replicas differ")


def _named(ranks: range | list[int], digests: list[RankDigests]) -> str:
    return ", ".join(f"{rank} ({digests[rank].host})" for rank in ranks)
