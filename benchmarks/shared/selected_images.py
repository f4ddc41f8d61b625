"""Image corpora with some of the captions and questions of another one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from openafm.data.images.documents import ImageDocument, StoredImage
from openafm.data.images.shard_writer import finish_corpus, write_image_shard
from openafm.data.images.shards import ImageCorpus, open_image_corpus


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Captions by level and questions by kind. With `each_apart` a document has one question.

    After another question about an image, its text may tell an answer.
    """

    captions: Collection[str] = ()
    questions: Collection[str] = ()
    each_apart: bool = False

    def write(self, path: Path, out: Path) -> Path:
        """Write the selection of the image corpus at `path` to `out` and return it."""
        corpus = open_image_corpus(path)
        out.mkdir()
        shards = [write_image_shard(out, shard, self._items(corpus, shard)) for shard in range(len(corpus.manifest.shards))]
        finish_corpus(out, {"selected": corpus.manifest.digest}, shards)
        return out

    def _items(self, corpus: ImageCorpus, shard: int) -> Iterator[tuple[ImageDocument, list[StoredImage]]]:
        for document in corpus.shard_documents(shard):
            images = [corpus.image(digest) for digest in dict.fromkeys(document.digests)]
            captions = {level: text for level, text in document.captions.items() if level in self.captions}
            questions = tuple(question for question in document.questions if question.kind in self.questions)
            if not self.each_apart:
                yield replace(document, captions=captions, questions=questions), images
                continue
            for number, question in enumerate(questions):
                yield replace(document, id=f"{document.id}/{number}", captions={}, questions=(question,)), images
