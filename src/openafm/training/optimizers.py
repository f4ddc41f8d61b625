"""The optimizers that configs build, from torch's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import Parameter

from openafm.training.config import AdamWConfig, MuonConfig


def adamw(config: AdamWConfig, parameters: Sequence[Parameter]) -> torch.optim.AdamW:
    """AdamW in one fused call: matrices decay, norms and biases do not."""
    matrices = [p for p in parameters if p.ndim > 1]
    vectors = [p for p in parameters if p.ndim <= 1]
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
    """Muon for the matrices of the layers, AdamW for all else."""
    matrices = {name: p for name, p in parameters.items() if p.ndim == 2 and name.startswith("layers.")}
    others = [p for name, p in parameters.items() if name not in matrices]
    orthogonal = torch.optim.Muon(
        [{"params": list(matrices.values()), "initial_lr": config.learning_rate}],
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        momentum=config.momentum,
        adjust_lr_fn="match_rms_adamw",
    )
    return orthogonal, adamw(config.adamw, others)
