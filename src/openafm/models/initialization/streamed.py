"""Initial weights of a model one parameter at a time, so that no process holds the whole model.

The values are those that `initialize` draws for a model in memory: every process draws all numbers in the same order and
keeps the part that it stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from openafm.models.decoder import Decoder


@torch.no_grad()
def stream_initial_weights(model: Decoder, seed: int, store: Callable[[str, Tensor], None]) -> None:
    """Call `store` with the name and the initial values of each parameter of a model on the meta device.

    Memory for one parameter is needed at a time.
    """
    with _Streamed({id(parameter): name for name, parameter in model.named_parameters()}, store) as streamed:
        model.initialize(seed)
    streamed.flush()


class _Streamed(TorchFunctionMode):
    """Apply in-place functions of parameters to a tensor in memory, which is stored once another parameter is changed."""

    def __init__(self, names: dict[int, str], store: Callable[[str, Tensor], None]) -> None:
        super().__init__()
        self._names, self._store = names, store
        self._name: str | None = None
        self._whole = torch.empty(0)
        self._stored: set[str] = set()

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        target = args[0] if args else kwargs.get("tensor")
        name = self._names.get(id(target))
        is_in_place = func.__name__.endswith("_") and not func.__name__.endswith("__")
        if target is None or name is None or not is_in_place:
            return func(*args, **kwargs)
        if name != self._name:
            self.flush()
            assert name not in self._stored, f"initialize() returns to {name} after another parameter"
            self._name, self._whole = name, torch.empty(target.shape, dtype=target.dtype, device="cpu")
        if args:
            func(self._whole, *args[1:], **kwargs)
        else:
            func(**{**kwargs, "tensor": self._whole})
        return target

    def flush(self) -> None:
        """Store the parameter that was changed last."""
        if self._name is not None:
            self._store(self._name, self._whole)
            self._stored.add(self._name)
            self._name, self._whole = None, torch.empty(0)
