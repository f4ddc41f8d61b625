"""The precisions of training, as data. Imports torch inside of functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from openafm.core.config import Config

if TYPE_CHECKING:
    import torch

    from openafm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig(Config, ABC):
    """Base of the compute precisions. Master weights, gradients and optimizer state are always fp32."""

    @abstractmethod
    def compute_dtype(self, device: str) -> torch.dtype:
        """Return the dtype of activations and of the weights' casts on this type of device."""

    def check_device(self, device: torch.device) -> None:
        """Raise `DeviceError` if this device cannot compute in this precision."""

    def install(self, model: Decoder) -> None:
        """Change the products of a model in place; before FSDP and adapters see it."""


@dataclass(frozen=True, kw_only=True)
class Float32Config(PrecisionConfig):
    """Compute in fp32."""

    def compute_dtype(self, device: str) -> torch.dtype:
        import torch

        return torch.float32


@dataclass(frozen=True, kw_only=True)
class BFloat16Config(PrecisionConfig):
    """Compute in bf16; norms, rotation, softmax and loss in fp32."""

    def compute_dtype(self, device: str) -> torch.dtype:
        import torch

        return torch.bfloat16


@dataclass(frozen=True, kw_only=True)
class DevicePrecisionConfig(PrecisionConfig):
    """Compute in bf16 where the device multiplies it in hardware, else in fp32; the two give different weights."""

    def compute_dtype(self, device: str) -> torch.dtype:
        from openafm.training.precision import fast_dtype

        return fast_dtype(device)


@dataclass(frozen=True, kw_only=True)
class Float8Config(PrecisionConfig):
    """Compute the products of the layers' Linears in fp8, forward and backward, and all else in bf16 (torchao).

    Operands are scaled by their largest magnitude: `tensorwise` with a scale for each tensor, the fastest; `rowwise` with
    one for each row; `rowwise_with_gw_hp` as well, with gradients of weights in bf16. Head, experts and embedding stay in
    bf16. It needs a GPU with products in fp8: Ada, Hopper or newer.
    """

    scaling: Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"] = "tensorwise"

    def compute_dtype(self, device: str) -> torch.dtype:
        import torch

        return torch.bfloat16

    def check_device(self, device: torch.device) -> None:
        from openafm.training.float8 import check_device

        check_device(device)

    def install(self, model: Decoder) -> None:
        from torchao.float8 import Float8LinearConfig

        from openafm.training.float8 import install_float8

        install_float8(model, Float8LinearConfig.from_recipe_name(self.scaling))
