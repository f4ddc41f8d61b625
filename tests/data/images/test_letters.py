"""Letters of drawings by place: by hand, on a clean drawing against its ink, and as packed tokens."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from openafm.core.config import ConfigError
from openafm.data.drawing.corpus import DrawingConfig, draw_corpus, draw_document, image_document
from openafm.data.drawing.generators import generator_config
from openafm.data.images.documents import ImageDocument, ImagePart, Region
from openafm.data.images.letters import EMPTY_SHARE, MOST_LETTERS, has_words, letter_tokens
from openafm.data.images.packing import ImagePackConfig, pack_image_corpus
from openafm.data.images.resolution import ResolutionConfig
from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.models.vision.letters import CELL, NO_LETTER, NUM_CLASSES, OTHER, class_of
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate


def document_of(*regions: Region) -> ImageDocument:
    return ImageDocument(id="d", kind="sign", parts=(ImagePart(digest="0" * 64),), regions=regions)


def triples(tokens: list[int]) -> list[tuple[int, int, int]]:
    assert len(tokens) % 3 == 0
    return list(zip(tokens[::3], tokens[1::3], tokens[2::3], strict=True))


def letters_of(tokens: list[int]) -> list[tuple[int, int, int]]:
    return [each for each in triples(tokens) if each[2] != NO_LETTER]


def test_letters_divide_the_box_of_their_word() -> None:
    """An image of 200 x 100 pixels as a view of 400: twice as wide, four times as high."""
    word = Region(label="noon", box=(10, 20, 50, 30), kind="word")
    found = letters_of(letter_tokens(document_of(word), (200, 100), 400))
    middle, centers = 25 * 4, [(10 + 40 * share) * 2 for share in (0.125, 0.375, 0.625, 0.875)]
    expected = [
        (middle // CELL[0], int(center // CELL[1]), class_of(letter)) for center, letter in zip(centers, "noon", strict=True)
    ]
    assert found == expected


def test_centers_of_letters_are_used_where_they_are_known() -> None:
    """A word that climbs; with as many centers as letters, or else by the widths of its box."""
    centers = ((12.0, 28.0), (20.0, 25.0), (31.0, 24.0), (44.0, 21.0))
    word = Region(label="noon", box=(10, 20, 50, 30), kind="word", centers=centers)
    found = letters_of(letter_tokens(document_of(word), (200, 100), 400))
    expected = [(int(4 * y // CELL[0]), int(2 * x // CELL[1])) for x, y in centers]
    assert [(row, column) for row, column, _ in sorted(found, key=lambda each: each[1])] == expected
    by_widths = letters_of(letter_tokens(document_of(replace(word, centers=())), (200, 100), 400))
    assert letters_of(letter_tokens(document_of(replace(word, centers=centers[:3])), (200, 100), 400)) == by_widths != found


def test_narrow_letters_take_less_room() -> None:
    word = Region(label="iW", box=(0, 0, 100, 10), kind="word")
    (_, first, _), (_, second, _) = letters_of(letter_tokens(document_of(word), (100, 100), 400))
    assert first * CELL[1] < 0.25 * 400 < second * CELL[1]


def test_words_without_room_and_other_regions_are_left_out() -> None:
    small = Region(label="small", box=(0, 0, 5, 3), kind="word")
    title = Region(label="Title", box=(0, 0, 100, 20), kind="title")
    document = document_of(small, title)
    assert has_words(document)
    assert letter_tokens(document, (100, 100), 100) == []
    assert not has_words(document_of(title))


def test_cells_without_a_letter_are_outside_of_words_and_between_their_letters() -> None:
    lines = [Region(label="abcdefghijklmnopqrstuvwxyz", box=(0, top, 100, top + 4), kind="word") for top in range(0, 20, 4)]
    crowded = Region(label="w" * 200, box=(0, 60, 100, 100), kind="word")  # too many letters for its cells
    found = triples(letter_tokens(document_of(*lines, crowded), (100, 100), 448))
    letters = {(row, column) for row, column, letter in found if letter != NO_LETTER}
    empty = [(row, column) for row, column, letter in found if letter == NO_LETTER]
    tops = [row * CELL[0] / 4.48 for row, _ in empty]
    assert all(top < 60 for top in tops)
    assert sum(top > 20 for top in tops) > 5
    inside = [place for place, top in zip(empty, tops, strict=True) if top <= 20]
    assert len(inside) >= EMPTY_SHARE * len(letters) / 2 - 1
    assert not letters.intersection(inside)
    assert found == triples(letter_tokens(document_of(*lines, crowded), (100, 100), 448))


def test_a_word_at_the_border_has_its_cells_in_the_view() -> None:
    word = Region(label="abc", box=(60, 80, 100, 100), kind="word")
    small = Region(label="s" * 80, box=(60, 80, 100, 90), kind="word")  # too small to be spelled
    for regions in ((word,), (word, small)):
        found = triples(letter_tokens(document_of(*regions), (100, 100), 448))
        assert all(row < 448 // CELL[0] and column < 448 // CELL[1] for row, column, _ in found)
        inside = [row * CELL[0] / 4.48 for row, column, letter in found if letter == NO_LETTER and column > 67 and row > 44]
        assert inside
        assert len(regions) == 1 or min(inside) > 88


def test_classes() -> None:
    assert [class_of(letter) for letter in "!A~é好"] == [1, ord("A") - ord("!") + 1, 94, class_of("e"), OTHER]
    assert NUM_CLASSES == 96


def test_many_letters_are_sampled() -> None:
    words = [Region(label="abcdefghij", box=(0, 10 * row, 100, 10 * row + 8), kind="word") for row in range(40)]
    tokens = letter_tokens(document_of(*words), (100, 400), 448)
    assert len(letters_of(tokens)) == MOST_LETTERS
    assert len(tokens) <= 3 * MOST_LETTERS * (1 + EMPTY_SHARE)


def test_letters_of_a_drawing_are_where_its_ink_is() -> None:
    """Two rows or 40 columns away, cells vary less in brightness than those of letters."""
    images = pytest.importorskip("PIL.Image")
    generator, side = generator_config("flyers").build(), 448
    shifts = [(0, 0), (2, 0), (-2, 0), (0, 40), (0, -40)]
    contrasts: dict[tuple[int, int], list[float]] = {shift: [] for shift in shifts}
    empty: list[float] = []
    for number in range(8):
        drawn = draw_document(generator, "flyers", "en", "train", 3, number)
        document, (stored,) = image_document(drawn, "flyers", "train")
        grays = np.asarray(images.open(io.BytesIO(stored.data)).convert("L").resize((side, side)), np.float32)
        for row, column, letter in triples(letter_tokens(document, (stored.width, stored.height), side)):
            for down, right in shifts if letter != NO_LETTER else ():
                contrasts[down, right].append(contrast(grays, row + down, column + right))
            if letter == NO_LETTER:
                empty.append(contrast(grays, row, column))
    means = {shift: float(np.mean(values)) for shift, values in contrasts.items()}
    assert all(means[0, 0] > 1.2 * mean for shift, mean in means.items() if shift != (0, 0)), means
    assert np.quantile(empty, 0.25) < 0.2 * means[0, 0]  # half of them are between letters


def contrast(grays: NDArray[np.float32], row: int, column: int) -> float:
    """Return the range of brightness in a cell."""
    top, left = min(max(row * CELL[0], 0), 440), min(max(column * CELL[1], 0), 444)
    return float(np.ptp(grays[top : top + CELL[0], left : left + CELL[1]]))


def test_letters_have_one_mode() -> None:
    with pytest.raises(ConfigError, match="letters need one mode"):
        ImagePackConfig(learn=("letters",))


def test_packed_letters_are_targets_beside_their_image(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    pytest.importorskip("pyarrow")
    drawing = DrawingConfig(generators=(generator_config("flyers"),), languages=("en",), count=3)
    draw_corpus(drawing, tmp_path / "drawings")
    tokenizer = Tokenizer([])
    resolution = ResolutionConfig(side=168, rapid_side=56, tokens=49)
    packing = ImagePackConfig(source="letters", learn=("letters",), resolution=resolution, mode="balanced")
    pack_image_corpus(tmp_path / "drawings", tmp_path / "letters", tokenizer, ChatTemplate(), packing)
    loader = LoaderConfig(
        sources=(SourceConfig(name="letters", path=str(tmp_path / "letters")),), rows_per_step=1, row_tokens=1024
    ).build()
    batch = loader.batch(0)
    assert len(batch.documents) >= 1
    assert {origin.source for origin in batch.origins} == {"letters"}
    for document, span in zip(batch.documents, batch.embedding_spans, strict=True):
        places = slice(document.start, document.stop)
        found = batch.targets_BS[document.row, places][batch.loss_mask_BS[document.row, places]].tolist()
        assert triples(found)
        assert all(row < 21 and column < 42 and letter < NUM_CLASSES for row, column, letter in triples(found))
        assert batch.images[span.image].shape == (1, 168, 168, 3)
