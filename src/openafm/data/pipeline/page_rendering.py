"""Rendering inside a pipeline: pages that scripts build, from what their WARC file itself has."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from openafm.data.rendering.archive import ArchivedResources
from openafm.data.rendering.config import RenderConfig
from openafm.data.rendering.detector import needs_rendering
from openafm.data.rendering.renderer import Rendered, Renderer, RenderError
from openafm.data.web.documents import Page
from openafm.data.web.permissions.opt_out import training_opt_out
from openafm.data.web.warc import DOM_TYPE

MISSING_KEY = "rendering.missing"
"""The number of scripts and data that are not in the WARC file, in the metadata of a rendered document."""
FAILED_KEY = "rendering.failed"
"""Why a page stays static: the reason of a `RenderError`."""


class PageRenderer:
    """Renders pages of one WARC file at a time, in one browser that starts with the first page that needs it."""

    def __init__(self, config: RenderConfig) -> None:
        self._config = replace(config, concurrency=1, screenshot=False)
        self._loop = asyncio.Runner()
        self._resources = ArchivedResources()
        self._renderer: Renderer | None = None

    def open(self, path: Path) -> None:
        """Take the scripts and data of the next pages from this file."""
        self.close()
        self._resources = ArchivedResources(path)

    def close(self) -> None:
        """End the browser."""
        renderer, self._renderer = self._renderer, None
        if renderer is not None:
            self._loop.run(renderer.__aexit__(None, None, None))

    def render(self, page: Page) -> Page:
        """Return the page with its DOM; the page itself if it needs no scripts, and with a note if rendering fails.

        Raises:
            RenderingUnavailableError: Chromium does not start.
        """
        if not needs_rendering(page):
            return page
        try:
            rendered = self._loop.run(self._rendered(page))
        except RenderError as error:
            return replace(page, notes={**page.notes, FAILED_KEY: error.reason})
        missing = sum(request.outcome == "failed" for request in rendered.requests)
        return replace(
            page,
            body=rendered.dom,
            headers={**page.headers, "content-type": DOM_TYPE},
            rendered=True,
            opt_out=page.opt_out or training_opt_out(page.url, {}, rendered.dom),  # a script may add a meta element
            notes={**page.notes, MISSING_KEY: str(missing)} if missing else page.notes,
        )

    async def _rendered(self, page: Page) -> Rendered:
        if self._renderer is None:
            self._renderer = await Renderer(self._config, self._resources).__aenter__()
        return await self._renderer.render(page.url, page.body, content_type=page.content_type)
