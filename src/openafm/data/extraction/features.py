"""Features of blocks for the classifier: text, tags, names, position, neighbors and the containers around a block.

All blocks of a page are computed at once. A matrix has a row for each feature and a column for each block: rows are
contiguous, so that a decision tree reads one feature of all blocks with one copy.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openafm.data.extraction.blocks import BLOCK_TAGS, NUM_BITS, PageBlocks

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]
    Integers = NDArray[np.int64]

NUM_NAME_FEATURES = 3 * NUM_BITS
"""The last rows of `block_features`: the token groups of a block's container, of the two above it, and of all above it."""

_TABLE_SIZE = 0x10000
_MAX_TEXT = 60_000  # characters of a block that are counted; the counts of four classes share a 64-bit integer
_COMMA, _SPACE, _DIGIT, _SYMBOL = range(4)
_COUNTED = {_COMMA: ",;:，、；：", _SPACE: " ", _SYMBOL: "|»›©→•·/#@+"}
_END, _WIDE_END, _AFTER_END, _LAST = 1, 2, 4, 8
_MARKED = {
    _END: ".!?…",
    _WIDE_END: "。！？",
    _AFTER_END: " \n\"'”’»)",
    _LAST: ".!?…。！？\"'”’»):",
}
_PARENT_LEVELS = 4
_TAG_CODES = {tag: code for code, tag in enumerate(BLOCK_TAGS)}
_TAGS = ("p", "div", "li", "td", "h1", "h2", "h3", "h4", "pre", "blockquote", "figcaption", "section", "article", "body")
_NEIGHBORS = (-3, -2, -1, 1, 2, 3)
_SCORE_NEIGHBORS = (-4, -3, -2, -1, 1, 2, 3, 4)


@dataclass(frozen=True, kw_only=True)
class PageArrays:
    """The containers of a page with blocks as arrays, and the container of each block and of its ancestors."""

    page: PageBlocks

    parent: Integers
    tag: Integers
    depth: Integers
    stop: Integers
    bits: Integers
    inherited: Integers
    levels: Integers  # [_PARENT_LEVELS, blocks]

    @classmethod
    def of(cls, page: PageBlocks) -> PageArrays:
        """Return the arrays of a page."""
        import numpy as np

        of = page.containers
        codes = [_TAG_CODES[tag] for tag in of.tags]
        lists = (of.parents, codes, of.depths, of.stops, of.bits, of.inherited)
        parent, tag, depth, stop, bits, inherited = (np.array(values, dtype=np.int64) for values in lists)
        parent[0] = 0
        levels = np.empty((_PARENT_LEVELS, len(page.blocks)), dtype=np.int64)
        levels[0] = page.container_of
        for level in range(1, _PARENT_LEVELS):
            parent.take(levels[level - 1], out=levels[level])
        return cls(page=page, parent=parent, tag=tag, depth=depth, stop=stop, bits=bits, inherited=inherited, levels=levels)

    def sums(self, *values: Any) -> Any:
        """Sums of the blocks' values over each container and all below it, which are contiguous: [values, containers]."""
        import numpy as np

        count = len(self.stop)
        places = self.levels[0] + np.arange(0, len(values) * count, count)[:, None]
        direct = np.bincount(places.ravel(), weights=np.concatenate(values), minlength=len(values) * count)
        prefix = np.zeros((len(values), count + 1))
        np.cumsum(direct.reshape(len(values), count), axis=1, out=prefix[:, 1:])
        return prefix[:, self.stop] - prefix[:, :-1]


def block_features(tree: PageArrays) -> Matrix:
    """Return the features of a page, [features, blocks].

    Letter case and word length are not among them: they differ more between languages than between content and navigation.
    """
    import numpy as np

    length, link_chars, sentences, commas, spaces, digits, symbols, last, links, breaks, code = _text_features(tree.page)
    container, above = tree.levels[0], tree.levels[1]
    count, num_containers = len(length), len(tree.stop)
    words, chars = np.maximum(spaces, 1), length  # no block is empty
    density = link_chars / chars
    log_length = np.log1p(length)
    total = length.sum() + 1.0
    order = np.arange(count)
    tag = tree.tag.take(container)
    headings = np.flatnonzero(tag == BLOCK_TAGS.index("h1"))
    prose = length * (1 - density) * (sentences > 0)
    rows = [
        log_length,
        density,
        np.log1p(spaces),
        sentences,
        sentences / words * 10,
        commas / words * 10,
        digits / chars,
        symbols / chars * 10,
        last,
        np.log1p(links),
        np.log1p(breaks),
        code,
        order / count,
        (np.cumsum(length) - length) / total,
        np.minimum(order, 50),
        np.minimum(count - order, 50),
        np.full(count, np.log1p(count)),
        np.full(count, np.log1p(total)),
        np.full(count, headings.size > 0),
        _clipped(order - headings[0], 50) if headings.size else np.full(count, 99.0),
        tree.depth.take(container),
    ]

    # Sums over the blocks below each of the nearest containers.
    inside = tree.sums(length, link_chars, prose, np.ones(count))
    chars_inside = np.maximum(inside[0], 1)
    of_containers = np.array(
        [
            np.log1p(inside[0]),
            inside[1] / chars_inside,
            inside[2] / (inside[2, 0] + 1),
            np.log1p(inside[3]),
            inside[2] / chars_inside,
        ]
    )
    direct = np.bincount(container, weights=prose, minlength=num_containers)
    siblings = np.bincount(tree.parent, weights=direct, minlength=num_containers)  # prose in child containers
    of_siblings = siblings / (siblings.max() + 1)

    # Position inside the container with most prose.
    main = int(np.argmax(siblings))
    inside_main = (container >= main) & (container < tree.stop[main])
    positions = np.flatnonzero(inside_main)
    first, stop = (positions[0], positions[-1]) if positions.size else (0, count - 1)
    rows += [inside_main, _clipped(order - first, 30), _clipped(stop - order, 30)]

    # Blocks with the same tag in the same container.
    path = above * len(BLOCK_TAGS) + tag
    path_count = np.bincount(path).take(path)
    rows += [
        np.log1p(path_count),
        np.bincount(path, weights=length).take(path) / total,
        np.bincount(path, weights=density).take(path) / path_count,
    ]

    # Prose around the block.
    prefix = np.concatenate([[0.0], np.cumsum(np.minimum(prose, 500))])
    for width in (5, 15):
        rows.append(np.log1p(prefix[np.minimum(order + width + 1, count)] - prefix[np.maximum(order - width, 0)]))

    places = tree.levels[:2]
    same_place = _neighbors(places, _NEIGHBORS, outside=-1) == places[:, None]
    names = np.array(
        [tree.bits.take(container), tree.bits.take(above) | tree.bits.take(tree.levels[2]), tree.inherited.take(container)]
    )
    bits = np.unpackbits(names.astype("<i8").view(np.uint8).reshape(3, count, 8), axis=2, count=NUM_BITS, bitorder="little")
    return _stacked(
        rows,
        tag_table().take(tag, axis=1),
        of_containers.take(tree.levels, axis=1).reshape(-1, count),
        of_siblings.take(tree.levels[:3]),
        _neighbors(np.array([log_length, density, np.minimum(sentences, 5)]), _NEIGHBORS).reshape(-1, count),
        same_place.reshape(-1, count),
        bits.transpose(0, 2, 1).reshape(-1, count),
    )


def context_features(tree: PageArrays, features: Matrix, scores: Matrix) -> Matrix:
    """Return the features with the first classifier's scores of neighbors and containers, for the second classifier."""
    import numpy as np

    length = tree.page.num_chars.astype(np.float64)
    count = len(scores)
    order = np.arange(count)
    inside = tree.sums(length, length * scores, np.ones(count), scores)
    of_containers = np.array(
        [inside[1] / np.maximum(inside[0], 1), inside[3] / np.maximum(inside[2], 1), inside[1] / (inside[1, 0] + 1)]
    )
    weight = np.minimum(length, 300)
    mass, base = (np.concatenate([[0.0], np.cumsum(column)]) for column in (weight * scores, weight))
    rows = [scores, mass[1:] / (mass[-1] + 1), np.full(count, np.log1p(mass[-1])), np.full(count, scores.max())]
    for before, after in ((3, 3), (8, 8), (8, 0), (0, 8)):
        low, high = np.maximum(order - before, 0), np.minimum(order + after + 1, count)
        rows.append((mass[high] - mass[low]) / (base[high] - base[low] + 1))
    chosen = np.flatnonzero(scores > 0.5)
    if chosen.size:
        at = np.searchsorted(chosen, order)
        following = np.where(at < chosen.size, chosen[np.minimum(at, chosen.size - 1)] - order, 50)
        preceding = np.where(at > 0, order - chosen[np.maximum(at - 1, 0)], 50)
        rows += [np.minimum(following, 50), np.minimum(preceding, 50)]
    else:
        rows += [np.full(count, 50), np.full(count, 50)]
    return _stacked(
        rows,
        of_containers.take(tree.levels, axis=1).reshape(-1, count),
        _neighbors(scores[None], _SCORE_NEIGHBORS).reshape(-1, count),
        features,
    )


def _text_features(page: PageBlocks) -> Any:
    """Counts of characters by class, for all blocks at once: a table lookup over the joined texts."""
    import numpy as np

    texts = [block.text[:_MAX_TEXT] for block in page.blocks]
    codes = np.frombuffer("\n".join([*texts, ""]).encode("utf-16-le", "replace"), dtype="<u2")
    counted, marks = class_tables()
    stops = np.flatnonzero(codes == ord("\n"))
    starts = np.concatenate([[0], stops[:-1] + 1])
    classes = marks.take(codes)
    is_end = (classes & _WIDE_END) > 0
    is_end[:-1] |= (classes[:-1] & _END > 0) & (classes[1:] & _AFTER_END > 0)
    counts = np.add.reduceat(counted.take(codes), starts)
    result = np.empty((11, len(texts)))
    result[0], result[1] = page.num_chars, page.link_chars
    result[2] = np.add.reduceat(is_end, starts, dtype=np.int64)
    result[3:7] = counts.view(np.uint16).reshape(-1, 4).T
    result[7] = classes[stops - 1] & _LAST > 0
    result[8] = page.num_links
    result[9] = [block.num_breaks for block in page.blocks]
    result[10] = [block.preformatted for block in page.blocks]
    return result


@functools.cache
def class_tables() -> tuple[Any, Any]:
    """For each UTF-16 code: a 1 in the 16 bits of its counted class, and its marks as bits."""
    import numpy as np

    counted, marks = np.zeros((_TABLE_SIZE, 4), dtype=np.uint16), np.zeros(_TABLE_SIZE, dtype=np.uint8)
    for kind, characters in _COUNTED.items():
        counted[[ord(character) for character in characters], kind] = 1
    for code in range(0x250):
        counted[code, _DIGIT] = chr(code).isdigit()
    for mark, characters in _MARKED.items():
        marks[[ord(character) for character in characters]] |= mark
    return counted.view(np.uint64).ravel(), marks


@functools.cache
def tag_table() -> Any:
    """Rows for the tags of `_TAGS`, with a 1 at the code of the tag."""
    import numpy as np

    return np.array([[tag == name for tag in BLOCK_TAGS] for name in _TAGS], dtype=np.float32)


def _neighbors(values: Any, shifts: tuple[int, ...], outside: float = 0) -> Any:
    """The values of the blocks `shift` places later, [values, shifts, blocks]."""
    import numpy as np

    num_values, count = values.shape
    most = max(shifts)
    padded = np.full((num_values, count + 2 * most), outside, dtype=np.float32)
    padded[:, most:-most] = values
    result = np.empty((num_values, len(shifts), count), dtype=np.float32)
    for index, shift in enumerate(shifts):
        result[:, index] = padded[:, most + shift : most + shift + count]
    return result


def _clipped(values: Any, most: int) -> Any:
    """`np.clip` to both signs; the functions below it take half of its time for short arrays."""
    import numpy as np

    return np.minimum(np.maximum(values, -most), most)


def _stacked(rows: list[Any], *parts: Any) -> Matrix:
    """One matrix of rows and of matrices below them."""
    import numpy as np

    result = np.empty((len(rows) + sum(map(len, parts)), len(rows[0])), dtype=np.float32)
    for index, row in enumerate(rows):
        result[index] = row
    at = len(rows)
    for part in parts:
        result[at : at + len(part)] = part
        at += len(part)
    return result
