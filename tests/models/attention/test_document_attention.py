"""Attention backends for packed documents give equal results; the flash kernel, which needs a GPU, is emulated."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from openafm.data.loading.batch import Batch
from openafm.models.attention import document_attention
from openafm.models.attention.document_attention import (
    AttentionPerDocument,
    DocumentAttention,
    FlashAttention,
    Queries,
    segments_of,
)
from openafm.models.attention.masks import BidirectionalMask, CausalMask, Mask, PrefixMask
from openafm.models.attention.spans import Span
from openafm.models.sizes import named_size
from openafm.training.objectives.base import NextToken

CPU = torch.device("cpu")
DOCUMENTS = (Span(0, 0, 5), Span(0, 5, 6), Span(1, 2, 9))
SEGMENTS = segments_of(DOCUMENTS, 2, 10)
INDICES_Q = torch.tensor([1, 3, 4, 5, 12, 18])
MASKS = [CausalMask(), CausalMask(1), CausalMask(3), PrefixMask(2), BidirectionalMask()]


def emulated_kernel(
    q_NHC: Tensor,
    k_NKC: Tensor,
    v_NKC: Tensor,
    starts_q: Tensor,
    starts_k: Tensor,
    longest_q: int,
    longest_k: int,
    *,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> Tensor:
    """Compute as torch documents `varlen_attn`, with a mask written out."""
    assert enable_gqa
    assert longest_q == longest_k == int(starts_q.diff().max())
    assert torch.equal(starts_q, starts_k)
    left, right = window_size
    place_N = torch.arange(len(q_NHC))
    document_N = torch.bucketize(place_N, starts_q[1:], right=True)
    ages_NN = place_N[:, None] - place_N
    seen_NN = document_N[:, None] == document_N
    seen_NN &= (ages_NN <= left) if left >= 0 else torch.tensor(True)
    seen_NN &= (-ages_NN <= right) if right >= 0 else torch.tensor(True)
    k_NHC, v_NHC = (x.repeat_interleave(q_NHC.shape[1] // x.shape[1], dim=1) for x in (k_NKC, v_NKC))
    scores_HNN = torch.einsum("qhc,khc->hqk", q_NHC, k_NHC) / q_NHC.shape[-1] ** 0.5
    return torch.einsum("hqk,khc->qhc", scores_HNN.masked_fill(~seen_NN, -torch.inf).softmax(-1), v_NHC)


@pytest.fixture
def kernel_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Emulate the kernel in fp32; return the windows of its calls."""
    windows: list[tuple[int, int]] = []

    @functools.wraps(emulated_kernel)
    def called(*arguments: Any, **options: Any) -> Tensor:
        windows.append(options["window_size"])
        return emulated_kernel(*arguments, **options)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", called)
    monkeypatch.setattr(document_attention, "FLASH_DTYPES", (torch.float32,))
    return windows


def backends(spans_N: Tensor | None = None) -> tuple[DocumentAttention, DocumentAttention]:
    each = AttentionPerDocument(SEGMENTS, spans_N)
    return each, FlashAttention(SEGMENTS, each, CPU, has_spans=spans_N is not None)


def operands() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((20, 4, 8), (20, 2, 8), (20, 2, 8))
    q, k, v = (torch.randn(shape, generator=generator).requires_grad_() for shape in shapes)
    return q, k, v


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_outputs_and_gradients_of_the_backends_are_equal(mask: Mask, kernel_calls: list[tuple[int, int]]) -> None:
    found = []
    for backend in backends():
        q, k, v = operands()
        o_NHC = backend.attend(q, k, v, mask)
        o_QHC = backend.attend_at(Queries(INDICES_Q, SEGMENTS, CPU), q[INDICES_Q], k, v, mask)
        assert torch.allclose(o_QHC, o_NHC[INDICES_Q], atol=1e-6)
        assert o_NHC[6:12].eq(0).all(), "padding"
        total = o_NHC.square().sum() + o_QHC.sin().sum()
        found.append((o_NHC, *torch.autograd.grad(total, (q, k, v))))
    for of_loop, of_kernel in zip(*found, strict=True):
        assert torch.allclose(of_loop, of_kernel, atol=1e-5)
    assert len(kernel_calls) == 2


def test_spans_and_wide_dtypes_do_not_use_the_kernel(
    kernel_calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = operands()
    spans_N = torch.zeros(20, dtype=torch.long)
    spans_N[1:4] = 1
    each, flash = backends(spans_N)
    assert torch.equal(flash.attend(q, k, v, PrefixMask()), each.attend(q, k, v, PrefixMask()))
    monkeypatch.setattr(document_attention, "FLASH_DTYPES", (torch.bfloat16,))
    assert torch.equal(flash.attend(q, k, v, CausalMask()), each.attend(q, k, v, CausalMask()))
    assert kernel_calls == []


def test_older_kernels_take_fewer_key_value_heads_without_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    def older_kernel(*arguments: Any, window_size: tuple[int, int]) -> Tensor:
        return emulated_kernel(*arguments, window_size=window_size, enable_gqa=True)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", older_kernel)
    monkeypatch.setattr(document_attention, "FLASH_DTYPES", (torch.float32,))
    each, flash = backends()
    q, k, v = operands()
    torch.testing.assert_close(flash.attend(q, k, v, CausalMask(3)), each.attend(q, k, v, CausalMask(3)))


@pytest.mark.slow
def test_a_step_on_a_gpu_reads_no_value_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake tensors raise if a value is read, which on a GPU makes the host wait; the kernel checks shapes and dtypes."""
    monkeypatch.setattr(document_attention, "FLASH_DEVICES", {"cpu"})
    batch = one_batch()
    for config in (named_size("on_device.nano"), named_size("server.nano")):
        with torch.device("meta"):
            model = config.build()
        model.compute_dtype = torch.bfloat16
        with FakeTensorMode(allow_non_fake_inputs=True):
            model.to_empty(device="cpu")
            NextToken()(model, batch).total.backward()
        assert all(weight.grad is not None for weight in model.parameters())


def one_batch() -> Batch:
    tokens_BS = np.ones((2, 10), dtype=np.int64)
    loss_mask_BS = np.zeros((2, 10), dtype=np.bool_)
    loss_mask_BS.flat[INDICES_Q.numpy()] = True
    return Batch(tokens_BS=tokens_BS, targets_BS=tokens_BS, loss_mask_BS=loss_mask_BS, documents=DOCUMENTS)


@pytest.mark.gpu
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_the_kernel_equals_the_emulation(mask: Mask) -> None:
    cuda = torch.device("cuda")
    each, _ = backends()
    flash = FlashAttention(SEGMENTS, each, cuda, has_spans=False)
    q, k, v = operands()
    expected = each.attend(q, k, v, mask)
    on_gpu = [x.detach().to(cuda, torch.bfloat16) for x in (q, k, v)]
    assert torch.allclose(flash.attend(*on_gpu, mask).float().cpu(), expected, atol=3e-2)
    queries = Queries(INDICES_Q, SEGMENTS, cuda)
    some = flash.attend_at(queries, on_gpu[0][queries.indices_Q], *on_gpu[1:], mask)
    assert torch.allclose(some.float().cpu(), expected[INDICES_Q], atol=3e-2)
