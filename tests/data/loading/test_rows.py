"""Packing rows equals best-fit decreasing one document at a time, keeps every token, and fills 99 %."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openafm.data.loading.rows import pack_rows, split_documents, starts_between


def spaces_of_plain_best_fit(lengths: list[int], row_tokens: int) -> list[int]:
    spaces: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [space for space in spaces if space >= length]
        if fitting:
            spaces.remove(min(fitting))
        spaces.append((min(fitting) if fitting else row_tokens) - length)
    return sorted(spaces)


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=120), data=st.data())
def test_packing_is_best_fit_decreasing(lengths: list[int], data: st.DataObject) -> None:
    row_tokens = data.draw(st.integers(max(lengths), 60))
    tie_order = np.array(data.draw(st.permutations(range(len(lengths)))))
    packed = pack_rows(np.array(lengths), row_tokens, tie_order)
    assert sorted(packed.order_P.tolist()) == list(range(len(lengths)))
    used = [sum(lengths[piece] for piece in packed.pieces(row)) for row in range(packed.num_rows)]
    assert sorted(row_tokens - tokens for tokens in used) == spaces_of_plain_best_fit(lengths, row_tokens)


@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=30), row_tokens=st.integers(1, 50))
def test_pieces_cover_every_document_in_order(lengths: list[int], row_tokens: int) -> None:
    pieces = split_documents(np.array(lengths), row_tokens)
    assert pieces.length_P.max() <= row_tokens
    assert pieces.length_P.min() >= 1
    covered: dict[int, int] = dict.fromkeys(range(len(lengths)), 0)
    for document, start, length in zip(pieces.document_P, pieces.start_P, pieces.length_P, strict=True):
        assert start == covered[int(document)]
        covered[int(document)] += int(length)
    assert list(covered.values()) == lengths


@pytest.mark.parametrize(("row_tokens", "num_documents"), [(512, 2_000), (4096, 20_000)])
def test_log_normal_documents_fill_rows_to_99_percent(row_tokens: int, num_documents: int) -> None:
    rng = np.random.default_rng(0)
    lengths = np.maximum(1, rng.lognormal(np.log(130) - 0.32, 0.8, num_documents).astype(np.int64))
    pieces = split_documents(lengths, row_tokens)
    packed = pack_rows(pieces.length_P, row_tokens, np.arange(len(pieces.length_P)))
    assert lengths.sum() / (packed.num_rows * row_tokens) > 0.99


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 12)), max_size=8), st.integers(12, 30), st.integers(0, 9))
def test_pieces_do_not_begin_inside_solid_spans(gaps: list[tuple[int, int]], row_tokens: int, rest: int) -> None:
    solid, length = [], 0
    for gap, size in gaps:
        solid.append((length + gap, length + gap + size))
        length += gap + size
    length += rest + 1
    starts = starts_between(length, row_tokens, solid)
    pieces = split_documents(np.array([5, length, 40]), row_tokens, {1: starts})
    chosen = pieces.document_P == 1
    assert pieces.start_P[chosen].tolist() == starts
    assert pieces.length_P.sum() == 5 + length + 40
    assert pieces.length_P.min() > 0
    assert pieces.length_P.max() <= row_tokens
    assert not any(start < cut < stop for cut in starts for start, stop in solid)
    if not solid:
        assert starts == list(range(0, length, row_tokens))
