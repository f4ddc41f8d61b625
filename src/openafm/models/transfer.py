"""Copies from the host to a device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(values: NDArray[Any] | Tensor, device: torch.device | str) -> Tensor:
    """Return host values on a device. A copy to a GPU goes through pinned memory, and the host does not wait for it."""
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
    if torch.device(device).type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
