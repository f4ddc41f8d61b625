"""Chunked cross entropy and its gradients against the plain computation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from openafm.training.objectives import cross_entropy
from openafm.training.objectives.cross_entropy import cross_entropy_sum


def inputs(num_positions: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num_positions)
    x_ND = torch.randn(num_positions, 16, generator=generator).to(dtype).requires_grad_()
    weight_VD = torch.randn(50, 16, generator=generator).requires_grad_()
    return x_ND, weight_VD, torch.randint(0, 50, (num_positions,), generator=generator)


def plain(x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    return F.cross_entropy((x_ND @ weight_VD.to(x_ND.dtype).T).float(), targets_N, reduction="sum")


@pytest.mark.parametrize("num_positions", [1, 255, 256, 257, 700])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_loss_and_gradients_equal_the_plain_ones(
    num_positions: int, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy, "CHUNK_ELEMENTS", 1)  # chunks of 256 positions
    monkeypatch.setattr(cross_entropy, "BLOCK_ELEMENTS", 1)  # a softmax of 4 positions
    x_ND, weight_VD, targets_N = inputs(num_positions, dtype)
    chunked, expected = cross_entropy_sum(x_ND, weight_VD, targets_N), plain(x_ND, weight_VD, targets_N)
    torch.testing.assert_close(chunked, expected, rtol=tolerance, atol=tolerance)
    found = torch.autograd.grad(chunked * 0.3, (x_ND, weight_VD))
    wanted = torch.autograd.grad(expected * 0.3, (x_ND, weight_VD))
    for gradient, reference in zip(found, wanted, strict=True):
        assert gradient.dtype == reference.dtype
        error = (gradient - reference).float().norm() / reference.float().norm()
        assert error < tolerance


def test_large_logits_do_not_overflow() -> None:
    x_ND = torch.tensor([[200.0, 0.0], [0.0, -300.0]], requires_grad=True)
    loss = cross_entropy_sum(x_ND, torch.eye(2), torch.tensor([0, 1]))
    assert loss.item() == pytest.approx(300.0)
    assert torch.autograd.grad(loss, x_ND)[0].isfinite().all()


def test_no_gradient_without_autograd() -> None:
    x_ND, weight_VD, targets_N = inputs(300, torch.float32)
    with torch.no_grad():
        loss = cross_entropy_sum(x_ND, weight_VD, targets_N)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, plain(x_ND, weight_VD, targets_N).detach())
