"""Scenes that ask for the names of their objects, from drawn scenes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from openafm.data.images.documents import ImageDocument, Question, StoredImage
from openafm.data.images.shard_writer import finish_corpus, write_image_shard
from openafm.data.images.shards import ImageCorpus, open_image_corpus

NAMING = "Name the objects in the image, in alphabetical order."


def objects_to_name(path: Path, out: Path, num_kinds: int | None = None) -> Path:
    """Write the scenes at `path` with one question, for the names of their kinds of objects, and return `out`.

    With `num_kinds` only scenes with this many kinds are kept. One question alone: after others, the text tells the answer.
    """
    corpus = open_image_corpus(path)
    out.mkdir()
    shards = [
        write_image_shard(out, shard, _to_name(corpus, shard, num_kinds)) for shard in range(len(corpus.manifest.shards))
    ]
    finish_corpus(out, {"scenes": corpus.manifest.digest, "num_kinds": num_kinds}, shards)
    return out


def _to_name(corpus: ImageCorpus, shard: int, num_kinds: int | None) -> Iterator[tuple[ImageDocument, list[StoredImage]]]:
    for document in corpus.shard_documents(shard):
        names = sorted(document.captions["keywords"].split(", "))
        if num_kinds in (None, len(names)):
            question = Question(question=NAMING, answer=", ".join(names), kind="names")
            images = [corpus.image(digest) for digest in document.digests]
            yield replace(document, captions={}, questions=(question,)), images
