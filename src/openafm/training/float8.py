"""Linears that multiply in fp8, forward and backward, through torchao."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from openafm.core.errors import UsageError
from openafm.models.layers import Linear
from openafm.training.device import DeviceError

if TYPE_CHECKING:
    from torchao.float8 import Float8LinearConfig

    from openafm.models.decoder import Decoder

LEAST_CAPABILITY = (8, 9)
MULTIPLE = 16  # the kernels take dims that this divides


class Float8ModelError(UsageError):
    """The layers of a model have no Linear that can multiply in fp8."""


class Float8Linear(Linear):
    """y = x W^T + b, whose product and those of both gradients have operands in fp8. It shares the weights of a Linear."""

    def __init__(self, linear: Linear, config: Float8LinearConfig) -> None:
        from torchao.float8.float8_linear import Float8Linear as TorchaoLinear

        nn.Module.__init__(self)
        self.in_dim, self.out_dim, self.weight, self.bias = linear.in_dim, linear.out_dim, linear.weight, linear.bias
        template = nn.Linear(self.in_dim, self.out_dim, bias=False, device="meta")
        self._config, self._products = config, TorchaoLinear.from_float(template, config).linear_mm_config

    def forward(self, x: Tensor) -> Tensor:
        from torchao.float8.float8_linear import matmul_with_hp_or_float8_args

        y: Tensor = matmul_with_hp_or_float8_args.apply(x, self.weight.to(x.dtype).t(), self._products, self._config)
        return y if self.bias is None else y + self.bias.to(x.dtype)


def install_float8(model: Decoder, config: Float8LinearConfig) -> None:
    """Replace the Linears of the layers whose dims the kernels take; parameters and their names stay.

    Raises:
        Float8ModelError: there is none, as in models with tracks, whose weights are stacks of matrices.
    """
    padded = replace(config, pad_inner_dim=True)  # the gradient of a weight sums over any number of positions
    found = [
        (parent, name, child)
        for parent in model.layers.modules()
        for name, child in parent.named_children()
        if type(child) is Linear and child.weight.ndim == 2 and not (child.in_dim % MULTIPLE or child.out_dim % MULTIPLE)
    ]
    if not found:
        raise Float8ModelError(
            "no Linear of the layers can multiply in fp8: it takes matrices, not stacks of tracks, and dims that "
            f"{MULTIPLE} divides; use BFloat16Config"
        )
    for parent, name, child in found:
        setattr(parent, name, Float8Linear(child, padded))


def check_device(device: torch.device) -> None:
    """Check that products in fp8 run on a device.

    Raises:
        DeviceError: the device has none, or torchao is not installed.
    """
    needed = "Float8Config needs a GPU of compute capability 8.9 or above (Ada, Hopper or newer)"
    if device.type != "cuda":
        raise DeviceError(f"{needed}, the run computes on {device.type}; use BFloat16Config")
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        raise DeviceError(
            f"{needed}, {torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}; use BFloat16Config"
        )
    if find_spec("torchao") is None:
        raise DeviceError("Float8Config needs torchao; install openafm[float8]")
