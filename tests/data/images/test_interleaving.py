"""Interleaved documents from documents of one image: order of the parts, languages, equal bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_image_packing import document_of, image_of

from openafm.data.images.documents import ImageDocument, ImagePart, TextPart
from openafm.data.images.interleaving import FEWEST, MOST, interleave_corpus
from openafm.data.images.shard_writer import finish_corpus, write_image_shard
from openafm.data.images.shards import open_image_corpus


def corpus(folder: Path, count: int = 40) -> Path:
    items = []
    for number in range(count):
        image = image_of(number)
        document = ImageDocument(
            id=f"d{number}",
            kind="sign",
            parts=(ImagePart(digest=image.digest),),
            language="en" if number % 4 else "de",
            captions={"keywords": "a, b", "short": f"caption {number}", "grounded": "a [1,2,3,4]"},
            transcription=f"text {number}" if number % 2 else f"caption\n{number}",
        )
        items.append((document, [image]))
    finish_corpus(folder, {}, [write_image_shard(folder, 0, items)])
    return folder


def test_each_image_is_followed_by_its_texts(tmp_path: Path) -> None:
    source = open_image_corpus(corpus(tmp_path / "source"))
    interleave_corpus(source.path, tmp_path / "out")
    joined = open_image_corpus(tmp_path / "out", verify=True)
    documents = list(joined.documents())
    assert {language: sum(len(d.digests) for d in documents if d.language == language) for language in ("en", "de")} == {
        "en": 30,
        "de": 10,
    }
    # The last document of a language may have one image.
    assert {len(document.digests) for document in documents} >= set(range(FEWEST, MOST + 1))
    of_image = {document.digests[0]: document for document in source.documents()}
    for document in documents:
        expected: list[ImagePart | TextPart] = []
        for digest in document.digests:
            number = int(of_image[digest].id.removeprefix("d"))
            expected += [ImagePart(digest=digest), TextPart(text=f"caption {number}")]
            expected += [TextPart(text=f"text {number}")] if number % 2 else []
            assert joined.image(digest).data == source.image(digest).data
        assert list(document.parts) == expected


@pytest.mark.slow
def test_equal_input_gives_equal_bytes_and_another_seed_other_documents(tmp_path: Path) -> None:
    source = corpus(tmp_path / "source")
    digests = [interleave_corpus(source, tmp_path / f"{n}", seed=n // 2).digest for n in range(3)]
    assert digests[0] == digests[1] != digests[2]


def test_an_image_that_must_not_be_used_for_training_marks_the_document(tmp_path: Path) -> None:
    document, images = document_of(0)
    image = images[0]
    other = ImageDocument(id="x", kind="pair", parts=(ImagePart(digest=image.digest),), language="en", opt_out="noai")
    shard = write_image_shard(tmp_path / "source", 0, [(document, images), (other, [image])])
    finish_corpus(tmp_path / "source", {}, [shard])
    interleave_corpus(tmp_path / "source", tmp_path / "out")
    (joined,) = open_image_corpus(tmp_path / "out").documents()
    assert joined.opt_out == "noai"
    assert joined.digests == (image.digest, image.digest)
