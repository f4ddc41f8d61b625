"""Prompt selection: the prompts with the highest cohesion in their semantic neighborhood (report 5.2.2).

Graders disagree on subjective, hard or obscure prompts, and a reward model trained on their labels is unreliable there. The
selection model predicts from a prompt whether its labels agree with the model (`RewardModelConfig.has_cohesion`). The report
does not give the search; this is ours. The neighborhood of a prompt is its k nearest prompts of the same language, by the
cosine of their embeddings. A prompt is compared with its neighborhood only, so that every region of the prompts keeps its
share, and languages keep theirs.

Shapes: P prompts, E embedding dim, K neighbors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from openafm.core.config import Config
from openafm.core.errors import UsageError

MAX_EXACT = 100_000
_BLOCK_ELEMENTS = 1 << 24


class SelectionError(UsageError):
    """Prompts cannot be selected: too many of one language, or embeddings and scores of other prompts."""


@dataclass(frozen=True, kw_only=True)
class SelectionConfig(Config):
    """How many prompts are kept.

    Attributes:
        share: the share of each language's prompts that is kept.
        num_neighbors: the size of a neighborhood, the prompt included.
        ranking_weight: the weight of ranking cohesion in a prompt's score; helpfulness cohesion has the rest.
    """

    share: float = 0.5
    num_neighbors: int = 32
    ranking_weight: float = 0.5

    def __post_init__(self) -> None:
        self.require(0 < self.share <= 1, f"share is above 0 up to 1, got {self.share}")
        self.require(self.num_neighbors >= 2, f"num_neighbors must be at least 2, got {self.num_neighbors}")
        self.require(0 <= self.ranking_weight <= 1, f"ranking_weight is a share from 0 to 1, got {self.ranking_weight}")


@dataclass(frozen=True, kw_only=True)
class PromptFeatures:
    """What selection reads of prompts: embeddings [P, E], and ranking and helpfulness cohesion from 0 to 1 [P, 2]."""

    embeddings_PE: npt.NDArray[np.float32]
    cohesion_P2: npt.NDArray[np.float32]
    languages: tuple[str, ...]

    def __post_init__(self) -> None:
        counts = {len(self.embeddings_PE), len(self.cohesion_P2), len(self.languages)}
        if len(counts) != 1 or self.embeddings_PE.ndim != 2:
            raise SelectionError(
                f"{len(self.embeddings_PE)} embeddings, {len(self.cohesion_P2)} cohesion scores and {len(self.languages)} "
                "languages; each prompt needs one of each"
            )
        if not np.isfinite(self.embeddings_PE).all() or not np.isfinite(self.cohesion_P2).all():
            raise SelectionError("an embedding or a cohesion score is not finite; check the model or the encoder")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The chosen prompts in ascending order, the score of every prompt, and its place in its neighborhood from 0 to 1."""

    chosen: tuple[int, ...]
    scores_P: npt.NDArray[np.float32]
    places_P: npt.NDArray[np.float32]


def select_prompts(features: PromptFeatures, config: SelectionConfig) -> Selection:
    """Return the prompts whose score is the highest in their neighborhoods: the same share of each language.

    Raises:
        SelectionError: a language has more than `MAX_EXACT` prompts.
    """
    weight = config.ranking_weight
    scores_P = (features.cohesion_P2 @ np.array([weight, 1 - weight], np.float32)).astype(np.float32)
    places_P = np.zeros_like(scores_P)
    chosen: list[int] = []
    languages = np.array(features.languages)
    for language in sorted(set(features.languages)):
        members_M = np.flatnonzero(languages == language)
        if len(members_M) > MAX_EXACT:
            raise SelectionError(
                f"{len(members_M):,} prompts in '{language}' are more than the {MAX_EXACT:,} that are compared exactly; "
                "divide the file"
            )
        neighbors_MK = nearest_neighbors(features.embeddings_PE[members_M], config.num_neighbors)
        scores_M = scores_P[members_M]
        places_P[members_M] = (scores_M[neighbors_MK] < scores_M[:, None]).mean(1)
        order_M = np.lexsort((-scores_M, -places_P[members_M]))  # by place, then by score
        chosen += members_M[order_M[: max(1, round(config.share * len(members_M)))]].tolist()
    return Selection(chosen=tuple(sorted(chosen)), scores_P=scores_P, places_P=places_P)


def nearest_neighbors(embeddings_PE: npt.NDArray[np.float32], num_neighbors: int) -> npt.NDArray[np.int64]:
    """Return the indices of the nearest embeddings by cosine, itself included, [P, K]; exact.

    The mean is subtracted first: states of a language model share a large common part, which hides differences.
    """
    count = min(num_neighbors, len(embeddings_PE))
    centered_PE = embeddings_PE - embeddings_PE.mean(0)
    unit_PE = centered_PE / np.maximum(np.linalg.norm(centered_PE, axis=1, keepdims=True), 1e-12)
    found = np.empty((len(unit_PE), count), np.int64)
    block = max(1, _BLOCK_ELEMENTS // max(1, len(unit_PE)))
    for start in range(0, len(unit_PE), block):
        rows = slice(start, start + block)
        similarity_BP = unit_PE[rows] @ unit_PE.T
        np.fill_diagonal(similarity_BP[:, start:], 2.0)  # a prompt is in its own neighborhood
        found[rows] = np.argpartition(-similarity_BP, count - 1, axis=1)[:, :count]
    return found


def select_at_random(languages: Sequence[str], share: float, seed: int = 0) -> tuple[int, ...]:
    """Return the same share of each language at random: the baseline of selection."""
    rng, tags = np.random.default_rng(seed), np.array(languages)
    chosen: list[int] = []
    for language in sorted(set(languages)):
        members_M = np.flatnonzero(tags == language)
        chosen += rng.choice(members_M, max(1, round(share * len(members_M))), replace=False).tolist()
    return tuple(sorted(chosen))
