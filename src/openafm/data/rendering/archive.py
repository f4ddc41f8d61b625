"""Scripts and data of pages from the WARC file of their crawl, so that rendering needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from openafm.data.web.crawl.fetch import Fetched, FetchFailure, FetchLimits
from openafm.data.web.documents import Page
from openafm.data.web.urls import canonical_url
from openafm.data.web.warc_reader import read_pages, response_positions


class ArchivedResources:
    """The responses of one WARC file by URL, the last one of each. The file is indexed by the first request.

    Without a file, every request fails.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._positions: dict[str, int] | None = None

    async def fetch(
        self, url: str, limits: FetchLimits, *, headers: Mapping[str, str] | None = None
    ) -> Fetched | FetchFailure:
        """Return the response to a request, or the failure `not_archived`."""
        page = self._find(url, limits.max_bytes)
        if page is None:
            return FetchFailure("not_archived", f"{url[:200]} is not in the file", 0.0)
        return Fetched(
            url=url, status=page.status, headers=page.headers, body=page.body, request_headers=headers or {}, headers_at=0.0
        )

    def _find(self, url: str, max_bytes: int) -> Page | None:
        if self._path is None:
            return None
        if self._positions is None:
            found = response_positions(self._path)
            self._positions = {canonical_url(address) or address: position for address, position in found}
        position = self._positions.get(canonical_url(url) or url)
        if position is None:
            return None
        pages = read_pages(self._path, max_body_bytes=max_bytes, start=position, stop=position + 1)
        page = next(pages, None)
        return page if isinstance(page, Page) else None
