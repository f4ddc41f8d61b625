"""Exact answers on packed questions, by one forward pass: an answer is right if each of its tokens is the most likely one.

This is greedy decoding without a step for each token: the tokens before a wrong one are those of the reference. Later
questions of a conversation follow the reference's answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from openafm.core.errors import UsageError
from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.models.decoder import Decoder
from openafm.training.objectives.base import target_states
from openafm.training.objectives.config import RoutingLossConfig


@dataclass(frozen=True, kw_only=True)
class ExactScores:
    """Number of answers, the share that is exact, and the mean loss of a token in nats."""

    num_answers: int
    exact: float
    loss: float


@torch.no_grad()
def exact_answers(model: Decoder, shards: Path, *, row_tokens: int, max_rows: int | None = None) -> ExactScores:
    """Return the scores of a model on token shards in which the answers alone carry loss, the first `max_rows` rows.

    Raises:
        UsageError: no token carries loss.
        ShardError: the shards cannot be read.
    """
    source = SourceConfig(name="questions", path=str(shards))
    loader = LoaderConfig(sources=(source,), rows_per_step=1, row_tokens=row_tokens).build()
    num_rows = min(loader.sources[0].num_rows, max_rows or loader.sources[0].num_rows)
    exact: list[bool] = []
    loss, num_tokens = 0.0, 0
    for step in range(num_rows):
        batch = loader.batch(step)
        if batch.num_targets == 0:
            continue
        states = target_states(model, batch, RoutingLossConfig())
        logits_NV = (states.x_ND @ states.head_weight_VD.to(states.x_ND.dtype).T).float()
        loss += F.cross_entropy(logits_NV, states.targets_N, reduction="sum").item()
        num_tokens += len(states.targets_N)
        is_right_N = (logits_NV.argmax(-1) == states.targets_N).cpu().numpy()
        indices_N = np.flatnonzero(batch.loss_mask_BS)
        starts = np.flatnonzero(np.diff(indices_N, prepend=-2) > 1)  # positions of an answer follow each other
        exact += np.logical_and.reduceat(is_right_N, starts).tolist()
    if not exact:
        raise UsageError(f"no token of {shards} carries loss; pack questions")
    return ExactScores(num_answers=len(exact), exact=float(np.mean(exact)), loss=loss / num_tokens)
