"""Features of blocks for the classifier: text, tags, names, position, neighbors and the containers around a block."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from openafm.data.extraction.blocks import BLOCK_TAGS, NUM_BITS, PageBlocks

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]

NUM_NAME_FEATURES = 3 * NUM_BITS

_TABLE_SIZE = 0x10000
_END, _WIDE_END, _COMMA, _SPACE, _DIGIT, _SYMBOL, _QUOTE, _CLOSING = (1 << bit for bit in range(8))
_CLASSES = {
    _END: ".!?…",
    _WIDE_END: "。！？",
    _COMMA: ",;:，、；：",
    _SPACE: " \n",
    _SYMBOL: "|»›©→•·/#@+",
    _QUOTE: "\"'”’»)",
    _CLOSING: ":",
}
_PARENT_LEVELS = 4
_TAGS = (
    "p",
    "div",
    "li",
    "td",
    "h1",
    "h2",
    "h3",
    "h4",
    "pre",
    "blockquote",
    "figcaption",
    "section",
    "article",
    "a",
    "body",
    "button",
)
_NEIGHBORS = (-3, -2, -1, 1, 2, 3)


def block_features(page: PageBlocks) -> Matrix:
    """Return one row of features for each block of a page with blocks; the last `NUM_NAME_FEATURES` are of names and tags.

    Letter case and word length are not among them: they differ more between languages than between content and navigation.
    """
    import numpy as np

    texts = _text_features(page)
    container = np.array([block.container for block in page.blocks], dtype=np.int64)
    parent = np.array([item.parent for item in page.containers], dtype=np.int64)
    tag = np.array([item.tag_code for item in page.containers], dtype=np.int64)
    depth = np.array([item.depth for item in page.containers], dtype=np.float32)
    stop = np.array([item.stop for item in page.containers], dtype=np.int64)
    own = _bits(np.array([item.bits for item in page.containers], dtype=np.int64), NUM_BITS)
    inherited = _bits(np.array([item.inherited for item in page.containers], dtype=np.int64), NUM_BITS)
    parent[0] = 0

    length, link_chars, sentences, commas = texts[:, 0], texts[:, 1], texts[:, 2], texts[:, 3]
    count = len(page.blocks)
    total = length.sum() + 1.0
    density = link_chars / np.maximum(length, 1)
    log_length = np.log1p(length)
    before = np.cumsum(length) - length
    order = np.arange(count, dtype=np.float32)
    heading = np.array([BLOCK_TAGS[code] == "h1" for code in tag[container]])
    first_heading = int(np.argmax(heading)) if heading.any() else -1
    prose = length * (1 - density) * (sentences > 0)

    columns: list[Any] = [
        log_length,
        density,
        np.log1p(texts[:, 4]),  # words
        sentences,
        sentences / np.maximum(texts[:, 4], 1) * 10,
        commas / np.maximum(texts[:, 4], 1) * 10,
        texts[:, 5] / np.maximum(length, 1),  # digits
        texts[:, 6] / np.maximum(length, 1) * 10,  # symbols
        texts[:, 7],  # ends like a sentence
        np.log1p(texts[:, 8]),  # links
        np.log1p(texts[:, 9]),  # line breaks
        texts[:, 10],  # preformatted
        order / max(count, 1),
        before / total,
        np.minimum(order, 50),
        np.minimum(count - order, 50),
        np.full(count, np.log1p(count)),
        np.full(count, np.log1p(total)),
        np.full(count, float(first_heading >= 0)),
        np.clip(order - first_heading, -50, 50) if first_heading >= 0 else np.full(count, 99.0),
        depth[container],
    ]
    columns += [tag[container] == BLOCK_TAGS.index(name) for name in _TAGS if name in BLOCK_TAGS]

    # Containers: sums over all blocks below each of the nearest ancestors.
    level = container
    sums = _container_sums(container, stop, (length, link_chars, prose, np.ones(count)))
    most_prose = sums[0, 2] + 1.0
    for _ in range(_PARENT_LEVELS):
        inside = sums[level]
        columns += [
            np.log1p(inside[:, 0]),
            inside[:, 1] / np.maximum(inside[:, 0], 1),
            inside[:, 2] / most_prose,
            np.log1p(inside[:, 3]),
            inside[:, 2] / np.maximum(inside[:, 0], 1),
        ]
        level = parent[level]
    direct = np.bincount(container, weights=prose, minlength=len(parent))
    siblings = np.bincount(parent, weights=direct, minlength=len(parent))  # prose in child containers
    best = siblings.max() + 1.0
    columns += [siblings[parent[container]] / best, siblings[parent[parent[container]]] / best]
    columns += [siblings[container] / best]

    # Position inside the container with most prose.
    main = int(np.argmax(siblings))
    inside_main = (container >= main) & (container < stop[main])
    positions = np.flatnonzero(inside_main)
    first, last = (positions[0], positions[-1]) if positions.size else (0, count - 1)
    columns += [inside_main, np.clip(order - first, -30, 30), np.clip(last - order, -30, 30)]

    path = parent[container] * 64 + tag[container]
    _, path_index, path_count = np.unique(path, return_inverse=True, return_counts=True)
    columns += [
        np.log1p(path_count[path_index]),
        np.bincount(path_index, weights=length)[path_index] / total,
        np.bincount(path_index, weights=density)[path_index] / path_count[path_index],
    ]
    for shift in _NEIGHBORS:
        columns += [_shifted(column, shift) for column in (log_length, density, np.minimum(sentences, 5))]
        columns.append(_shifted(container.astype(np.float32), shift) == container)
        columns.append(_shifted(parent[container].astype(np.float32), shift) == parent[container])
    window = np.minimum(prose, 500)
    cumulative = np.concatenate([[0.0], np.cumsum(window)])
    for width in (5, 15):
        low, high = np.maximum(np.arange(count) - width, 0), np.minimum(np.arange(count) + width + 1, count)
        columns.append(np.log1p(cumulative[high] - cumulative[low]))
    nearest = np.concatenate(
        [own[container], own[parent[container]] | own[parent[parent[container]]], inherited[container]], axis=1
    )
    return np.concatenate([np.stack([np.asarray(column, dtype=np.float32) for column in columns], axis=1), nearest], axis=1)


def context_features(page: PageBlocks, features: Matrix, scores: Matrix) -> Matrix:
    """Return the features with the first classifier's scores of neighbors and containers, for the second classifier."""
    import numpy as np

    container = np.array([block.container for block in page.blocks], dtype=np.int64)
    parent = np.array([item.parent for item in page.containers], dtype=np.int64)
    stop = np.array([item.stop for item in page.containers], dtype=np.int64)
    parent[0] = 0
    length = np.expm1(features[:, 0])
    count = len(scores)
    columns: list[Any] = [scores]
    sums = _container_sums(container, stop, (length, length * scores, np.ones(count), scores))
    whole = sums[0, 1] + 1.0
    level = container
    for _ in range(_PARENT_LEVELS):
        inside = sums[level]
        columns += [
            inside[:, 1] / np.maximum(inside[:, 0], 1),
            inside[:, 3] / np.maximum(inside[:, 2], 1),
            inside[:, 1] / whole,
        ]
        level = parent[level]
    columns += [_shifted(scores, shift) for shift in (-4, -3, -2, -1, 1, 2, 3, 4)]
    weight = np.minimum(length, 300)
    mass = np.concatenate([[0.0], np.cumsum(weight * scores)])
    base = np.concatenate([[0.0], np.cumsum(weight)])
    index = np.arange(count)
    for before, after in ((3, 3), (8, 8), (8, 0), (0, 8)):
        low, high = np.maximum(index - before, 0), np.minimum(index + after + 1, count)
        columns.append((mass[high] - mass[low]) / (base[high] - base[low] + 1))
    columns += [(mass[1:] / (mass[-1] + 1)), np.full(count, np.log1p(mass[-1])), np.full(count, scores.max())]
    high_scores = np.flatnonzero(scores > 0.5)
    if high_scores.size:
        at = np.searchsorted(high_scores, index)
        following = np.where(at < high_scores.size, high_scores[np.minimum(at, high_scores.size - 1)] - index, 50)
        preceding = np.where(at > 0, index - high_scores[np.maximum(at - 1, 0)], 50)
        columns += [np.minimum(following, 50), np.minimum(preceding, 50)]
    else:
        columns += [np.full(count, 50.0), np.full(count, 50.0)]
    return np.concatenate([np.stack([np.asarray(column, dtype=np.float32) for column in columns], axis=1), features], axis=1)


def _text_features(page: PageBlocks) -> Matrix:
    """Counts of characters by class, for all blocks at once: a table lookup over the joined texts."""
    import numpy as np

    joined = "\n".join([block.text for block in page.blocks]) + "\n"
    codes = np.frombuffer(joined.encode("utf-32-le", "replace"), dtype=np.uint32)
    classes = _class_table()[np.minimum(codes, _TABLE_SIZE - 1)]
    ends_word = np.append((classes[1:] & (_SPACE | _QUOTE)) > 0, True)
    is_end = ((classes & _END) > 0) & ends_word | ((classes & _WIDE_END) > 0)
    lengths = np.array([len(block.text) for block in page.blocks], dtype=np.int64)
    starts = np.cumsum(lengths + 1) - lengths - 1
    counted = [is_end, *((classes & kind) > 0 for kind in (_COMMA, _SPACE, _DIGIT, _SYMBOL))]
    ends, commas, spaces, digits, symbols = (np.add.reduceat(mask, starts, dtype=np.float32) for mask in counted)
    last = classes[starts + lengths - 1]
    of_blocks = np.array(
        [(block.link_chars, block.num_links, block.num_breaks, block.preformatted) for block in page.blocks],
        dtype=np.float32,
    )
    return np.stack(
        [
            lengths.astype(np.float32),
            of_blocks[:, 0],
            ends,
            commas,
            spaces,
            digits,
            symbols,
            (last & (_END | _WIDE_END | _QUOTE | _CLOSING)) > 0,
            *of_blocks[:, 1:].T,
        ],
        axis=1,
    )


@functools.cache
def _class_table() -> NDArray[np.uint16]:
    """The classes of each character below `_TABLE_SIZE`, as bits."""
    import numpy as np

    table = np.zeros(_TABLE_SIZE, dtype=np.uint16)
    for bit, characters in _CLASSES.items():
        table[[ord(character) for character in characters]] |= bit
    for code in range(0x250):
        table[code] |= _DIGIT * chr(code).isdigit()
    return table


def _bits(values: Any, count: int) -> Any:
    """Integers as rows of bits."""
    import numpy as np

    return ((values[:, None] >> np.arange(count)) & 1).astype(bool)


def _container_sums(container: Any, stop: Any, values: Any) -> Any:
    """Sums of the blocks' values over each container and all below it, which are contiguous."""
    import numpy as np

    sums = np.stack([np.bincount(container, weights=column, minlength=len(stop)) for column in values], axis=1)
    prefix = np.concatenate([np.zeros((1, sums.shape[1])), np.cumsum(sums, axis=0)])
    return prefix[stop] - prefix[:-1]


def _shifted(column: Any, shift: int) -> Any:
    """The value of the block `shift` places later; 0 outside the page."""
    import numpy as np

    result = np.zeros(len(column), dtype=np.float32)
    if abs(shift) < len(column):
        if shift > 0:
            result[:-shift] = column[shift:]
        else:
            result[-shift:] = column[:shift]
    return result
