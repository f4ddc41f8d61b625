"""Letters of an image as tokens: (row, column, class) of the cells of a view, for training an encoder to read.

Drawings have the box of each word and the centers of its letters (`Region`). Where the centers are not known, the letters
divide the box by the usual widths of letters: a quarter of them is then in the cell beside the right one. A view has the
letters of one range of font sizes (`SIZES`); all other cells have no letter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from openafm.data.images.documents import ImageDocument, Region
from openafm.models.vision.letters import CELL, SIZES, SPACE, class_of, usual_width

_ABOVE, _BELOW, _SMALL = 0.72, 0.22, 0.5  # of a letter over and under the baseline, in sizes of the font
_DESCENDING, _LOW = frozenset("gjpqyQ,;()[]{}|@$/"), frozenset("acegmnopqrsuvwxyz")
_WIDEST_SPACE = 1.0  # in sizes of the font
_SAME_LINE = 0.4  # as much may two words of a line differ in height, in sizes of the font

Place = tuple[float, float, float]
"""x, y and the size of the font of a letter in pixels of a view."""


def has_words(document: ImageDocument) -> bool:
    """Return whether a document is one image with boxes of words."""
    return len(document.digests) == 1 and any(region.kind == "word" for region in document.regions)


def letter_tokens(document: ImageDocument, size: tuple[int, int], side: int) -> list[int]:
    """Return row, column and class of the letters and spaces of an image in a view of this side.

    Args:
        size: width and height of the image in pixels.
    """
    words = [region for region in document.regions if region.kind == "word"]
    spelled = [_letters(region, side / size[0], side / size[1]) for region in words]
    found = [*_spaces(spelled), *((place, class_of(letter)) for word in spelled for place, letter in word)]
    cells = {
        (int(y // CELL[0]), int(x // CELL[1])): letter
        for (x, y, font_size), letter in found
        if SIZES[0] <= font_size < SIZES[1] and 0 <= y < side and 0 <= x < side
    }
    return [value for (row, column), letter in sorted(cells.items()) for value in (row, column, letter)]


def _spaces(words: Sequence[Sequence[tuple[Place, str]]]) -> Iterator[tuple[Place, int]]:
    """Return the middles of the gaps between words that follow each other on a line."""
    for before, after in pairwise(words):
        if before and after:
            (x, y, font_size), (next_x, next_y, _) = before[-1][0], after[0][0]
            room = font_size * (_WIDEST_SPACE + (usual_width(before[-1][1]) + usual_width(after[0][1])) / 4)
            if 0 < next_x - x < room and abs(next_y - y) < _SAME_LINE * font_size:
                share = (usual_width(before[-1][1]) + 0.5) / (usual_width(before[-1][1]) + usual_width(after[0][1]) + 1)
                yield (x + share * (next_x - x), y + share * (next_y - y), font_size), SPACE


def _letters(region: Region, x_scale: float, y_scale: float) -> list[tuple[Place, str]]:
    """Return the places of the letters of a word."""
    (left, top, right, bottom), word = region.box, region.label
    usual = [(left + share * (right - left), (top + bottom) / 2) for share in _usual_centers(word)]
    centers = region.centers if len(region.centers) == len(word) else tuple(usual)
    (first_x, first_y), (last_x, last_y) = centers[0], centers[-1]
    slope = abs(last_y - first_y) / max(abs(last_x - first_x), 1.0)
    height = max(bottom - top - slope * (right - left), (bottom - top) / 2)
    font_size = y_scale * height / _height(word)
    return [((x * x_scale, y * y_scale, font_size), letter) for letter, (x, y) in zip(word, centers, strict=True)]


def _height(word: str) -> float:
    """Return the usual height of a word in sizes of its font."""
    above = _SMALL if all(letter in _LOW for letter in word) else _ABOVE
    return above + (_BELOW if any(letter in _DESCENDING for letter in word) else 0.0)


def _usual_centers(word: str) -> Sequence[float]:
    """Return the usual centers of the letters of a word, as shares of its width."""
    widths = [usual_width(letter) for letter in word]
    ends = list(accumulate(widths))
    return [(end - width / 2) / ends[-1] for end, width in zip(ends, widths, strict=True)]
