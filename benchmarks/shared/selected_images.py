"""Drawn scenes with a part of their texts: the names of objects as captions, questions about places of objects."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from openafm.data.drawing.scenes.texts import scene_texts
from openafm.data.images.documents import ImageDocument, Question, StoredImage
from openafm.data.images.shard_writer import finish_corpus, write_image_shard
from openafm.data.images.shards import ImageCorpus, open_image_corpus

REFUSED = re.compile(r"\b(?:no|an?) (\w+ \w+)(?: in the image)?\.$")
"""The object that a refusal names, a color and a shape."""


def named_objects(path: Path, out: Path, num_kinds: int | None = None) -> Path:
    """Write the scenes at `path` with one caption, their kinds of objects in alphabetical order, and return `out`.

    With `num_kinds` only scenes with this many kinds are kept.
    """
    return _selected(path, out, {"num_kinds": num_kinds}, lambda document: _named(document, num_kinds))


def asked_objects(path: Path, out: Path) -> Path:
    """Write the scenes at `path` with the caption of `named_objects` and questions where objects are, and return `out`.

    A scene keeps one question, about an absent or a present object, in the same words; by turns if it has both.
    """
    return _selected(path, out, {"questions": "places"}, _asked)


def refused_object(question: Question) -> str | None:
    """Return the object that a question asks for in vain, in words that ask for present ones too; else None."""
    refused = REFUSED.search(question.answer) if question.kind == "absent" else None
    if refused is None:
        return None
    texts = scene_texts("en")
    lines = (question.question in texts.all_lines(section, refused[1]) for section in ("ask.area", "ask.box"))
    return refused[1] if any(lines) else None


def _selected(
    path: Path, out: Path, setting: dict[str, object], select: Callable[[ImageDocument], ImageDocument | None]
) -> Path:
    corpus = open_image_corpus(path)
    out.mkdir()
    shards = [
        write_image_shard(out, shard, _documents(corpus, shard, select)) for shard in range(len(corpus.manifest.shards))
    ]
    finish_corpus(out, {"scenes": corpus.manifest.digest, **setting}, shards)
    return out


def _documents(
    corpus: ImageCorpus, shard: int, select: Callable[[ImageDocument], ImageDocument | None]
) -> Iterator[tuple[ImageDocument, list[StoredImage]]]:
    for document in corpus.shard_documents(shard):
        selected = select(document)
        if selected is not None:
            yield selected, [corpus.image(digest) for digest in document.digests]


def _named(document: ImageDocument, num_kinds: int | None) -> ImageDocument | None:
    names = sorted(document.captions["keywords"].split(", "))
    if num_kinds not in (None, len(names)):
        return None
    return replace(document, captions={"keywords": ", ".join(names)}, questions=())


def _asked(document: ImageDocument) -> ImageDocument | None:
    named = _named(document, None)
    absent = [each for each in document.questions if refused_object(each)]
    present = [each for each in document.questions if each.kind in ("spatial.area", "ground.box")]
    asked = absent if absent and zlib.crc32(document.id.encode()) % 2 else present or absent
    return named and replace(named, questions=tuple(asked[:1]))
