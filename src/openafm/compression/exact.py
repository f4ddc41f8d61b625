"""What lies between products of integers, computed as exact numbers and rounded to fp32 once, for inference.

Activations are rounded to 8 bits before each product. The last bit of what is rounded decides, now and then, between two
integers, and one of those moves a logit by up to a tenth. So engines that add up in different orders compute in double
precision what has sums or exponentials: norms' factors, attention, the gate of the feed-forward. All else between two
products takes fp32's operations one by one: rotations, residual additions, scales.

Shapes: B batch, S sequence, H heads, C head dim, D and F the dims of a feed-forward.
"""

from __future__ import annotations

from torch import Tensor, nn

from openafm.compression.low_bit import RoundedNorm, replace_linears
from openafm.models.attention import Attention
from openafm.models.decoder import Decoder
from openafm.models.feed_forward import FeedForward
from openafm.models.layers import RMSNorm


class ExactNorm(RMSNorm):
    """x * factor * weight in fp32, the factor to the nearest."""

    def __init__(self, norm: RMSNorm) -> None:
        nn.Module.__init__(self)
        self.eps, self.weight = norm.eps, norm.weight

    def forward(self, x: Tensor) -> Tensor:
        x_D = x.float()
        factor_1 = x_D.double().square().mean(-1, keepdim=True).add_(self.eps).rsqrt_().float()
        return x_D.mul(factor_1).mul_(self.weight).to(x.dtype)


class ExactRoundedNorm(RoundedNorm, ExactNorm):
    """The same, its output rounded as the head's input is."""

    def __init__(self, norm: RoundedNorm) -> None:
        RoundedNorm.__init__(self, norm, norm.rounding)


class ExactFeedForward(FeedForward):
    """Both halves of the gate and their product in double precision."""

    def __init__(self, feed_forward: FeedForward) -> None:
        nn.Module.__init__(self)
        self.gate, self.up, self.down = feed_forward.gate, feed_forward.up, feed_forward.down
        self.activation = feed_forward.activation

    def forward(self, x_D: Tensor) -> Tensor:
        gate_F = self.activation(self.gate(x_D).double())
        return self.down(gate_F.mul_(self.up(x_D)).to(x_D.dtype))


class DoubleQueries(nn.Module):
    """The slot of queries that read in double precision."""

    def forward(self, q_BSHC: Tensor) -> Tensor:
        return q_BSHC.double()


def compute_exactly(decoder: Decoder) -> None:
    """Have a decoder of 2-bit matrices and rounded activations compute so, in place, over the same weights."""
    exact: dict[str, nn.Module] = {}
    for name, module in decoder.named_modules():
        if isinstance(module, RoundedNorm):
            exact[name] = ExactRoundedNorm(module)
        elif isinstance(module, RMSNorm):
            exact[name] = ExactNorm(module)
        elif isinstance(module, FeedForward):
            exact[name] = ExactFeedForward(module)
        elif isinstance(module, Attention):
            module.slot = DoubleQueries()
    replace_linears(decoder, exact)
