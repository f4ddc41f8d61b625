"""Packing image corpora and reading batches: slots, losses, splits, whole images in rows, any number of threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openafm.data.images.decoding import pixels, png, stored_image
from openafm.data.images.documents import ImageDocument, ImagePart, Part, Question, StoredImage, TextPart
from openafm.data.images.manifest import ImageCorpusError
from openafm.data.images.packing import ImagePackConfig, ImagePackReport, pack_image_corpus
from openafm.data.images.resolution import MODES, ResolutionConfig
from openafm.data.images.shard_writer import finish_corpus, write_image_shard
from openafm.data.images.shards import open_image_corpus
from openafm.data.loading.batch import Batch
from openafm.data.loading.loader import Loader, LoaderConfig, SourceConfig
from openafm.data.loading.row_index import ShortRowError
from openafm.data.shards.token_shards import open_shards
from openafm.data.shards.writer import ShardWriter
from openafm.tokenizer.bpe import SPECIAL_TOKENS, Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate

TOKENIZER = Tokenizer([])
RESOLUTION = ResolutionConfig(side=16, rapid_side=8, tokens=6, rapid_tokens=2)
CONFIG = ImagePackConfig(source="drawn", resolution=RESOLUTION)


def image_of(number: int, side: int = 24) -> StoredImage:
    array = np.random.default_rng(number).integers(0, 256, (side, side + number % 3, 3), dtype=np.uint8)
    image = stored_image(png(array))
    assert isinstance(image, StoredImage)
    return image


def document_of(number: int) -> tuple[ImageDocument, Sequence[StoredImage]]:
    images = [image_of(5 * number + place) for place in range(1 + number % 3)]
    parts: list[Part] = []
    for image in images:
        parts += [TextPart(text="before " * (number % 7)), ImagePart(digest=image.digest)]
    document = ImageDocument(
        id=f"d{number}",
        kind="pair" if len(images) == 1 else "interleaved",
        language="en",
        parts=tuple(parts),
        captions={"short": f"noise {number}", "keywords": ""},
        transcription="| a |" if number % 2 else "",
        questions=(Question(question="What?", answer=f"Noise {number}.", kind="spatial"),) * 2,
        split="held_out" if number % 5 == 4 else "train",
        license="CC0-1.0",
    )
    return document, images


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    shards = [write_image_shard(folder, n, [document_of(10 * n + each) for each in range(10)]) for n in range(3)]
    finish_corpus(folder, {}, shards)
    return folder


def packed(corpus: Path, out: Path, config: ImagePackConfig = CONFIG) -> ImagePackReport:
    return pack_image_corpus(corpus, out, TOKENIZER, ChatTemplate(), config)


def loader_of(path: Path, row_tokens: int = 256, threads: int = 2, rank: int = 0, world: int = 1) -> Loader:
    config = LoaderConfig(sources=(SourceConfig(name="a", path=str(path)),), rows_per_step=4, row_tokens=row_tokens)
    return config.build(rank, world, image_threads=threads)


def test_tokens_slots_and_losses_of_each_kind(corpus: Path, tmp_path: Path) -> None:
    report = packed(corpus, tmp_path / "out")
    assert report.held_out is not None
    shards = open_shards(tmp_path / "out")
    opened = open_image_corpus(corpus)
    seen = set()
    for index in range(shards.manifest.num_documents):
        document = shards.document(0, index)
        kind = document.source.split("/")[1]
        seen.add(kind)
        is_image = document.tokens == SPECIAL_TOKENS.image
        assert not document.loss_mask[is_image].any()
        slots_I = shards.image_slots(0, *shards.offsets(0)[index : index + 2])
        assert slots_I["num_tokens"].sum() == is_image.sum() > 0
        start = int(shards.offsets(0)[index])
        for slot in slots_I:
            first = int(slot["start"]) - start
            assert document.tokens[first - 1] == SPECIAL_TOKENS.image_start
            assert document.tokens[first + slot["num_tokens"]] == SPECIAL_TOKENS.image_end
            assert RESOLUTION.num_tokens(MODES[slot["mode"]]) == slot["num_tokens"]
            assert opened.image_at(int(slot["shard"]), int(slot["row"])).digest == bytes(slot["digest"]).hex()
        text = TOKENIZER.decode(document.tokens[document.loss_mask].tolist())
        assert text.count("noise") == (kind == "short")
        assert text.count("Noise") == 2 * (kind == "questions")
        assert text.count("| a |") == (kind == "transcription")
        assert ("before" in text) == (kind == "interleaved")
        assert document.metadata == {"license": "CC0-1.0"}
    assert seen == {"interleaved", "short", "transcription", "questions"}


def test_modes_are_drawn_from_the_seed_and_equal_input_gives_equal_bytes(corpus: Path, tmp_path: Path) -> None:
    digests = {}
    for name, config in {"a": CONFIG, "b": CONFIG, "c": replace(CONFIG, seed=1)}.items():
        digests[name] = packed(corpus, tmp_path / name, config).train.digest
    assert digests["a"] == digests["b"] != digests["c"]
    modes = open_shards(tmp_path / "a").image_slots(0, 0, 1 << 40)["mode"]
    assert set(modes.tolist()) == {0, 1, 2}
    packed(corpus, tmp_path / "a", replace(CONFIG, mode="rapid", learn=("captions",)))
    assert set(open_shards(tmp_path / "a").image_slots(0, 0, 1 << 40)["mode"].tolist()) == {0}


def test_splits_and_opt_outs(tmp_path: Path) -> None:
    documents = [document_of(number) for number in range(6)]
    documents[0] = (replace(documents[0][0], opt_out="noai"), documents[0][1])
    documents[1] = (documents[1][0], [replace(image, opt_out="noimageai") for image in documents[1][1]])
    documents[2] = (replace(documents[2][0], captions={}, questions=(), parts=documents[2][0].parts[1:2]), documents[2][1])
    finish_corpus(tmp_path / "in", {}, [write_image_shard(tmp_path / "in", 0, documents)])
    report = packed(tmp_path / "in", tmp_path / "out")
    assert (report.num_documents, report.num_opted_out, report.num_skipped) == (6, 2, 1)
    assert report.held_out is not None
    batch = loader_of(tmp_path / "out" / "held_out").batch(0)
    assert {span.digest for span in batch.embedding_spans} == set(document_of(4)[0].digests)


@pytest.mark.parametrize("row_tokens", [40, 256])
def test_batches_have_every_image_whole_with_its_pixels(corpus: Path, tmp_path: Path, row_tokens: int) -> None:
    packed(corpus, tmp_path / "out")
    loader, images = loader_of(tmp_path / "out", row_tokens), open_image_corpus(corpus)
    seen = 0
    for step in range(-(-loader.sources[0].num_rows // 4)):
        batch = loader.batch(step)
        assert {span.image for span in batch.embedding_spans} == set(batch.images)
        for span in batch.embedding_spans:
            views = batch.images[span.image]
            tokens = batch.tokens_BS[span.row, span.start - 1 : span.stop + 1].tolist()
            expected = [SPECIAL_TOKENS.image] * (span.stop - span.start)
            assert tokens == [SPECIAL_TOKENS.image_start, *expected, SPECIAL_TOKENS.image_end]
            mode = next(mode for mode in MODES if RESOLUTION.num_tokens(mode) == span.stop - span.start)
            assert np.array_equal(views, RESOLUTION.views(pixels(images.image(span.digest)), mode))
            seen += 1
        assert (batch.tokens_BS == SPECIAL_TOKENS.image).sum() == sum(it.stop - it.start for it in batch.embedding_spans)
        assert not batch.loss_mask_BS[batch.targets_BS == SPECIAL_TOKENS.image].any()
    assert seen >= open_shards(tmp_path / "out").manifest.num_images


def assert_equal(a: Batch, b: Batch) -> None:
    assert np.array_equal(a.tokens_BS, b.tokens_BS)
    assert a.embedding_spans == b.embedding_spans
    assert set(a.images) == set(b.images)
    assert all(np.array_equal(views, b.images[image]) for image, views in a.images.items())


def test_threads_ranks_and_resuming_do_not_change_batches(corpus: Path, tmp_path: Path) -> None:
    packed(corpus, tmp_path / "out")
    expected = loader_of(tmp_path / "out", threads=1).batch(2)
    assert expected.embedding_spans
    assert_equal(expected, loader_of(tmp_path / "out", threads=4).batch(2))
    batches = loader_of(tmp_path / "out").batches(2)
    assert_equal(expected, next(batches))
    batches.close()
    for rank in range(2):
        part = loader_of(tmp_path / "out", rank=rank, world=2).batch(2)
        assert_equal(expected.select(np.arange(rank, 4, 2)), part)


def test_a_killed_pack_is_continued(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG, tokens_per_shard=300)
    expected = packed(corpus, tmp_path / "whole", config)
    write = ShardWriter.add
    calls = 0

    def killed(self: ShardWriter, *args: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 40:
            raise KeyboardInterrupt
        write(self, *args, **options)

    monkeypatch.setattr(ShardWriter, "add", killed)
    with pytest.raises(KeyboardInterrupt):
        packed(corpus, tmp_path / "out", config)
    calls = 100
    report = packed(corpus, tmp_path / "out", config)
    assert calls - 100 < expected.train.num_documents
    assert report.train.digest == expected.train.digest
    assert report.held_out == expected.held_out
    assert (report.num_skipped, report.num_opted_out) == (expected.num_skipped, expected.num_opted_out)
    assert sorted(file.name for file in (tmp_path / "out").rglob("*")) == sorted(
        file.name for file in (tmp_path / "whole").rglob("*")
    )


def test_short_rows_and_other_images_are_refused(corpus: Path, tmp_path: Path) -> None:
    packed(corpus, tmp_path / "out")
    with pytest.raises(ShortRowError, match="32 tokens of an image"):
        loader_of(tmp_path / "out", 31)
    (tmp_path / "out" / "images" / "00000.tar").unlink()
    with pytest.raises(ImageCorpusError, match="missing or cut"):
        loader_of(tmp_path / "out")


def test_a_question_for_an_event_has_the_schema(tmp_path: Path) -> None:
    document, images = document_of(0)
    events = replace(
        document,
        questions=(
            Question(question="When?", answer="Today.", kind="flyer.date"),
            Question(question="Event?", answer='{"title":"A"}', kind="event"),
        ),
    )
    finish_corpus(tmp_path / "corpus", {}, [write_image_shard(tmp_path / "corpus", 0, [(events, images)])])
    packed(tmp_path / "corpus", tmp_path / "out", replace(CONFIG, learn=("questions",)))
    shards = open_shards(tmp_path / "out")
    text = TOKENIZER.decode(shards.tokens(0, 0, shards.manifest.num_tokens).tolist())
    first, second = text.split("Event?")
    assert "location" not in first
    assert "location" in second.partition('{"title":"A"}')[0]
