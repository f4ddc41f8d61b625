"""Scenes with the names of their objects as captions, from drawn scenes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from openafm.data.images.documents import ImageDocument, StoredImage
from openafm.data.images.shard_writer import finish_corpus, write_image_shard
from openafm.data.images.shards import ImageCorpus, open_image_corpus


def named_objects(path: Path, out: Path, num_kinds: int | None = None) -> Path:
    """Write the scenes at `path` with one caption, their kinds of objects in alphabetical order, and return `out`.

    With `num_kinds` only scenes with this many kinds are kept.
    """
    corpus = open_image_corpus(path)
    out.mkdir()
    shards = [
        write_image_shard(out, shard, _named(corpus, shard, num_kinds)) for shard in range(len(corpus.manifest.shards))
    ]
    finish_corpus(out, {"scenes": corpus.manifest.digest, "num_kinds": num_kinds}, shards)
    return out


def _named(corpus: ImageCorpus, shard: int, num_kinds: int | None) -> Iterator[tuple[ImageDocument, list[StoredImage]]]:
    for document in corpus.shard_documents(shard):
        names = sorted(document.captions["keywords"].split(", "))
        if num_kinds in (None, len(names)):
            images = [corpus.image(digest) for digest in document.digests]
            yield replace(document, captions={"keywords": ", ".join(names)}, questions=()), images
