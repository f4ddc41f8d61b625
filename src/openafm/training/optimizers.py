"""The optimizers that configs build.

Shapes: leading dims ... of parallel tracks, A x B a matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from openafm.training.optimizer_config import AdamWConfig, MuonConfig
from openafm.training.precision import fast_dtype

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
NORM_EPS = 1e-7


def adamw(config: AdamWConfig, parameters: Mapping[str, Parameter]) -> torch.optim.AdamW:
    """Return a fused AdamW. Weight decay applies to matrices only, not to norms and biases."""
    matrices = [p for name, p in parameters.items() if not _is_vector(name)]
    vectors = [p for name, p in parameters.items() if _is_vector(name)]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "initial_lr": config.learning_rate},
        {"params": vectors, "initial_lr": config.learning_rate, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def muon(config: MuonConfig, parameters: Mapping[str, Parameter]) -> tuple[torch.optim.Optimizer, ...]:
    """Return Muon for the matrices of the layers, those of parallel tracks included, and AdamW for all other parameters.

    Raises:
        ConfigError: no parameter is a matrix of a layer, so that Muon would train nothing.
    """
    matrices = {name: p for name, p in parameters.items() if is_muon_matrix(name)}
    config.require(len(matrices) > 0, "no parameter is a matrix of a layer, so Muon would train nothing; use AdamWConfig")
    group = {"params": list(matrices.values()), "initial_lr": config.learning_rate}
    optimizer = Muon([group], lr=config.learning_rate, weight_decay=config.weight_decay, momentum=config.momentum)
    others = {name: p for name, p in parameters.items() if name not in matrices}
    return (optimizer, adamw(config.adamw, others)) if others else (optimizer,)


class Muon(torch.optim.Optimizer):
    """Muon for matrices and stacks of them [..., A, B], each orthogonalized by itself.

    torch.optim.Muon takes single matrices, and iterates in bf16 on processors that multiply it 50 times slower than fp32.
    """

    def __init__(self, params: Any, lr: float, weight_decay: float, momentum: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group["lr"], group["weight_decay"], group["momentum"])

    def _update(self, parameter: Tensor, gradient: Tensor, lr: float, weight_decay: float, momentum: float) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        buffer = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        update = orthogonalize(gradient.lerp(buffer, momentum))
        parameter.mul_(1 - lr * weight_decay)
        parameter.add_(update, alpha=-lr * 0.2 * sqrt(max(parameter.shape[-2:])))  # as large as AdamW's updates


def orthogonalize(matrices: Tensor) -> Tensor:
    """Return the approximate polar factors of matrices [..., A, B] by Newton-Schulz iterations, in the fast dtype."""
    a, b, c = NEWTON_SCHULZ
    x = matrices.reshape(-1, *matrices.shape[-2:]).to(fast_dtype(matrices.device.type))
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=NORM_EPS)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).reshape(matrices.shape)


def is_muon_matrix(name: str) -> bool:
    """Return True for matrices of the layers by name: tracks add a dim to every parameter, so dims do not identify them.

    Experts, stacks of matrices under names of their own, are trained by AdamW.
    """
    return name.startswith("layers.") and name.endswith((".weight", ".lora.a", ".lora.b")) and not _is_vector(name)


def _is_vector(name: str) -> bool:
    """Return True for norms, biases and scales by name: tracks add a dim to every parameter."""
    return name.endswith(("norm.weight", ".bias", "_scale")) or name.startswith("tracks.norms.")
