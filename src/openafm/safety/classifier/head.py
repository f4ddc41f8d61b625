"""A multi-label logistic regression on features.

Shapes: N texts, F features, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
_STEPS = 60
_HASHED = 1.0  # scale of the n-grams relative to the pooled states
_SMALLEST_DEVIATION = 1e-3


@dataclass(frozen=True, kw_only=True)
class Head:
    """Weights of one side. `mean_F` and `scale_F` standardize the features."""

    labels: tuple[str, ...]
    mean_F: Array
    scale_F: Array
    weight_FL: Array
    bias_L: Array

    def probabilities(self, features_NF: Array) -> Array:
        """Return the probability of each label, [N, L]."""
        logits_NL = ((features_NF - self.mean_F) * self.scale_F) @ self.weight_FL + self.bias_L
        return np.asarray(1 / (1 + np.exp(-np.clip(logits_NL, -30, 30))), np.float32)


def fit_head(features_NF: Array, targets_NL: Array, labels: tuple[str, ...], num_dense: int, decay: float) -> Head:
    """Return the head with the least cross-entropy plus `decay` times the squared weights. Deterministic.

    The first `num_dense` features are standardized and divided by the root of their number, so that they weigh as much as
    the n-grams after them, which have length 1.
    """
    import torch
    import torch.nn.functional as F

    mean_F, scale_F = features_NF.mean(0), np.full(features_NF.shape[1], _HASHED, np.float32)
    deviation_F = features_NF[:, :num_dense].std(0)
    scale_F[:num_dense] = 1 / np.maximum(deviation_F, _SMALLEST_DEVIATION) / np.sqrt(num_dense)
    x_NF = torch.from_numpy((features_NF - mean_F) * scale_F)
    y_NL = torch.from_numpy(targets_NL)
    weight_FL = torch.zeros(x_NF.shape[1], len(labels), requires_grad=True)
    bias_L = torch.zeros(len(labels), requires_grad=True)
    optimizer = torch.optim.LBFGS([weight_FL, bias_L], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(x_NF @ weight_FL + bias_L, y_NL) + decay * weight_FL.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return Head(
        labels=labels,
        mean_F=np.asarray(mean_F, np.float32),
        scale_F=scale_F,
        weight_FL=weight_FL.detach().numpy(),
        bias_L=bias_L.detach().numpy(),
    )
