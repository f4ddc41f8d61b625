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
from openafm.runtime.engines.base import Sequence as EngineSequence
from openafm.training.objectives.policy_config import PolicyObjectiveConfig

_CHUNK = 256  # tokens whose logits are in memory at once


def reference_log_probs(
    engine: Engine, trajectories: Sequence[Trajectory], objective: PolicyObjectiveConfig
) -> list[npt.NDArray[np.float32]]:
    """Return the log-probabilities [N] of each trajectory of a group, 0 for tokens that the policy did not choose.

    The prompt is computed once; the trajectories continue from forks of it.
    """
    prompt = trajectories[0].prompt_tokens
    shared = engine.new_sequence()
    if len(prompt) > 1:
        prefill(engine, shared, list(prompt[:-1]))
    found = []
    for each in trajectories:
        sequence = engine.fork(shared)
        found.append(_log_probs(engine, sequence, each, objective))
        engine.close(sequence)
    engine.close(shared)
    return found


def _log_probs(
    engine: Engine, sequence: EngineSequence, trajectory: Trajectory, objective: PolicyObjectiveConfig
) -> npt.NDArray[np.float32]:
    tokens_N = trajectory.tokens_N
    fed = [trajectory.prompt_tokens[-1], *tokens_N[:-1].tolist()]
    log_probs_N = np.zeros(len(tokens_N), np.float32)
    for start in range(0, len(fed), _CHUNK):
        part = slice(start, start + _CHUNK)
        (logits_CV,) = engine.step([(sequence, fed[part])], "all")
        logits_CV = logits_CV[:, : objective.num_tokens]
        chosen_C = np.flatnonzero(trajectory.loss_mask_N[part])
        if not len(chosen_C):
            continue
        logits_CV = logits_CV[chosen_C]
        if trajectory.support_NV is not None:
            support_CV = np.unpackbits(trajectory.support_NV[part][chosen_C], axis=1, bitorder="little")
            logits_CV[support_CV[:, : logits_CV.shape[1]] == 0] = -np.inf
        tokens_C = tokens_N[part][chosen_C]
        log_probs_N[start + chosen_C] = token_log_probs(logits_CV, tokens_C.tolist(), objective.temperature)
    return log_probs_N
