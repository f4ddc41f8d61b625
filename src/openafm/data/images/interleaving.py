"""Documents of several images with text between them, from documents of one image each (report 3.2.1).

They replace crawled documents, which `data.pairs` makes. Neighbors of one language become a document, in which the
caption and the text of an image follow it.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from openafm.data.images.building import ShardSource, Unit, build_image_corpus
from openafm.data.images.documents import ImageDocument, ImagePart, Part, StoredImage, TextPart
from openafm.data.images.manifest import Manifest
from openafm.data.images.shards import ImageCorpus, open_image_corpus

FEWEST, MOST = 2, 4
"""Documents that are joined."""
_LEVELS = ("short", "alt", "keywords")


def interleave_corpus(path: Path, out: Path, seed: int = 0) -> Manifest:
    """Write the interleaved documents of the image corpus at `path` to `out`. A call that was interrupted continues.

    Raises:
        ImageCorpusError: `path` is not a complete image corpus.
        ForeignFilesError: `out` has files of something else.
    """
    digest = open_image_corpus(path).manifest.digest
    return build_image_corpus(out, {"corpus": digest, "seed": seed}, _Interleaving(path, digest, seed))


@dataclass(frozen=True)
class _Interleaving(ShardSource):
    """A shard for each shard of the corpus."""

    path: Path
    digest: str
    seed: int

    @property
    def num_shards(self) -> int:
        return len(open_image_corpus(self.path).manifest.shards)

    def key(self, shard: int) -> str:
        return hashlib.sha256(f"{self.digest} {self.seed} {shard}".encode()).hexdigest()

    def units(self, shard: int) -> Iterator[Unit]:
        corpus = open_image_corpus(self.path)
        rng = random.Random(f"{self.seed}:{shard}")
        by_language: dict[str, list[ImageDocument]] = {}
        for document in corpus.shard_documents(shard):
            by_language.setdefault(document.language, []).append(document)
        for documents in by_language.values():
            while documents:
                count = rng.randint(FEWEST, MOST)
                joined, documents = documents[:count], documents[count:]
                yield functools.partial(_joined, corpus, joined)


def _joined(corpus: ImageCorpus, documents: list[ImageDocument]) -> list[tuple[ImageDocument, tuple[StoredImage, ...]]]:
    parts = [part for document in documents for part in _parts(document)]
    digests = dict.fromkeys(part.digest for part in parts if isinstance(part, ImagePart))
    joined = ImageDocument(
        id=f"interleaved/{hashlib.sha256(' '.join(each.id for each in documents).encode()).hexdigest()[:16]}",
        kind="interleaved",
        parts=tuple(parts),
        language=documents[0].language,
        split=documents[0].split,
        source="; ".join(dict.fromkeys(document.source for document in documents)),
        license="; ".join(dict.fromkeys(document.license for document in documents)),
        opt_out=next((document.opt_out for document in documents if document.opt_out), ""),
    )
    return [(joined, tuple(corpus.image(digest) for digest in digests))]


def _parts(document: ImageDocument) -> Iterator[Part]:
    yield from (part for part in document.parts if isinstance(part, ImagePart))
    caption = next((document.captions[level] for level in _LEVELS if document.captions.get(level)), "")
    # The caption of a sign is its text.
    texts = dict.fromkeys(" ".join(text.split()) for text in (caption, document.transcription) if text.strip())
    yield from (TextPart(text=text) for text in texts)
