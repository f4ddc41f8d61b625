"""The report's mixtures of the multimodal stages: which parts a stage trains on, and their shares (report 4.4, 5.1).

    openafm data mixture --stage multimodal_adaptation
    openafm data mixture --stage multimodal_adaptation text=shards interleaved=pages captions=captioned domains=drawn

The shares of adaptation are the report's. For supervised fine-tuning the report names the parts and no shares; these are
ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from openafm.core.config import Config, nearest
from openafm.data.images.resolution import ResolutionConfig
from openafm.data.images.shards import is_image_corpus, open_image_corpus
from openafm.data.loading.loader import SourceConfig
from openafm.data.pipeline.mixture_plan import BYTES_PER_TOKEN, UNDETERMINED, MixtureError, Source, count_tokens

if TYPE_CHECKING:
    from openafm.tokenizer.bpe import Tokenizer

_SHARE_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class MixturePartConfig(Config):
    """A part of a stage's mixture: its share of the training tokens, and where its data comes from."""

    name: str
    share: float
    holds: str
    """What its documents are, for a reader."""
    made_by: tuple[str, ...] = ()
    """Commands of openafm that make such data."""

    def __post_init__(self) -> None:
        self.require(0 < self.share <= 1, f"the share of {self.name} must be above 0 and at most 1, got {self.share}")


@dataclass(frozen=True, kw_only=True)
class StageMixtureConfig(Config):
    """The mixture of a training stage; the shares of its parts add up to 1. `origin` is the author of the shares."""

    name: str
    origin: str
    parts: tuple[MixturePartConfig, ...]

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        self.require(len(set(names)) == len(names), f"parts need different names, got {', '.join(names)}")
        total = sum(part.share for part in self.parts)
        self.require(abs(total - 1) < _SHARE_TOLERANCE, f"the shares must add up to 1, got {total:g}")

    def loader_sources(self, paths: Mapping[str, str]) -> tuple[SourceConfig, ...]:
        """Return the sources of a loader from the token shards of each part, by its name.

        Raises:
            MixtureError: a part has no path, or a name is not that of a part.
        """
        self._check_names(paths)
        return tuple(SourceConfig(name=part.name, path=paths[part.name], weight=part.share) for part in self.parts)

    def weighted(self, sources: Mapping[str, Iterable[Source]]) -> tuple[Source, ...]:
        """Return the sources of each part with weights: the share of the part, divided among its sources by their tokens.

        Raises:
            MixtureError: a part has no tokens, or a name is not that of a part.
        """
        self._check_names(sources)
        weighted = []
        for part in self.parts:
            found = list(sources[part.name])
            total = sum(sum(source.tokens.values()) for source in found)
            if not total:
                raise MixtureError(f"the sources of {part.name} have no tokens; pass other sources for this part")
            for number, source in enumerate(found):
                name = part.name if len(found) == 1 else f"{part.name}-{number + 1}"
                weight = part.share * sum(source.tokens.values()) / total
                weighted.append(
                    Source(
                        name=name,
                        path=source.path,
                        tokens=source.tokens,
                        weight=weight,
                        is_estimated=source.is_estimated,
                    )
                )
        return tuple(source for source in weighted if source.weight)

    def _check_names(self, given: Iterable[str]) -> None:
        names = {part.name: part for part in self.parts}
        if unknown := [name for name in given if name not in names]:
            raise MixtureError(f"{self.name} has no part '{unknown[0]}'{nearest(unknown[0], list(names))}")
        if missing := [f"{name} ({part.share:.1%})" for name, part in names.items() if name not in given]:
            raise MixtureError(f"{self.name} needs sources for {', '.join(missing)}; pass each as PART=PATH")


MULTIMODAL_ADAPTATION = StageMixtureConfig(
    name="multimodal_adaptation",
    origin="report 4.4",
    parts=(
        MixturePartConfig(
            name="text",
            share=0.6,
            holds="text of the continued pre-training stage",
            made_by=("openafm data run", "openafm data pack"),
        ),
        MixturePartConfig(
            name="interleaved",
            share=0.1,
            holds="web pages with their images in place",
            made_by=("openafm data images",),
        ),
        MixturePartConfig(
            name="captions",
            share=0.285,
            holds="images with alt texts and captions in levels",
            made_by=("openafm data images", "openafm data caption"),
        ),
        MixturePartConfig(
            name="domains",
            share=0.015,
            holds="grounded captions, tables, charts, plots, questions of knowledge domains",
            made_by=("openafm data draw", "openafm data caption --levels grounded", "openafm data domains"),
        ),
    ),
)
VISION_SFT = StageMixtureConfig(
    name="vision_sft",
    origin="parts: report 5.1; shares: ours",
    parts=(
        MixturePartConfig(name="text", share=0.35, holds="conversations without images", made_by=("openafm data pack",)),
        MixturePartConfig(
            name="general_knowledge",
            share=0.12,
            holds="questions about images of knowledge domains",
            made_by=("openafm data domains",),
        ),
        MixturePartConfig(
            name="reasoning",
            share=0.08,
            holds="questions that need several steps: charts, tables, formulas",
            made_by=("openafm data draw charts", "openafm data draw tables", "openafm data draw formulas"),
        ),
        MixturePartConfig(
            name="text_rich",
            share=0.14,
            holds="documents, infographics, receipts, forms, flyers, handwriting",
            made_by=("openafm data draw documents", "openafm data draw flyers", "openafm data draw handwriting"),
        ),
        MixturePartConfig(
            name="ocr",
            share=0.1,
            holds="transcriptions of signs, menus and posters in all languages",
            made_by=("openafm data draw signs", "openafm data draw documents"),
        ),
        MixturePartConfig(
            name="grounding",
            share=0.1,
            holds="answers with boxes; questions by box, point and set of marks",
            made_by=("openafm data draw scenes",),
        ),
        MixturePartConfig(
            name="multi_image",
            share=0.03,
            holds="comparisons of several images",
            made_by=("openafm data draw scenes",),
        ),
        MixturePartConfig(
            name="bootstrap",
            share=0.05,
            holds="prompts and answers for images that seeds found",
            made_by=("openafm data bootstrap",),
        ),
        MixturePartConfig(
            name="adversarial",
            share=0.03,
            holds="questions about what is not in the image, with answers that say so",
            made_by=("openafm data draw scenes", "openafm data bootstrap --absent"),
        ),
    ),
)
STAGE_MIXTURES = {mixture.name: mixture for mixture in (MULTIMODAL_ADAPTATION, VISION_SFT)}


def stage_mixture(name: str) -> StageMixtureConfig:
    """Return the mixture of a stage.

    Raises:
        MixtureError: the name is unknown.
    """
    if name not in STAGE_MIXTURES:
        raise MixtureError(f"unknown stage '{name}'{nearest(name, list(STAGE_MIXTURES))}")
    return STAGE_MIXTURES[name]


def count_source(name: str, path: Path, tokenizer: Tokenizer | None, weight: float | None = None) -> Source:
    """Return a source with its tokens by language, as `count_tokens`; of an image corpus, with the tokens of its images.

    Those are estimated: each image takes the tokens of the balanced mode, and each document is counted with all its texts.
    """
    if not is_image_corpus(path):
        return count_tokens(name, path, tokenizer, weight)
    image_tokens = ResolutionConfig().num_tokens("balanced")
    tokens: dict[str, float] = {}
    for document in open_image_corpus(path).documents():
        questions = (part for each in document.questions for part in (each.question, each.answer))
        texts = [document.text, document.transcription, *document.captions.values(), *questions]
        num_tokens = sum(
            len(text.encode()) / BYTES_PER_TOKEN if tokenizer is None else len(tokenizer.encode(text))
            for text in texts
            if text
        )
        language = document.language or UNDETERMINED
        tokens[language] = tokens.get(language, 0) + num_tokens + image_tokens * len(document.digests)
    counts = {language: round(count) for language, count in tokens.items()}
    return Source(name=name, path=str(path), tokens=counts, weight=weight, is_estimated=True)
