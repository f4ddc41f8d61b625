"""What a person sees of a run while it goes: its pace along the axes, how evenly its experts are loaded, its goodput.

Shapes: T tracks, E experts of a track.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from openafm.training.distributed.config import MeshShape
from openafm.training.observability.goodput import Goodput
from openafm.training.observability.metrics import peak_flops_per_second, peak_memory_mb


@dataclass(frozen=True, kw_only=True)
class ExpertLoads:
    """How tokens fell on the experts of all layers and tracks: 1 is what each gets when all are loaded evenly.

    `unused` experts got none.
    """

    highest: float
    lowest: float
    unused: int


def expert_loads(tokens_TE: Mapping[int, Tensor]) -> ExpertLoads | None:
    """The loads behind counts by layer; None for a model without experts, or before they were given a token."""
    counted = [counts_TE.double() for counts_TE in tokens_TE.values() if counts_TE.sum()]
    if not counted:
        return None
    even = [counts_TE / counts_TE.mean(1, keepdim=True).clamp(min=1e-12) for counts_TE in counted]
    return ExpertLoads(
        highest=max(loads_TE.max().item() for loads_TE in even),
        lowest=min(loads_TE.min().item() for loads_TE in even),
        unused=sum(int((counts_TE == 0).sum()) for counts_TE in counted),
    )


class LiveView:
    """What has happened since the last line of the log, and how it stood then."""

    def __init__(self, dtype: torch.dtype, device: str, shape: MeshShape) -> None:
        self._dtype, self._device, self._shape = dtype, device, shape
        self._num_tokens = self._flops = 0
        self._expert_tokens: dict[int, Tensor] = {}
        self._since_s = perf_counter()
        self._goodput: Goodput | None = None

    def add(self, num_tokens: int, flops: int, expert_tokens: Mapping[int, Tensor]) -> None:
        """One step, of all processes together: what it learned from, took, and sent to which experts [T, E]."""
        self._num_tokens += num_tokens
        self._flops += flops
        for layer, counts_TE in expert_tokens.items():
            self._expert_tokens[layer] = self._expert_tokens.get(layer, 0) + counts_TE

    @property
    def expert_tokens(self) -> dict[str, list[list[int]]]:
        """Tokens of each expert [T, E] since the last line, by layer: as the log keeps them."""
        return {str(layer): counts_TE.tolist() for layer, counts_TE in self._expert_tokens.items()}

    def take(self, goodput: Goodput) -> dict[str, float]:
        """The values of a line of the log; what comes next is counted anew."""
        seconds = perf_counter() - self._since_s
        pace = self._num_tokens / seconds
        peak = self._shape.world * peak_flops_per_second(self._dtype, self._device)
        values = {
            "tokens_per_second": pace,
            "tokens_per_second_per_data_rank": pace / self._shape.data_world,
            "tokens_per_second_per_device": pace / self._shape.world,
            "model_flops_utilization": self._flops / seconds / peak,
        }
        memory_mb = peak_memory_mb()
        if memory_mb is not None:
            values["peak_memory_mb"] = memory_mb
        loads = expert_loads(self._expert_tokens)
        if loads is not None:
            values |= {
                "expert_load_max": loads.highest,
                "expert_load_min": loads.lowest,
                "experts_unused": loads.unused,
            }
        self._num_tokens = self._flops = 0
        self._expert_tokens = {}
        self._since_s = perf_counter()
        self._goodput = goodput
        return values | goodput.scalars()

    def status(self, loss: float) -> str:
        """As in `loss 3.214, 1,683 tok/s (421 a data rank), experts 0.31 to 2.10 of even, goodput 98 %`."""
        pace = self._num_tokens / max(perf_counter() - self._since_s, 1e-9)
        parts = [f"loss {loss:.3f}"]
        if self._num_tokens:
            ranks = self._shape.data_world
            parts.append(f"{pace:,.0f} tok/s" + (f" ({pace / ranks:,.0f} a data rank)" if ranks > 1 else ""))
        loads = expert_loads(self._expert_tokens)
        if loads is not None:
            unused = f", {loads.unused} unused" if loads.unused else ""
            parts.append(f"experts {loads.lowest:.2f} to {loads.highest:.2f} of even{unused}")
        if self._goodput is not None:
            parts.append(f"goodput {100 * self._goodput.share:.0f} %")
        return ", ".join(parts)
