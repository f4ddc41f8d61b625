"""Attention of short documents in bf16 on a CPU equals fused attention in fp32, and so do its gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from openafm.models.attention.masked_attention import causal_attention
from openafm.models.attention.short_attention import MAX_POSITIONS, is_short, short_attention


def draw(length: int, dtype: torch.dtype = torch.bfloat16, num_heads: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    heads = (num_heads, 2, 2)
    return [torch.randn(2, length, n, 16, generator=generator).to(dtype).requires_grad_() for n in heads]


@pytest.mark.parametrize("length", [1, 2, 37, 300])
@pytest.mark.parametrize("num_heads", [2, 4])
def test_output_and_gradients_equal_those_of_fused_attention(length: int, num_heads: int) -> None:
    tensors = draw(length, num_heads=num_heads)
    upstream = torch.randn(2, length, num_heads, 16, generator=torch.Generator().manual_seed(1))
    output = short_attention(*tensors)
    gradients = torch.autograd.grad(output, tensors, upstream.bfloat16())
    exact = [tensor.detach().float().requires_grad_() for tensor in tensors]
    q, k, v = (tensor.transpose(1, 2) for tensor in exact)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
    expected_gradients = torch.autograd.grad(expected, exact, upstream)
    for found, right in zip((output, *gradients), (expected, *expected_gradients), strict=True):
        assert (found.float() - right).norm() <= 0.02 * right.norm() + 1e-3


def test_only_short_documents_that_are_trained_in_bf16_use_it() -> None:
    assert is_short(*draw(MAX_POSITIONS)[:2])
    assert not is_short(*draw(MAX_POSITIONS + 1)[:2])
    assert not is_short(*draw(8, torch.float32)[:2])
    q, k, v = draw(8)
    assert not is_short(q[:, -2:], k), "the last queries of a longer document"
    assert not is_short(q.detach(), k), "no gradient is needed"
    assert torch.equal(causal_attention(q, k, v, None), short_attention(q, k, v))
    assert not torch.equal(causal_attention(q, k, v, 2), short_attention(q, k, v)), "a window"
