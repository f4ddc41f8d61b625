"""Inference between integer products in double precision, rounded to fp32 once, so that all engines give the same bits.

Activations are rounded to 8 bits before each product. A difference in the last bit before rounding can change an integer,
and one integer changes a logit by up to 0.1. Engines sum in different orders, so everything with sums or exponentials is
computed in double precision: factors of norms, attention, the gate of the feed-forward. Rotations, residual additions and
scales are single fp32 operations.

Shapes: B batch, S sequence, H heads, C head dim, D and F the dims of a feed-forward.
"""

from __future__ import annotations

from torch import Tensor, nn

from openafm.compression.low_bit import RoundedNorm, replace_linears
from openafm.models.attention.grouped_query import Attention
from openafm.models.decoder import Decoder
from openafm.models.feed_forward.gated import FeedForward
from openafm.models.layers import RMSNorm


class ExactNorm(RMSNorm):
    """x * factor * weight in fp32, with a correctly rounded factor."""

    def __init__(self, norm: RMSNorm) -> None:
        nn.Module.__init__(self)
        self.eps, self.weight = norm.eps, norm.weight

    def forward(self, x: Tensor) -> Tensor:
        x_D = x.float()
        factor_1 = x_D.double().square().mean(-1, keepdim=True).add_(self.eps).rsqrt_().float()
        return x_D.mul(factor_1).mul_(self.weight).to(x.dtype)


class ExactRoundedNorm(RoundedNorm, ExactNorm):
    """`ExactNorm` before the head, with its output rounded to 8 bits."""

    def __init__(self, norm: RoundedNorm) -> None:
        RoundedNorm.__init__(self, norm, norm.rounding)


class ExactFeedForward(FeedForward):
    """Feed-forward with the gate and its product in double precision."""

    def __init__(self, feed_forward: FeedForward) -> None:
        nn.Module.__init__(self)
        self.gate, self.up, self.down = feed_forward.gate, feed_forward.up, feed_forward.down
        self.activation = feed_forward.activation

    def forward(self, x_D: Tensor) -> Tensor:
        gate_F = self.activation(self.gate(x_D).double())
        return self.down(gate_F.mul_(self.up(x_D)).to(x_D.dtype))


class DoubleQueries(nn.Module):
    """Query slot that makes attention compute in double precision."""

    def forward(self, q_BSHC: Tensor) -> Tensor:
        return q_BSHC.double()


def compute_exactly(decoder: Decoder) -> None:
    """Replace norms, feed-forwards and query slots of a decoder by their exact versions, in place, sharing weights."""
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
