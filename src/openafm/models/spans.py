"""Where documents stand in packed rows. Imports no tensor library: the loader makes spans, attention reads them."""

from __future__ import annotations

from typing import NamedTuple


class Span(NamedTuple):
    """Positions start..stop-1 of a row of the batch: one document as attention sees it."""

    row: int
    start: int
    stop: int
