"""Causal attention in blocks, against torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from openafm.models.attention import masked_attention
from openafm.models.attention.blocked_attention import blocked_attention
from openafm.models.attention.masks import CausalMask


def operands(batch: int, length: int, num_heads: int, num_kv_heads: int, head_dim: int = 16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    heads = (num_heads, num_kv_heads, num_kv_heads)
    return [torch.randn(batch, length, n, head_dim, generator=generator, dtype=torch.float64) for n in heads]


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


@pytest.mark.parametrize(("batch", "length", "heads"), [(1, 384, (4, 2)), (2, 130, (3, 1)), (1, 1, (2, 2)), (3, 64, (2, 1))])
def test_outputs_and_gradients_are_torch_s(batch: int, length: int, heads: tuple[int, int]) -> None:
    exact = [x.requires_grad_() for x in operands(batch, length, *heads)]
    ours = [x.detach().float().requires_grad_() for x in exact]
    weight = torch.linspace(-1, 1, 16, dtype=torch.float64) * torch.arange(1, length + 1)[:, None, None] / length
    expected, found = attended(*exact), blocked_attention(*ours)
    (expected * weight).sum().backward()
    (found * weight.float()).sum().backward()
    torch.testing.assert_close(found.double(), expected, atol=2e-6, rtol=0)
    for one, other in zip(ours, exact, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(one.grad.double(), other.grad, atol=5e-6, rtol=0)


def test_its_operations_keep_the_rules_of_torch() -> None:
    arguments = tuple(x.float().requires_grad_() for x in operands(1, 70, 4, 2))
    torch.library.opcheck(torch.ops.openafm.blocked_attention.default, arguments)


class _Kernels(TorchFunctionMode):
    """Count the calls of torch's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.calls += func is F.scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("length", "window", "grad", "torch_calls"),
    [(384, None, True, 0), (384, 384, True, 0), (1025, None, True, 1), (384, None, False, 1)],
)
def test_it_serves_training_on_medium_documents(length: int, window: int | None, grad: bool, torch_calls: int) -> None:
    q, k, v = (x.bfloat16().requires_grad_(grad) for x in operands(1, length, 2, 1))
    with _Kernels() as kernels:
        o = masked_attention.masked_attention(q, k, v, CausalMask(window))
    assert kernels.calls == torch_calls
    assert o.dtype is torch.bfloat16
    torch.testing.assert_close(o, attended(q.float(), k.float(), v.float()).bfloat16(), atol=2e-2, rtol=0)
