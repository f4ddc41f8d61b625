"""Image corpora: equal bytes for equal items, webdataset's layout, damage, and runs that were interrupted."""

import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from openafm.data.images.decoding import png, stored_image
from openafm.data.images.documents import ImageDocument, ImagePart, Question, Region, StoredImage, TextPart
from openafm.data.images.manifest import ImageCorpusError, MissingImageError
from openafm.data.images.records import CaptionLevelError, DroppedImage
from openafm.data.images.shard_writer import finish_corpus, finished_shard, write_image_shard
from openafm.data.images.shards import is_image_corpus, open_image_corpus
from openafm.data.web.documents import Dropped


def image_of(number: int, side: int = 24) -> StoredImage:
    array = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
    image = stored_image(png(array), source=f"https://example.com/{number}.png", license="CC0-1.0")
    assert isinstance(image, StoredImage)
    return image


def document_of(number: int, *images: StoredImage) -> tuple[ImageDocument, Sequence[StoredImage]]:
    document = ImageDocument(
        id=f"d{number}",
        kind="pair" if len(images) == 1 else "interleaved",
        language="ja",
        parts=(TextPart(text=f"図 {number} \ud800"), *(ImagePart(digest=image.digest) for image in images)),
        captions={"alt": "a cat", "grounded": "a cat [1,2,3,4]"},
        transcription="| a |",
        regions=(
            Region(label="cat", box=(1, 2.5, 3, 4), kind="object", image=images[0].digest),
            Region(label="ab", box=(1, 2, 9, 4), kind="word", image=images[0].digest, centers=((2.5, 3.0), (7.1, 3.0))),
        ),
        questions=(Question(question="?", answer="!", kind="spatial"),),
        split="held_out" if number % 2 else "train",
        metadata={"design": "7"},
    )
    return document, images


def items() -> list[tuple[ImageDocument, Sequence[StoredImage]] | Dropped]:
    return [
        document_of(0, image_of(0)),
        DroppedImage(reason="damaged", detail="PNG: cut", url="https://example.com/x", thumbnail=b"small"),
        document_of(1, image_of(1), image_of(2), image_of(0)),
        Dropped(reason="svg"),
    ]


def test_documents_images_and_drops_come_back(tmp_path: Path) -> None:
    summary = write_image_shard(tmp_path, 0, items())
    finish_corpus(tmp_path, {"seed": 1}, [summary])
    corpus = open_image_corpus(tmp_path, verify=True)
    assert is_image_corpus(tmp_path)
    assert summary.num_items == 4
    assert (corpus.manifest.num_documents, corpus.manifest.num_images) == (2, 3)
    assert corpus.manifest.dropped == {"damaged": 1, "svg": 1}
    first, second = corpus.documents()
    expected, images = document_of(1, image_of(1), image_of(2), image_of(0))
    assert second == replace(expected, parts=(TextPart(text="図 1 ?"), *expected.parts[1:]))
    assert [corpus.image(digest) for digest in second.digests] == list(images)
    assert list(corpus.documents("train")) == [first]
    assert [drop.reason for drop in corpus.dropped(0)] == ["damaged", "svg"]


def test_equal_items_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        finish_corpus(tmp_path / name, {}, [write_image_shard(tmp_path / name, 0, items())])
    files = sorted(file.name for file in (tmp_path / "a").iterdir())
    assert len(files) == 6
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_tar_files_have_the_layout_of_webdataset(tmp_path: Path) -> None:
    write_image_shard(tmp_path, 0, items())
    with tarfile.open(tmp_path / "00000.tar") as tar:
        members = tar.getmembers()
        names = [member.name for member in members]
        assert names == sorted(names)
        assert {(member.mtime, member.uid, member.mode) for member in members} == {(0, 0, 0o644)}
        for record, image in zip(members[::2], members[1::2], strict=True):
            digest = record.name.removesuffix(".json")
            assert image.name == f"{digest}.png"
            values = json.load(tar.extractfile(record) or io.BytesIO())
            assert (values["width"], values["license"]) == (24, "CC0-1.0")


def test_damage_and_missing_images_are_errors(tmp_path: Path) -> None:
    finish_corpus(tmp_path, {}, [write_image_shard(tmp_path, 0, items())])
    corpus = open_image_corpus(tmp_path)
    with pytest.raises(MissingImageError):
        corpus.image("ab" * 32)
    place = int(corpus.index(0)[0]["offset"]) + 60
    tar = tmp_path / "00000.tar"
    data = bytearray(tar.read_bytes())
    data[place] ^= 1
    tar.write_bytes(data)
    with pytest.raises(ImageCorpusError, match="changed after it was written"):
        corpus.image_at(0, 0)
    with pytest.raises(ImageCorpusError, match="changed after it was written"):
        open_image_corpus(tmp_path, verify=True)
    tar.write_bytes(data[:-512])
    with pytest.raises(ImageCorpusError, match="missing or cut"):
        open_image_corpus(tmp_path)
    with pytest.raises(ImageCorpusError, match="not a complete image corpus"):
        open_image_corpus(tmp_path / "absent")


def test_documents_must_have_their_images_and_known_captions(tmp_path: Path) -> None:
    document, _ = document_of(0, image_of(0))
    with pytest.raises(MissingImageError):
        write_image_shard(tmp_path, 0, [(document, ())])
    with pytest.raises(CaptionLevelError, match="keywords"):
        write_image_shard(tmp_path, 0, [(replace(document, captions={"poem": "x"}), (image_of(0),))])
    assert not list(tmp_path.iterdir())


def test_finished_shards_are_found_again(tmp_path: Path) -> None:
    summary = write_image_shard(tmp_path, 0, items(), key="k")
    assert finished_shard(tmp_path, 0, "k") == summary
    assert finished_shard(tmp_path, 0, "other") is None
    assert finished_shard(tmp_path, 1, "k") is None
    (tmp_path / "00000.tar").write_bytes(b"")
    assert finished_shard(tmp_path, 0, "k") is None


def test_an_image_is_found_in_any_shard(tmp_path: Path) -> None:
    summaries = [write_image_shard(tmp_path, n, [document_of(n, image_of(n))]) for n in (1, 0, 2, 3)]
    finish_corpus(tmp_path, {}, summaries[:3])
    assert not list(tmp_path.glob("00003.*"))
    corpus = open_image_corpus(tmp_path)
    assert [corpus.place(image_of(n).digest) for n in range(3)] == [(0, 0), (1, 0), (2, 0)]
    with pytest.raises(ImageCorpusError, match="numbered from 0"):
        finish_corpus(tmp_path, {}, [summaries[0]])


def test_images_whose_digest_ends_in_zero_are_found(tmp_path: Path) -> None:
    image, texts = image_of(0), map(str.encode, map(str, range(2000)))
    images = (replace(image, data=data, digest=sha256(data).hexdigest()) for data in texts)
    ending = [image for image in images if image.digest.endswith("00")][:3]
    summary = write_image_shard(tmp_path, 0, [document_of(number, image) for number, image in enumerate(ending)])
    finish_corpus(tmp_path, {}, [summary])
    corpus = open_image_corpus(tmp_path)
    assert [corpus.image(image.digest).data for image in ending] == [image.data for image in ending]
    assert ending[0].digest[:-2] not in corpus
