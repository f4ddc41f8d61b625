"""Parts of the positions of rows, computed one after another, against whole rows: outputs and gradients of attention."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from openafm.models.activations import Microbatch, past_tokens
from openafm.models.attention.context import PackedDocuments
from openafm.models.attention.masked_attention import UnsupportedMaskError
from openafm.models.attention.masks import BidirectionalMask, CausalMask, Mask
from openafm.models.attention.part_attention import Piece, pieces_of
from openafm.models.attention.row_parts import KeyValueExchange, RowPartContext
from openafm.models.attention.spans import Span
from openafm.models.parallel.row_layout import BalancedLayout, ConsecutiveLayout, RowLayoutConfig

ROWS, LENGTH = 2, 24
DOCUMENTS = (Span(0, 0, 5), Span(0, 5, 19), Span(0, 20, 24), Span(1, 0, 13), Span(1, 13, 16))
"""Documents over one and two borders of four parts, padding within a row, and a part of padding alone."""


class LocalExchange(KeyValueExchange):
    """The exchange of parts that one process holds: `whole_BWKC` has the keys and values of all of them."""

    def __init__(self, whole_BWKC: Tensor, ranges: Sequence[range]) -> None:
        self._whole_BWKC, self._ranges, self.calls = whole_BWKC, ranges, 0

    def gather(self, x_BSKC: Tensor) -> Tensor:
        self.calls += 1
        return self._whole_BWKC

    def with_past(self, x_BSKC: Tensor, length: int) -> Tensor:
        self.calls += 1
        return torch.cat([self._whole_BWKC[:, max(0, own.start - length) : own.stop] for own in self._ranges], dim=1)

    def sum(self, x: Tensor) -> Tensor:
        return x


def random_tensors() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((ROWS, LENGTH, 4, 8), (ROWS, LENGTH, 2, 8), (ROWS, LENGTH, 2, 8))
    return tuple(torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes)  # type: ignore[return-value]


def of_parts(count: int, mask: Mask, tensors: tuple[Tensor, Tensor, Tensor], layout: RowLayoutConfig) -> Tensor:
    """Return the attention of all positions, computed in `count` parts."""
    q, k, v = tensors
    outputs, places = [], []
    for index in range(count):
        ranges = layout.ranges(index, count, LENGTH)
        own = [position for one in ranges for position in one]
        exchange = LocalExchange(torch.cat((k, v), dim=2), ranges)
        context = RowPartContext(DOCUMENTS, ROWS, LENGTH, ranges, exchange, torch.device("cpu"))
        context.store(0, k[:, own], v[:, own])
        outputs.append(context.attend(0, q[:, own], mask))
        assert context.attend(0, q[:, own], mask).equal(outputs[-1])
        assert exchange.calls == 1  # a layer that shares keys and values reuses what was exchanged
        places += own
    assert sorted(places) == list(range(LENGTH))
    return torch.cat(outputs, dim=1)[:, torch.tensor(places).argsort()]


@pytest.mark.parametrize("layout", [ConsecutiveLayout(), BalancedLayout()], ids=lambda layout: type(layout).__name__)
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("window", [None, 1, 2, 4, 7, 30])
def test_parts_attend_as_whole_rows(count: int, window: int | None, layout: RowLayoutConfig) -> None:
    mask, tensors = CausalMask(window), random_tensors()
    whole = PackedDocuments(DOCUMENTS, ROWS, LENGTH)
    whole.store(0, *tensors[1:])
    expected, found = whole.attend(0, tensors[0], mask), of_parts(count, mask, tensors, layout)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    gradients = [torch.autograd.grad((x * weights).sum(), tensors) for x in (found, expected)]
    for of_found, of_expected in zip(*gradients, strict=True):
        torch.testing.assert_close(of_found, of_expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("window", [None, 1, 6, 7, 8])
def test_the_planner_and_the_layer_agree_on_what_is_exchanged(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk has 6 positions, so that all 6 that a query with a window of 7 sees before its own lie in one chunk."""
    lengths: list[int | None] = []
    with_past = LocalExchange.with_past
    monkeypatch.setattr(
        LocalExchange, "with_past", lambda self, x, length: (lengths.append(length), with_past(self, x, length))[1]
    )
    of_parts(4, CausalMask(window), random_tensors(), ConsecutiveLayout())
    batch = Microbatch(num_rows=1, row_tokens=6, document_tokens=6, number_bytes=4, attention_bytes=4, parts=4, chunks=1)
    assert batch.sends_window(window) == bool(lengths)
    assert past_tokens(window, batch) == (lengths[0] if lengths else 3 * 6)


def test_positions_count_from_the_beginning_of_a_document() -> None:
    exchange = LocalExchange(torch.zeros(0), ())
    context = RowPartContext(DOCUMENTS, ROWS, LENGTH, (range(6, 12),), exchange, torch.device("cpu"))
    assert context.positions_BS.tolist() == [[1, 2, 3, 4, 5, 6], [6, 7, 8, 9, 10, 11]]


def test_some_positions_as_queries() -> None:
    q, k, v = random_tensors()
    own = (range(12, 24),)
    context = RowPartContext(DOCUMENTS, ROWS, LENGTH, own, LocalExchange(torch.cat((k, v), 2), own), torch.device("cpu"))
    context.store(0, k[:, 12:], v[:, 12:])
    indices_N = torch.tensor([0, 3, 13, 15])
    narrowed = context.narrow(indices_N)
    all_BSHC = context.attend(0, q[:, 12:], CausalMask())
    some_1NHC = narrowed.attend(0, q[:, 12:].flatten(0, 1)[indices_N][None], CausalMask())
    assert some_1NHC[0].equal(all_BSHC.flatten(0, 1)[indices_N])
    assert narrowed.positions_BS.tolist() == [[7, 10, 0, 2]]


def test_a_part_of_padding_has_gradients_of_zeros() -> None:
    q, k, v = random_tensors()
    own = (range(18, 24),)
    context = RowPartContext(DOCUMENTS[:1], ROWS, LENGTH, own, LocalExchange(torch.cat((k, v), 2), own), torch.device("cpu"))
    context.store(0, k[:, 18:], v[:, 18:])
    output = context.attend(0, q[:, 18:], CausalMask())
    assert not output.any()
    assert all(not gradient.any() for gradient in torch.autograd.grad(output.sum(), (q, k, v)))


def test_pieces_cover_queries_and_keys() -> None:
    assert pieces_of(DOCUMENTS, ROWS, range(12, 18), range(9, 18)) == [
        Piece(6, 9, True),
        Piece(1, 4, True),
        Piece(3, 3, True),
        Piece(2, 2, False),
    ]


def test_other_masks_are_refused() -> None:
    with pytest.raises(UnsupportedMaskError, match="cannot apply a BidirectionalMask; supported: CausalMask"):
        of_parts(2, BidirectionalMask(), random_tensors(), ConsecutiveLayout())
