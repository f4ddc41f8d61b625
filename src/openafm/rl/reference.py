"""Log-probabilities of trajectories under the reference policy, computed by an engine. Imports no tensor library.

An engine whose rows do not depend on the batch gives the reference the bits of the sampling: with equal weights, the KL
divergence is exactly 0.

Shape suffixes: N tokens after the prompt, C of these that are computed at once, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from openafm.rl.decoding import token_log_probs
from openafm.rl.trajectories import Trajectory
from openafm.runtime.decoding.prefill import prefill
from openafm.runtime.engines.base import Engine
from openafm.training.objectives.policy_config import PolicyObjectiveConfig

_CHUNK = 256  # tokens whose logits are in memory at once


def reference_log_probs(
    engine: Engine, trajectories: Sequence[Trajectory], objective: PolicyObjectiveConfig
) -> list[npt.NDArray[np.float32]]:
    """Return the log-probabilities [N] of each trajectory of a group, 0 for tokens that the policy did not choose.

    The prompt is computed once; the trajectories continue from forks of it, together.
    """
    prompt = trajectories[0].prompt_tokens
    shared = engine.new_sequence()
    if len(prompt) > 1:
        prefill(engine, shared, list(prompt[:-1]))
    sequences = [engine.fork(shared) for _ in trajectories]
    fed = [[prompt[-1], *each.tokens_N[:-1].tolist()] for each in trajectories]
    found = [np.zeros(len(tokens), np.float32) for tokens in fed]
    done = 0
    while left := [index for index, tokens in enumerate(fed) if done < len(tokens)]:
        part = slice(done, done + max(_CHUNK // len(left), 1))
        outputs = engine.step([(sequences[index], fed[index][part]) for index in left], "all")
        for index, logits_CV in zip(left, outputs, strict=True):
            found[index][part] = _log_probs(logits_CV[:, : objective.num_tokens], trajectories[index], part, objective)
        done = part.stop
    for sequence in (shared, *sequences):
        engine.close(sequence)
    return found


def _log_probs(
    logits_CV: npt.NDArray[np.float32], trajectory: Trajectory, part: slice, objective: PolicyObjectiveConfig
) -> npt.NDArray[np.float32]:
    """Return the log-probabilities [C] of a part of a trajectory."""
    log_probs_C = np.zeros(len(logits_CV), np.float32)
    chosen_C = np.flatnonzero(trajectory.loss_mask_N[part])
    if len(chosen_C) == 0:
        return log_probs_C
    if len(chosen_C) < len(logits_CV):
        logits_CV = logits_CV[chosen_C]
    if trajectory.support_NV is not None:
        support_CV = np.unpackbits(trajectory.support_NV[part][chosen_C], axis=1, bitorder="little")
        logits_CV = np.where(support_CV[:, : logits_CV.shape[1]] == 0, -np.inf, logits_CV)
    tokens_C = trajectory.tokens_N[part][chosen_C]
    log_probs_C[chosen_C] = token_log_probs(logits_CV, tokens_C.tolist(), objective.temperature)
    return log_probs_C
