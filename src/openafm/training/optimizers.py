"""The optimizers that configs build, from torch's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import Parameter

from openafm.training.config import AdamWConfig, MuonConfig


def adamw(config: AdamWConfig, parameters: Mapping[str, Parameter]) -> torch.optim.AdamW:
    """AdamW in one fused call: matrices decay, norms and biases do not."""
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
    """Muon for the matrices of the layers, AdamW for all else."""
    matrices = {
        name: p for name, p in parameters.items() if p.ndim == 2 and name.startswith("layers.") and not _is_vector(name)
    }
    others = {name: p for name, p in parameters.items() if name not in matrices}
    orthogonal = torch.optim.Muon(
        [{"params": list(matrices.values()), "initial_lr": config.learning_rate}],
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        momentum=config.momentum,
        adjust_lr_fn="match_rms_adamw",
    )
    return orthogonal, adamw(config.adamw, others)


def _is_vector(name: str) -> bool:
    """Whether a parameter is a norm's or a bias, which is told by its name: tracks give these a second dim."""
    return name.endswith(("norm.weight", ".bias")) or name.startswith("tracks.norms.")
