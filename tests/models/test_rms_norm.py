"""RMSNorm's own gradient against finite differences, and its values against torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from openafm.models.rms_norm import rms_norm


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 2, 4), (1, 0, 4)])
def test_values_and_gradients(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    x_D = torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)
    weight_D = torch.randn(shape[-1], dtype=torch.float64, generator=generator, requires_grad=True)
    torch.testing.assert_close(rms_norm(x_D, weight_D, 1e-3), F.rms_norm(x_D, weight_D.shape, weight_D, 1e-3))
    assert torch.autograd.gradcheck(lambda x, weight: rms_norm(x, weight, 1e-3), (x_D, weight_D))


def test_tracks_are_normed_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    x_TND = torch.randn((3, 2, 5, 4), dtype=torch.float64, generator=generator, requires_grad=True)
    weight_TD = torch.randn((3, 4), dtype=torch.float64, generator=generator, requires_grad=True)
    expected = [F.rms_norm(x, (4,), weight, 1e-3) for x, weight in zip(x_TND, weight_TD, strict=True)]
    torch.testing.assert_close(rms_norm(x_TND, weight_TD, 1e-3), torch.stack(expected))
    assert torch.autograd.gradcheck(lambda x, weight: rms_norm(x, weight, 1e-3), (x_TND, weight_TD))


def test_a_row_of_zeros_stays_zero_and_has_a_finite_gradient() -> None:
    x_D = torch.zeros(2, 4, requires_grad=True)
    y_D = rms_norm(x_D, torch.ones(4), 1e-5)
    y_D.sum().backward()
    assert torch.equal(y_D, torch.zeros(2, 4))
    assert x_D.grad is not None
    assert x_D.grad.isfinite().all()
