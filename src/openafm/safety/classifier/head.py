"""A multi-label classifier on features: one hidden layer.

Shapes: N texts, F features, H hidden units, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
ARRAYS = ("mean_F", "scale_F", "weight_FH", "bias_H", "weight_HL", "bias_L")
_NUM_HIDDEN = 24
_BATCH, _EPOCHS, _LEAST_STEPS, _RATE = 256, 4, 200, 0.01
_DROPPED = 0.5  # share of the features left out of each training text: a text with unknown words has few of those it needs
_SMALLEST_DEVIATION = 1e-3


@dataclass(frozen=True, kw_only=True)
class Head:
    """Weights of one side. `mean_F` and `scale_F` standardize the features."""

    labels: tuple[str, ...]
    mean_F: Array
    scale_F: Array
    weight_FH: Array
    bias_H: Array
    weight_HL: Array
    bias_L: Array

    def probabilities(self, features_NF: Array) -> Array:
        """Return the probability of each label, [N, L]."""
        hidden_NH = np.maximum(((features_NF - self.mean_F) * self.scale_F) @ self.weight_FH + self.bias_H, 0)
        logits_NL = hidden_NH @ self.weight_HL + self.bias_L
        return np.asarray(1 / (1 + np.exp(-np.clip(logits_NL, -30, 30))), np.float32)


def fit_head(
    features_NF: Array, targets_NL: Array, labels: tuple[str, ...], is_dense_F: npt.NDArray[np.bool_], decay: float
) -> Head:
    """Return a head trained on cross-entropy plus `decay` times the squared weights, on half of the features. Deterministic.

    Dense features are standardized and divided by the root of their number, so that they weigh as much as the others, which
    have length 1.
    """
    import torch
    import torch.nn.functional as F

    mean_F = np.where(is_dense_F, features_NF.mean(0), 0).astype(np.float32)
    deviation_F = np.maximum(features_NF.std(0), _SMALLEST_DEVIATION)
    scale_F = np.where(is_dense_F, 1 / deviation_F / max(is_dense_F.sum(), 1) ** 0.5, 1).astype(np.float32)
    x_NF = torch.from_numpy((features_NF - mean_F) * scale_F)
    y_NL = torch.from_numpy(targets_NL)
    random = torch.Generator().manual_seed(0)
    weight_FH = (0.3 * torch.randn(x_NF.shape[1], _NUM_HIDDEN, generator=random)).requires_grad_()
    weight_HL = (torch.randn(_NUM_HIDDEN, len(labels), generator=random) / _NUM_HIDDEN**0.5).requires_grad_()
    bias_H = torch.zeros(_NUM_HIDDEN, requires_grad=True)
    bias_L = torch.zeros(len(labels), requires_grad=True)
    parameters = [weight_FH, bias_H, weight_HL, bias_L]
    optimizer = torch.optim.Adam(parameters, lr=_RATE)
    num_texts = len(x_NF)
    num_steps = max(_LEAST_STEPS, _EPOCHS * num_texts // _BATCH)
    order = torch.cat([torch.randperm(num_texts, generator=random) for _ in range(num_steps * _BATCH // num_texts + 1)])
    for step in range(num_steps):
        optimizer.param_groups[0]["lr"] = _RATE * (1 - step / num_steps)
        chosen = order[step * _BATCH : (step + 1) * _BATCH]
        kept_NF = x_NF[chosen]
        kept_NF = kept_NF * (torch.rand(kept_NF.shape, generator=random) >= _DROPPED)
        logits_NL = torch.relu(kept_NF @ weight_FH + bias_H) @ weight_HL + bias_L
        squared = weight_FH.square().sum() + weight_HL.square().sum()
        loss = F.binary_cross_entropy_with_logits(logits_NL, y_NL[chosen]) + decay * squared
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return Head(
        labels=labels,
        mean_F=mean_F,
        scale_F=scale_F,
        weight_FH=weight_FH.detach().numpy(),
        bias_H=bias_H.detach().numpy(),
        weight_HL=weight_HL.detach().numpy(),
        bias_L=bias_L.detach().numpy(),
    )
