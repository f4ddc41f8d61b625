"""Linears with groups of 4 or 8 bits for inference in torch. The reference of the native kernels, bit for bit.

With rounded inputs, the products of a group are summed as integers, which is exact. Groups are added in order in fp32, each
with one fused multiply-add for its scale and one for its minimum; the scale of the token is multiplied last. Torch has no
fused multiply-add: it is computed in double precision, where the product is exact, and rounded.

Shapes: N positions, R outputs, C inputs, G groups, g inputs of a group.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openafm.compression.grouped import GroupedMatrix
from openafm.compression.low_bit import ActivationRounding
from openafm.compression.rounding import round_per_token
from openafm.models.layers import Linear

_EXACT_INPUTS = 1024
"""Products of this many codes with rounded inputs, each at most 128 * 127, sum up to less than 2^24."""


class GroupedProduct(nn.Module):
    """x W^T for a grouped matrix W."""

    levels: Tensor
    scale: Tensor
    minimum: Tensor | None

    def __init__(self, matrix: GroupedMatrix, rounding: ActivationRounding, device: torch.device | None = None) -> None:
        super().__init__()
        self._group, self._rounding = matrix.format.group, rounding
        self.register_buffer("levels", torch.from_numpy(matrix.levels()).to(device, torch.float32))
        self.register_buffer("scale", torch.from_numpy(matrix.scale.astype("float32")).to(device))
        minimum_RG = None if matrix.minimum_RG is None else torch.from_numpy(matrix.minimum_RG.astype("float32")).to(device)
        self.register_buffer("minimum", minimum_RG)

    def forward(self, x: Tensor) -> Tensor:
        if not self._rounding.active:
            return F.linear(x, self._values().to(x.dtype))
        rounded = round_per_token(x)
        x_NC, scale_N1 = rounded.integers.flatten(0, -2).float(), rounded.scale.flatten(0, -2)
        y_NR = self._grouped(x_NC) * scale_N1 if self._group else self._summed(x_NC).float() * (scale_N1 * self.scale)
        return y_NR.unflatten(0, x.shape[:-1]).to(x.dtype)

    def _summed(self, x_NC: Tensor) -> Tensor:
        """Return the exact products with the codes: parts of a sum are integers below 2^24, exact in fp32 and its speed."""
        parts = zip(x_NC.split(_EXACT_INPUTS, 1), self.levels.split(_EXACT_INPUTS, 1), strict=True)
        return torch.stack([F.linear(x, levels.float()).double() for x, levels in parts]).sum(0)

    def _grouped(self, x_NC: Tensor) -> Tensor:
        total_NR = x_NC.new_zeros(len(x_NC), len(self.levels))
        for group, columns in enumerate(range(0, x_NC.shape[1], self._group)):
            x_Ng = x_NC[:, columns : columns + self._group]
            sums_NR = F.linear(x_Ng, self.levels[:, columns : columns + self._group])
            total_NR = _fused(sums_NR, self.scale[:, group], total_NR)
            if self.minimum is not None:
                total_NR = _fused(x_Ng.sum(1, keepdim=True), self.minimum[:, group], total_NR)
        return total_NR

    def _values(self) -> Tensor:
        if not self._group:
            return self.levels * self.scale[:, None]
        values_RGg = self.levels.unflatten(1, (-1, self._group)) * self.scale[..., None]
        return (values_RGg if self.minimum is None else values_RGg + self.minimum[..., None]).flatten(1)


def _fused(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """Return a * b + total, rounded to fp32 once."""
    return (a.double() * b.double()).add_(total).float()


class GroupLinear(Linear):
    """A Linear with a grouped matrix: no master weight."""

    def __init__(self, linear: Linear, product: GroupedProduct) -> None:
        nn.Module.__init__(self)
        self.in_dim, self.out_dim, self.bias = linear.in_dim, linear.out_dim, linear.bias
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        y = self.product(x).float()
        return (y if self.bias is None else y + self.bias).to(x.dtype)
