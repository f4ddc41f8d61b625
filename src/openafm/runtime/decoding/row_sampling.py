"""Choice of the next token of several answers at once. Each choice is that of the answer's own sampler.

Shapes: R rows, V vocabulary, K pairs of a row and a token that may be the row's choice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from openafm.runtime.decoding.sampling import NEGLIGIBLE, RandomSampler, Sampler, check_highest, mixed, token_states

# Rows of larger vocabularies are sampled one by one: each then stays in the cache, and few of its tokens are candidates.
MAX_TOGETHER_VOCABULARY = 8192


def sample_rows(samplers: Sequence[Sampler], logits_RV: NDArray[np.float32], positions: Sequence[int]) -> list[int]:
    """Return the token of each row, equal to `samplers[r].sample(logits_RV[r], positions[r])`.

    Raises:
        BrokenLogitsError: a logit is not a number, or none of a row is finite.
    """
    plain = [each for each in samplers if isinstance(each, RandomSampler) and each.is_plain]
    temperatures = {each.config.temperature for each in plain}
    if len(plain) < len(samplers) or len(temperatures) != 1 or logits_RV.shape[1] > MAX_TOGETHER_VOCABULARY:
        rows = zip(samplers, logits_RV, positions, strict=True)
        return [sampler.sample(logits_V, position) for sampler, logits_V, position in rows]
    return _race(plain, logits_RV, positions, temperatures.pop())


def _race(
    samplers: Sequence[RandomSampler], logits_RV: NDArray[np.float32], positions: Sequence[int], temperature: float
) -> list[int]:
    """Return the winner of each row's exponential race (sampling.py)."""
    highest_R1 = logits_RV.max(axis=1, keepdims=True)
    for highest in highest_R1[:, 0]:
        check_highest(float(highest))
    wide_R1 = highest_R1.astype(np.float64)
    lowest_R1 = np.maximum(wide_R1 - NEGLIGIBLE * temperature, np.finfo(np.float32).min).astype(np.float32)
    weights_RV = (logits_RV - wide_R1) / temperature
    np.exp(weights_RV, out=weights_RV)
    begins_R = np.array([each.state(position) for each, position in zip(samplers, positions, strict=True)], np.uint64)
    states_RV = token_states(logits_RV.shape[1]) + begins_R[:, None]
    numbers_RV = (mixed(states_RV) >> np.uint64(11)).view(np.int64) * 2.0**-53
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        bounds_RV = np.where(logits_RV >= lowest_R1, numbers_RV / weights_RV, np.inf)
    rows_R, first_R = np.arange(len(samplers)), bounds_RV.argmin(axis=1)
    known_R = -np.log1p(-numbers_RV[rows_R, first_R]) / weights_RV[rows_R, first_R]
    rows_K, tokens_K = np.nonzero(bounds_RV <= known_R[:, None])
    times_K = -np.log1p(-numbers_RV[rows_K, tokens_K]) / weights_RV[rows_K, tokens_K]
    order_K = np.lexsort((tokens_K, times_K, rows_K))
    return [int(tokens_K[order_K[place]]) for place in np.searchsorted(rows_K[order_K], rows_R)]
