"""Throughput, expert load and goodput of a run between two lines of its log.

Shapes: T tracks, E experts of a track.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from openafm.training.distributed.config import MeshShape
from openafm.training.observability.goodput import Goodput
from openafm.training.observability.metrics import peak_device_memory_mb, peak_flops_per_second, peak_memory_mb
from openafm.training.observers import Observer, StepResult


@dataclass(frozen=True, kw_only=True)
class ExpertLoads:
    """Highest and lowest load of an expert over layers and tracks; 1 is an even load. `unused` experts got no token."""

    highest: float
    lowest: float
    unused: int


def expert_loads(tokens_TE: Mapping[int, Tensor]) -> ExpertLoads | None:
    """Return the loads behind token counts by layer; None for a model without experts, or before the first token."""
    counted = [counts_TE.double() for counts_TE in tokens_TE.values() if counts_TE.sum()]
    if not counted:
        return None
    loads = [counts_TE / counts_TE.mean(1, keepdim=True).clamp(min=1e-12) for counts_TE in counted]
    return ExpertLoads(
        highest=max(loads_TE.max().item() for loads_TE in loads),
        lowest=min(loads_TE.min().item() for loads_TE in loads),
        unused=sum(int((counts_TE == 0).sum()) for counts_TE in counted),
    )


class RunMeter(Observer):
    """Accumulate the steps since the last line of the log: loss, tokens, operations, expert loads."""

    def __init__(self, dtype: torch.dtype, device: str, shape: MeshShape, goodput: Callable[[], Goodput]) -> None:
        self._dtype, self._device, self._shape, self._goodput = dtype, device, shape, goodput
        self._last_goodput: Goodput | None = None
        self._reset()

    def _reset(self) -> None:
        self._num_tokens = self._flops = 0
        self._expert_tokens: dict[int, Tensor] = {}
        self._since_s = perf_counter()

    def on_step(self, result: StepResult) -> None:
        self._num_tokens += result.num_tokens
        self._flops += result.flops
        for layer, counts_TE in result.expert_tokens.items():
            self._expert_tokens[layer] = self._expert_tokens.get(layer, 0) + counts_TE

    @property
    def expert_tokens(self) -> dict[str, list[list[int]]]:
        """Return the tokens of each expert [T, E] since the last line, by layer."""
        return {str(layer): counts_TE.tolist() for layer, counts_TE in self._expert_tokens.items()}

    def take(self) -> dict[str, float]:
        """Return the values of a line of the log, and start the next line."""
        seconds = perf_counter() - self._since_s
        rate = self._num_tokens / seconds
        peak = self._shape.world * peak_flops_per_second(self._dtype, self._device)
        values = {
            "tokens_per_second": rate,
            "tokens_per_second_per_data_rank": rate / self._shape.data_world,
            "tokens_per_second_per_device": rate / self._shape.world,
            "model_flops_utilization": self._flops / seconds / peak,
        }
        memory_mb = peak_memory_mb()
        if memory_mb is not None:
            values["peak_memory_mb"] = memory_mb
        values |= peak_device_memory_mb(self._device)
        loads = expert_loads(self._expert_tokens)
        if loads is not None:
            values |= {
                "expert_load_max": loads.highest,
                "expert_load_min": loads.lowest,
                "experts_unused": loads.unused,
            }
        self._reset()
        self._last_goodput = self._goodput()
        return values | self._last_goodput.scalars()

    def status(self, loss: float) -> str:
        """Return a line as in `loss 3.214, 1,683 tok/s (421 a data rank), experts 0.31 to 2.10 of even, goodput 98 %`."""
        rate = self._num_tokens / max(perf_counter() - self._since_s, 1e-9)
        parts = [f"loss {loss:.3f}"]
        if self._num_tokens:
            ranks = self._shape.data_world
            parts.append(f"{rate:,.0f} tok/s" + (f" ({rate / ranks:,.0f} a data rank)" if ranks > 1 else ""))
        loads = expert_loads(self._expert_tokens)
        if loads is not None:
            unused = f", {loads.unused} unused" if loads.unused else ""
            parts.append(f"experts {loads.lowest:.2f} to {loads.highest:.2f} of even{unused}")
        if self._last_goodput is not None:
            parts.append(f"goodput {100 * self._last_goodput.share:.0f} %")
        return ", ".join(parts)
