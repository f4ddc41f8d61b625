"""Letters of an image as tokens: (row, column, class) of the cells of a view, for training an encoder to read.

Drawings have the box of each word and the centers of its letters (`Region`). Where the centers are not known, the letters
divide the box by the usual widths of letters: a quarter of them is then in the cell beside the right one. Words that are too
small for their letters to have a cell each are left out.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from itertools import accumulate

from openafm.data.images.documents import ImageDocument, Region
from openafm.models.vision.letters import CELL, NO_LETTER, class_of

EMPTY_SHARE = 1.0
"""Cells without a letter, as a share of those with one: half of them between the centers of letters of a word."""
MOST_LETTERS = 150
"""Letters of an image, so that a row of 1,024 tokens holds them."""
_NARROW, _WIDE = frozenset("iljft.,:;'!|()[]1I-’"), frozenset("mwMW@%&")


def has_words(document: ImageDocument) -> bool:
    """Return whether a document is one image with boxes of words."""
    return len(document.digests) == 1 and any(region.kind == "word" for region in document.regions)


def letter_tokens(document: ImageDocument, size: tuple[int, int], side: int) -> list[int]:
    """Return row, column and class of the letters of an image, and of some cells without one, in a view of this side.

    Args:
        size: width and height of the image in pixels.
    """
    places: dict[tuple[int, int], int] = {}
    taken: set[tuple[int, int]] = set()
    spelled: set[tuple[int, int]] = set()
    unspelled: set[tuple[int, int]] = set()
    for region in document.regions:
        if region.kind == "word":
            letters, cells = dict(_letters(region, size, side)), set(_cells(region, size, side))
            places |= letters
            taken |= cells
            if letters:
                spelled |= cells
            else:
                unspelled |= cells
    between = sorted(spelled - unspelled - places.keys())
    rng = random.Random(hashlib.blake2b(document.id.encode(), digest_size=8).digest())
    if len(places) > MOST_LETTERS:
        places = dict(rng.sample(sorted(places.items()), MOST_LETTERS))
    num_empty = round(EMPTY_SHARE * len(places))
    places |= dict.fromkeys(rng.sample(between, min(num_empty // 2, len(between))), NO_LETTER)
    for _ in range(num_empty - num_empty // 2):
        place = rng.randrange(side // CELL[0]), rng.randrange(side // CELL[1])
        if place not in taken:
            places[place] = NO_LETTER
    return [value for (row, column), letter in sorted(places.items()) for value in (row, column, letter)]


def _cells(region: Region, size: tuple[int, int], side: int) -> Iterator[tuple[int, int]]:
    """Return the cells of the view that a word touches."""
    (left, top, right, bottom), (width, height) = region.box, size
    last_row, last_column = side // CELL[0] - 1, side // CELL[1] - 1
    columns = range(int(left * side / width // CELL[1]), min(int(right * side / width // CELL[1]), last_column) + 1)
    for row in range(int(top * side / height // CELL[0]), min(int(bottom * side / height // CELL[0]), last_row) + 1):
        yield from ((row, column) for column in columns)


def _letters(region: Region, size: tuple[int, int], side: int) -> Iterator[tuple[tuple[int, int], int]]:
    """Return the cell and the class of each letter of a word."""
    (left, top, right, bottom), (width, height), word = region.box, size, region.label
    if (right - left) * side / width < len(word) * CELL[1]:
        return
    usual = ((left + share * (right - left), (top + bottom) / 2) for share in _usual_centers(word))
    centers = region.centers if len(region.centers) == len(word) else tuple(usual)
    for letter, (x, y) in zip(word, centers, strict=True):
        row, column = int(y * side / height // CELL[0]), int(x * side / width // CELL[1])
        if 0 <= row < side // CELL[0] and 0 <= column < side // CELL[1]:
            yield (row, column), class_of(letter)


def _usual_centers(word: str) -> Sequence[float]:
    """Return the usual centers of the letters of a word, as shares of its width."""
    widths = [0.55 if letter in _NARROW else 1.5 if letter in _WIDE else 1.2 if letter.isupper() else 1.0 for letter in word]
    ends = list(accumulate(widths))
    return [(end - width / 2) / ends[-1] for end, width in zip(ends, widths, strict=True)]
