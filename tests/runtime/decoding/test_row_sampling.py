"""Several answers are sampled at once, each as its own sampler would choose."""

from __future__ import annotations

import numpy as np
import pytest

from openafm.runtime.decoding.row_sampling import MAX_TOGETHER_VOCABULARY, sample_rows
from openafm.runtime.decoding.sampling import BrokenLogitsError, GreedyConfig, RandomConfig, Sampler

PLAIN = [RandomConfig(temperature=0.7, seed=seed).build() for seed in range(-4, 4)]
MIXED = [GreedyConfig().build(), *(RandomConfig(temperature=t, top_p=p, seed=3).build() for t, p in ((1, None), (2, 0.5)))]


@pytest.mark.parametrize("samplers", [PLAIN, MIXED], ids=["plain", "mixed"])
@pytest.mark.parametrize("vocab_size", [1, 30, 500, MAX_TOGETHER_VOCABULARY + 1])
def test_every_row_has_the_choice_of_its_sampler(samplers: list[Sampler], vocab_size: int) -> None:
    draw = np.random.default_rng(vocab_size)
    for scale in (0.1, 3.0, 200.0):
        logits_RV = (draw.standard_normal((len(samplers), vocab_size)) * scale).astype(np.float32)
        logits_RV[:, 1:8] = -np.inf
        positions = draw.integers(0, 1000, len(samplers)).tolist()
        expected = [each.sample(row, at) for each, row, at in zip(samplers, logits_RV, positions, strict=True)]
        assert sample_rows(samplers, logits_RV, positions) == expected


@pytest.mark.parametrize("broken", [np.nan, -np.inf, np.inf])
def test_a_row_without_a_choice_raises(broken: float) -> None:
    logits_RV = np.zeros((len(PLAIN), 9), np.float32)
    logits_RV[2] = broken
    with pytest.raises(BrokenLogitsError):
        sample_rows(PLAIN, logits_RV, [0] * len(PLAIN))
