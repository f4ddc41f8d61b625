"""Contrastive towers as scorers of image-text pairs and of knowledge domains (report 3.2.1, 3.2.4, 5.1).

    openafm data domains pairs --plugins openafm.recipes.pipelines.clip_scorer \\
        --set 'scorer={"type": "ClipDomainScorerConfig", "bundle": "vision.clip-nano"}' ...

A pipeline of your own passes `AlignmentConfig(scorer=ClipScorerConfig(bundle=...))` to `pair_filters`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from openafm.bundle import open_bundle
from openafm.data.captions.domains import Scorer, ScorerConfig
from openafm.data.images.decoding import pixels
from openafm.data.images.documents import StoredImage
from openafm.data.pairs.alignment import AlignmentScorer, AlignmentScorerConfig
from openafm.data.pairs.filters import Pair

if TYPE_CHECKING:
    from openafm.evaluation.image_text import ImageTextEncoder

DIGITS = 3
"""Decimal places of a score: sums of floating-point numbers differ between machines in later ones."""


@dataclass(frozen=True, kw_only=True)
class ClipScorerConfig(AlignmentScorerConfig):
    """The cosine similarity of an image and its alt text by the towers of a bundle of `vision.clip`, from -1 to 1."""

    bundle: str

    def build(self) -> AlignmentScorer:
        return ClipScorer(_encoder(self.bundle))

    def input_digests(self) -> tuple[str, ...]:
        return (open_bundle(self.bundle).identity,)


class ClipScorer(AlignmentScorer):
    """See `ClipScorerConfig`."""

    def __init__(self, encoder: ImageTextEncoder) -> None:
        self._encoder = encoder

    def score(self, pair: Pair) -> float:
        image_E, text_E = self._encoder.images([pair.pixels()])[0], self._encoder.texts([pair.text])[0]
        return round(float(image_E @ text_E), DIGITS)


@dataclass(frozen=True, kw_only=True)
class ClipDomainScorerConfig(ScorerConfig):
    """The cosine similarities of an image and the prompts of knowledge domains, by the towers of a bundle."""

    bundle: str

    def build(self) -> Scorer:
        return ClipDomainScorer(_encoder(self.bundle))


@dataclass(frozen=True)
class ClipDomainScorer(Scorer):
    """See `ClipDomainScorerConfig`."""

    encoder: ImageTextEncoder
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def scores(self, image: StoredImage, prompts: Sequence[str]) -> Sequence[float]:
        with self._lock:
            similarity_T = self.encoder.texts(prompts) @ self.encoder.images([pixels(image)])[0]
        return [round(float(each), DIGITS) for each in similarity_T]


@lru_cache(maxsize=2)
def _encoder(bundle: str) -> ImageTextEncoder:
    from openafm.evaluation.image_text import ImageTextEncoder

    return ImageTextEncoder(open_bundle(bundle))
