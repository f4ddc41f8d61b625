"""Corpora of images for training: drawn with exact truth, or the user's image corpora."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from openafm.core.config import dump
from openafm.data.drawing.corpus import DrawingConfig, draw_corpus, draw_document
from openafm.data.images.interleaving import interleave_corpus
from openafm.data.images.packing import ImagePackConfig, pack_image_corpus
from openafm.data.images.shards import open_image_corpus
from openafm.recipes.sources.corpora import CorpusConfig

if TYPE_CHECKING:
    from openafm.tokenizer.bpe import Tokenizer
    from openafm.tokenizer.template import BaseChatTemplate

TOKENIZER_DRAWINGS = 100
"""Drawings of each generator whose texts a tokenizer is trained on."""


@dataclass(frozen=True, kw_only=True)
class DrawnCorpusConfig(CorpusConfig):
    """Images that openafm draws (report 3.2.3). `packing` selects what is learned of them, and the resolution.

    The drawings are kept beside the shards; corpora of a run with equal drawings share them.
    """

    drawing: DrawingConfig
    packing: ImagePackConfig

    def pack(self, out: Path, tokenizer: Tokenizer, template: BaseChatTemplate) -> None:
        pack_image_corpus(self._drawings(out), out, tokenizer, template, self.packing)

    def _drawings(self, out: Path) -> Path:
        """Return the folder of the drawings; draw those that are missing."""
        digest = hashlib.sha256(dump(self.drawing).encode()).hexdigest()
        folder = out.with_name(f"drawings-{digest[:12]}")
        draw_corpus(self.drawing, folder)
        return folder

    def texts(self) -> Iterator[str]:
        for config in self.drawing.generators:
            generator = config.build()
            for number in range(min(TOKENIZER_DRAWINGS, self.drawing.count)):
                language = self.drawing.languages[number % len(self.drawing.languages)]
                drawn = draw_document(generator, config.name, language, self.drawing.split, self.drawing.seed, number)
                yield drawn.transcription
                yield from drawn.captions.values()
                yield from (text for each in drawn.questions for text in (each.question, each.answer))

    @property
    def description(self) -> str:
        names = ", ".join(generator.name for generator in self.drawing.generators)
        return f"{self.drawing.count:,} drawn images of each kind ({names})"


@dataclass(frozen=True, kw_only=True)
class InterleavedCorpusConfig(DrawnCorpusConfig):
    """Documents of several of the drawings, with captions and texts between them (`interleave_corpus`)."""

    def pack(self, out: Path, tokenizer: Tokenizer, template: BaseChatTemplate) -> None:
        drawings = self._drawings(out)
        joined = drawings.with_name(f"{drawings.name}-interleaved")
        interleave_corpus(drawings, joined, self.drawing.seed)
        pack_image_corpus(joined, out, tokenizer, template, self.packing)


@dataclass(frozen=True, kw_only=True)
class ImageCorpusConfig(CorpusConfig):
    """The image corpus at `path`, such as `openafm data images` and `openafm data caption` write."""

    path: str
    packing: ImagePackConfig

    def pack(self, out: Path, tokenizer: Tokenizer, template: BaseChatTemplate) -> None:
        pack_image_corpus(Path(self.path), out, tokenizer, template, self.packing)

    def texts(self) -> Iterator[str]:
        for document in open_image_corpus(Path(self.path)).documents():
            yield document.text
            yield from document.captions.values()

    def fingerprint(self) -> str:
        return open_image_corpus(Path(self.path)).manifest.digest

    @property
    def description(self) -> str:
        return f"the user's images ({Path(self.path).name})"
