"""Read a page in native code (source/): the blocks of `split_blocks` and the scores of the classifier, in one pass.

Lexbor's own C interface walks its tree; selectolax's library exports it. Without a compiler, or where a library hides the
interface, `open_reader` returns None and the passes in Python, which give the same result, do the work.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_char_p, c_double, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from openafm.core.native_build import NativeBuildError, NativeSources
from openafm.data.extraction import blocks as python
from openafm.data.extraction.blocks import BLOCK_TAGS, NUM_BITS, Block, Containers, Image, PageBlocks, Span
from openafm.data.extraction.features import class_tables, tag_table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from selectolax.lexbor import LexborNode

    from openafm.data.extraction.classifier import BlockClassifier
    from openafm.data.extraction.trees import TreeEnsemble

SOURCES = NativeSources(
    name="libopenafm_page",
    title="the native extraction",
    folder=Path(__file__).parent / "source",
    built_in=Path(__file__).parent / "libopenafm_page.so",
)
_MOST_BYTES = 1 << 28  # positions are 32-bit integers
_DOM = {
    "next": "lxb_dom_node_next_noi",
    "first_child": "lxb_dom_node_first_child_noi",
    "type": "lxb_dom_node_type_noi",
    "tag_id": "lxb_dom_node_tag_id_noi",
    "tag_name": "lxb_dom_element_qualified_name",
    "first_attribute": "lxb_dom_element_first_attribute_noi",
    "next_attribute": "lxb_dom_element_next_attribute_noi",
    "attribute_name": "lxb_dom_attr_qualified_name",
    "attribute_value": "lxb_dom_attr_value_noi",
    "text": "lxb_dom_node_text_content",
}
_WORD_BITS = ctypes.CFUNCTYPE(c_uint64, c_void_p, c_int32)


class _Dom(Structure):
    _fields_ = [(name, c_void_p) for name in _DOM]


class _Tag(Structure):
    _fields_ = [("name", c_char_p), ("kind", c_int32), ("code", c_int32), ("bits", c_uint64)]


class _Trees(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("features", "thresholds", "leaves")),
        ("bias", c_double),
        ("depth", c_int32),
        ("num_trees", c_int32),
    ]


class _Rules(Structure):
    _fields_ = [
        ("dom", POINTER(_Dom)),
        ("tags", POINTER(_Tag)),
        *((name, c_int32) for name in ("num_tags", "num_block_tags", "num_bits")),
        *((name, c_uint64) for name in ("pair_bit", "hidden_bit")),
        ("word_bits", _WORD_BITS),
        *((name, c_void_p) for name in ("counted", "marks", "tag_rows")),
        *((name, c_int32) for name in ("num_tag_rows", "first_heading")),
        *((name, _Trees) for name in ("local", "context")),
    ]


_ARRAYS = ("blocks", "spans", "containers", "images", "raw", "strings")


class _Page(Structure):
    _fields_ = [
        *((name, c_void_p) for name in (*_ARRAYS, "scores")),
        *((f"num_{name}", c_int64) for name in _ARRAYS),
    ]


_ROWS = {
    "blocks": [
        (name, "<i4")
        for name in (
            *("container", "raw_start", "raw_stop", "text_start", "text_stop", "num_chars", "link_chars", "num_links"),
            *("num_breaks", "preformatted", "first_span", "num_spans"),
        )
    ],
    "spans": [(name, "<i4") for name in ("start", "stop", "mark", "url_start", "url_stop")],
    "containers": [
        *((name, "<u8") for name in ("bits", "inherited")),
        *((name, "<i4") for name in ("parent", "tag", "depth", "stop", "names_start", "names_stop")),
    ],
    "images": [(name, "<i4") for name in ("position", "container", "url_start", "url_stop", "alt_start", "alt_stop")],
}
"""The fields of the rows in abi.h."""


@dataclass(frozen=True, kw_only=True)
class ScoredPage:
    """The blocks of a page and the probability of each that it belongs to the main content."""

    blocks: PageBlocks
    scores: NDArray[np.float32]


class PageReader:
    """Read pages with one classifier, from any thread: each thread has a reader of its own."""

    def __init__(self, library: ctypes.PyDLL, dom: ctypes.CDLL, classifier: BlockClassifier) -> None:
        self._library, self._local = library, threading.local()
        self._rules, self._kept = _rules(dom, classifier)

    def read(self, root: LexborNode, num_bytes: int, max_blocks: int) -> ScoredPage | None:
        """Return the blocks and scores of a DOM; None for very large pages, which only Python reads."""
        if num_bytes > _MOST_BYTES:
            return None
        if (reader := getattr(self._local, "reader", None)) is None:
            reader = self._local.reader = _Reader(self._library, self._rules)
        return reader.read(root, max_blocks)


class _Reader:
    """The reader of one thread."""

    def __init__(self, library: ctypes.PyDLL, rules: _Rules) -> None:
        self._library, self._pointer = library, library.oa_reader_new(ctypes.byref(rules))

    def __del__(self) -> None:
        self._library.oa_reader_free(self._pointer)

    def read(self, root: LexborNode, max_blocks: int) -> ScoredPage:
        import numpy as np

        page = self._library.oa_page_read(self._pointer, root.mem_id, min(max_blocks, 1 << 62)).contents
        rows = {
            name: np.frombuffer(
                ctypes.string_at(getattr(page, name), getattr(page, f"num_{name}") * dtype.itemsize), dtype=dtype
            )
            for name, dtype in _dtypes().items()
        }
        raw, strings = (ctypes.string_at(getattr(page, name), getattr(page, f"num_{name}")) for name in ("raw", "strings"))
        scores = np.frombuffer(ctypes.string_at(page.scores, page.num_blocks * 4), dtype=np.float32)
        return ScoredPage(blocks=_page_blocks(rows, raw, strings), scores=scores)


class _Blocks(Sequence[Block]):
    """The blocks of a page, made when they are read: a page has many that nothing reads."""

    def __init__(self, rows: Any, spans: Any, raw: bytes, strings: bytes) -> None:
        self._rows, self._spans, self._raw, self._strings = rows, spans, raw, strings
        self._made: list[Block | None] = [None] * len(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Block: ...
    @overload
    def __getitem__(self, index: slice) -> list[Block]: ...
    def __getitem__(self, index: int | slice) -> Block | list[Block]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if (block := self._made[index]) is None:
            block = self._made[index] = self._make(self._rows[index].item())
        return block

    def _make(self, row: tuple[int, ...]) -> Block:
        container, raw_start, raw_stop, start, stop, _, link_chars, num_links, num_breaks, code, first, count = row
        return Block(
            container,
            self._raw[raw_start:raw_stop].decode("utf-8", "replace"),
            self._strings[start:stop].decode("utf-8", "replace"),
            link_chars,
            num_links,
            num_breaks,
            [self._span(*each) for each in self._spans[first : first + count].tolist()] if count else (),
            bool(code),
        )

    def _span(self, start: int, stop: int, mark: int, url_start: int, url_stop: int) -> Span:
        return Span(start, stop, _MARKS[mark], self._strings[url_start:url_stop].decode("utf-8", "replace"))


def open_reader(classifier: BlockClassifier) -> PageReader | None:
    """Return a reader with a classifier, or None where native code cannot read Lexbor's trees."""
    libraries = _libraries()
    return PageReader(*libraries, classifier) if libraries is not None else None


@functools.cache
def _libraries() -> tuple[ctypes.PyDLL, ctypes.CDLL] | None:
    """The library of this room and that of selectolax; None if one of them does not serve."""
    try:
        import selectolax.lexbor

        dom = ctypes.CDLL(selectolax.lexbor.__file__)
        for function in _DOM.values():
            getattr(dom, function)
        library = ctypes.PyDLL(str(SOURCES.built().path))  # keeps the interpreter's lock: it calls Python for new words
    except (ImportError, OSError, AttributeError, NativeBuildError):
        return None
    library.oa_reader_new.restype, library.oa_reader_new.argtypes = c_void_p, [POINTER(_Rules)]
    library.oa_reader_free.restype, library.oa_reader_free.argtypes = None, [c_void_p]
    library.oa_page_read.restype, library.oa_page_read.argtypes = POINTER(_Page), [c_void_p, c_void_p, c_int64]
    return library, dom


_MARKS = ("", *dict.fromkeys(python.MARKS.values()))
"""Markdown of the marks by number; 0 is a link."""


def _rules(dom: ctypes.CDLL, classifier: BlockClassifier) -> tuple[_Rules, list[Any]]:
    """What the native pass needs to know, and the objects whose memory it refers to."""
    import numpy as np

    functions = _Dom(*(ctypes.cast(getattr(dom, function), c_void_p) for function in _DOM.values()))
    names = list(python.KINDS | python.TAG_BITS)
    tags = (_Tag * len(names))(*(_tag(name) for name in names))
    counted, marks = class_tables()
    tag_rows = np.ascontiguousarray(tag_table(), dtype=np.float32)
    word_bits = _WORD_BITS(lambda word, length: python.word_bits(ctypes.string_at(word, length).decode("ascii")))
    arrays: list[Any] = [functions, tags, counted, marks, tag_rows, word_bits]
    rules = _Rules(
        dom=ctypes.pointer(functions),
        tags=tags,
        num_tags=len(names),
        num_block_tags=len(BLOCK_TAGS),
        num_bits=NUM_BITS,
        pair_bit=python.PAIR_BIT,
        hidden_bit=python.HIDDEN_BIT,
        word_bits=word_bits,
        counted=counted.ctypes.data,
        marks=marks.ctypes.data,
        tag_rows=tag_rows.ctypes.data,
        num_tag_rows=len(tag_rows),
        first_heading=BLOCK_TAGS.index("h1"),
        local=_trees(classifier.local, arrays),
        context=_trees(classifier.context, arrays),
    )
    return rules, arrays


def _tag(name: str) -> _Tag:
    kind = python.KINDS.get(name, python.OTHER)
    code = _MARKS.index(python.MARKS[name]) if kind == python.MARK else -1
    if name in BLOCK_TAGS:
        code = BLOCK_TAGS.index(name)
    return _Tag(name.encode(), kind, code, python.TAG_BITS.get(name, 0))


def _trees(trees: TreeEnsemble, arrays: list[Any]) -> _Trees:
    import numpy as np

    kept = [
        np.ascontiguousarray(values, dtype=dtype)
        for values, dtype in ((trees.features, np.int32), (trees.thresholds, np.float32), (trees.leaves, np.float32))
    ]
    arrays += kept
    depth, num_trees = trees.features.shape
    return _Trees(*(array.ctypes.data for array in kept), trees.bias, depth, num_trees)


@functools.cache
def _dtypes() -> dict[str, np.dtype[Any]]:
    import numpy as np

    return {name: np.dtype(fields) for name, fields in _ROWS.items()}


def _page_blocks(rows: dict[str, Any], raw: bytes, strings: bytes) -> PageBlocks:
    of, blocks = rows["containers"], rows["blocks"]

    def text(start: int, stop: int) -> str:
        return strings[start:stop].decode("utf-8", "replace")

    containers = Containers(
        of["parent"].tolist(),
        [BLOCK_TAGS[code] for code in of["tag"].tolist()],
        of["bits"].tolist(),
        of["inherited"].tolist(),
        of["depth"].tolist(),
        _Names(of["names_start"], of["names_stop"], strings),
        of["stop"].tolist(),
    )
    images = [
        (position, container, Image(text(url_start, url_stop), text(alt_start, alt_stop)))
        for position, container, url_start, url_stop, alt_start, alt_stop in rows["images"].tolist()
    ]
    return PageBlocks(
        _Blocks(blocks, rows["spans"], raw, strings),
        containers,
        images,
        container_of=blocks["container"],
        num_chars=blocks["num_chars"],
        link_chars=blocks["link_chars"],
        num_links=blocks["num_links"],
    )


class _Names(Sequence[str]):
    """The class names and ids of containers, which only rules by domain read."""

    def __init__(self, starts: Any, stops: Any, strings: bytes) -> None:
        self._starts, self._stops, self._strings = starts, stops, strings

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        return self._strings[self._starts[index] : self._stops[index]].decode("utf-8", "replace")
