"""Letters of drawings by place: by hand, on drawings against their ink, and as packed tokens."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from openafm.core.config import ConfigError
from openafm.data.drawing.canvas import Canvas
from openafm.data.drawing.corpus import DrawingConfig, draw_corpus, draw_document, image_document
from openafm.data.drawing.fonts import fonts_for
from openafm.data.drawing.generators import generator_config
from openafm.data.images.documents import ImageDocument, ImagePart, Region
from openafm.data.images.letters import has_words, letter_tokens
from openafm.data.images.packing import ImagePackConfig, pack_image_corpus
from openafm.data.images.resolution import ResolutionConfig
from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.models.vision.letters import CELL, NO_LETTER, NUM_CLASSES, OTHER, SIZES, SPACE, class_of
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate


def document_of(*regions: Region) -> ImageDocument:
    return ImageDocument(id="d", kind="sign", parts=(ImagePart(digest="0" * 64),), regions=regions)


def triples(tokens: list[int]) -> list[tuple[int, int, int]]:
    assert len(tokens) % 3 == 0
    return list(zip(tokens[::3], tokens[1::3], tokens[2::3], strict=True))


def letters_of(regions: list[Region] | Region, size: tuple[int, int] = (100, 100), side: int = 200) -> dict[str, list[int]]:
    """Return the columns of each letter of regions; a space for SPACE."""
    found: dict[str, list[int]] = {}
    for _, column, letter in triples(letter_tokens(document_of(*np.atleast_1d(regions)), size, side)):
        character = " " if letter == SPACE else chr(ord("!") + letter - 1)
        found.setdefault(character, []).append(column)
    return found


def test_letters_divide_the_box_of_their_word() -> None:
    """An image of 200 x 100 pixels as a view of 400: twice as wide, four times as high."""
    word = Region(label="noon", box=(10, 20, 50, 23), kind="word")
    found = triples(letter_tokens(document_of(word), (200, 100), 400))
    middle, centers = 4 * 21.5, [(10 + 40 * share) * 2 for share in (0.125, 0.375, 0.625, 0.875)]
    expected = [
        (int(middle // CELL[0]), int(center // CELL[1]), class_of(letter))
        for center, letter in zip(centers, "noon", strict=True)
    ]
    assert found == expected


def test_centers_of_letters_are_used_where_they_are_known() -> None:
    """With as many centers as letters, or else by the widths of its box."""
    centers = ((12.0, 22.0), (20.0, 21.9), (31.0, 21.8), (44.0, 21.7))
    word = Region(label="noon", box=(10, 20, 50, 23.5), kind="word", centers=centers)
    found = triples(letter_tokens(document_of(word), (200, 100), 400))
    expected = [(int(4 * y // CELL[0]), int(2 * x // CELL[1])) for x, y in centers]
    assert [(row, column) for row, column, _ in sorted(found, key=lambda each: each[1])] == expected
    by_widths = triples(letter_tokens(document_of(replace(word, centers=())), (200, 100), 400))
    assert triples(letter_tokens(document_of(replace(word, centers=centers[:3])), (200, 100), 400)) == by_widths != found


def test_narrow_letters_take_less_room() -> None:
    found = letters_of(Region(label="iW", box=(0, 0, 40, 10), kind="word"))
    assert found["i"][0] * CELL[1] < 0.25 * 80 < found["W"][0] * CELL[1]


@pytest.mark.parametrize("word", ["noon", "gyp", "Halt", "Quay"])
def test_a_view_has_the_letters_of_its_font_sizes(word: str) -> None:
    """The size of the font is estimated from the box of the word."""
    pytest.importorskip("PIL")
    font = fonts_for("en", style="sans")[0]
    for size in range(6, 70):
        canvas = Canvas(600, 600)
        regions = canvas.text(50, 200, word, font, size, anchor="ls")
        found = triples(letter_tokens(document_of(*regions), (600, 600), 600))
        if 1.3 * SIZES[0] < size < SIZES[1] / 1.3:
            assert [letter for _, _, letter in sorted(found, key=lambda each: each[1])] == [class_of(each) for each in word]
        elif size < SIZES[0] / 1.3 or size > 1.3 * SIZES[1]:
            assert not found


def test_a_word_that_climbs_is_not_taken_for_a_large_one() -> None:
    """A font of 20 pixels; the same box around a level word would be of one of 42 pixels."""
    climbing, level = (tuple((20 + 11.3 * index, 130 - rise * index) for index in range(12)) for rise in (1.7, 0.0))
    word = Region(label="abcdefghijkm", box=(14, 100, 150, 139.4), kind="word", centers=climbing)
    assert len(letters_of(word, (200, 200), 200)) == 12
    assert not letters_of(replace(word, centers=level), (200, 200), 200)


def test_spaces_are_between_words_that_follow_each_other_on_a_line() -> None:
    def words(gap: float, down: float = 0.0) -> dict[str, list[int]]:
        """Two words in a font of 20 pixels of the view, the second one `gap` of these and `down` beyond the first."""
        first = Region(label="nn", box=(10, 40, 20, 45), kind="word")
        left, top = 20 + gap / 2, 40 + down / 2
        return letters_of([first, Region(label="oo", box=(left, top, left + 10, top + 5), kind="word")])

    near = words(6)
    assert near[" "] == [int((40 + 3) // CELL[1])]  # the gap is from 40 to 46
    assert " " not in words(25)
    assert " " in words(6, down=2)
    assert " " not in words(6, down=10)
    assert " " not in words(-50)


def test_a_space_beside_narrow_letters_is_nearer_to_them() -> None:
    words = [Region(label="Wi", box=(10, 38, 26, 45), kind="word"), Region(label="Wi", box=(29, 38, 45, 45), kind="word")]
    found = letters_of(words)
    left, (space,), right = found["i"][0], found[" "], found["W"][1]
    assert 0 < space - left < right - space


def test_letters_beyond_the_view_and_other_regions_are_left_out() -> None:
    title = Region(label="Title", box=(0, 0, 50, 7), kind="title")
    beyond = Region(label="noon", box=(90, 97, 130, 102), kind="word", centers=((92, 99), (102, 99), (112, 99), (122, 99)))
    assert letter_tokens(document_of(title), (100, 100), 200) == []
    assert not has_words(document_of(title))
    assert has_words(document_of(title, beyond))
    assert letters_of([title, beyond]) == {"n": [46]}


def test_classes() -> None:
    assert [class_of(letter) for letter in "!A~é好"] == [1, ord("A") - ord("!") + 1, 94, class_of("e"), OTHER]
    assert [class_of(letter) for letter in "’“–"] == [class_of(letter) for letter in "'\"-"]
    assert (OTHER, SPACE, NUM_CLASSES) == (95, 96, 97)


def test_letters_of_a_drawing_are_where_its_ink_is() -> None:
    """Two rows or 40 columns away, cells vary less in brightness than those of letters, and so do those of spaces."""
    images = pytest.importorskip("PIL.Image")
    generator, side = generator_config("flyers").build(), 896
    shifts = [(0, 0), (2, 0), (-2, 0), (0, 40), (0, -40)]
    contrasts: dict[tuple[int, int], list[float]] = {shift: [] for shift in shifts}
    spaces: list[float] = []
    for number in range(8):
        drawn = draw_document(generator, "flyers", "en", "train", 3, number)
        document, (stored,) = image_document(drawn, "flyers", "train")
        grays = np.asarray(images.open(io.BytesIO(stored.data)).convert("L").resize((side, side)), np.float32)
        for row, column, letter in triples(letter_tokens(document, (stored.width, stored.height), side)):
            assert letter != NO_LETTER
            if letter == SPACE:
                spaces.append(contrast(grays, row, column))
                continue
            for down, right in shifts:
                contrasts[down, right].append(contrast(grays, row + down, column + right))
    means = {shift: float(np.mean(values)) for shift, values in contrasts.items()}
    assert all(means[0, 0] > 1.2 * mean for shift, mean in means.items() if shift != (0, 0)), means
    assert len(spaces) > 50
    assert np.median(spaces) < 0.3 * means[0, 0]


def contrast(grays: NDArray[np.float32], row: int, column: int) -> float:
    """Return the range of brightness in a cell."""
    top = min(max(row * CELL[0], 0), grays.shape[0] - CELL[0])
    left = min(max(column * CELL[1], 0), grays.shape[1] - CELL[1])
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
    resolution = ResolutionConfig(side=448, rapid_side=56, tokens=49)
    packing = ImagePackConfig(source="letters", learn=("letters",), resolution=resolution, mode="balanced")
    pack_image_corpus(tmp_path / "drawings", tmp_path / "letters", tokenizer, ChatTemplate(), packing)
    loader = LoaderConfig(
        sources=(SourceConfig(name="letters", path=str(tmp_path / "letters")),), rows_per_step=1, row_tokens=2048
    ).build()
    batch = loader.batch(0)
    assert len(batch.documents) >= 1
    assert {origin.source for origin in batch.origins} == {"letters"}
    for document, span in zip(batch.documents, batch.embedding_spans, strict=True):
        places = slice(document.start, document.stop)
        found = batch.targets_BS[document.row, places][batch.loss_mask_BS[document.row, places]].tolist()
        assert triples(found)
        assert all(row < 56 and column < 112 and 0 < letter < NUM_CLASSES for row, column, letter in triples(found))
        assert batch.images[span.image].shape == (1, 448, 448, 3)
