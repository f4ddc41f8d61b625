"""What the crawler needs of a renderer of pages that scripts build; `data.rendering` is one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from openafm.data.web.documents import Page

Refusal = Callable[[str], Awaitable[str]]
"""Returns why a rendered page must not request a URL; empty if it may."""


class Rendered(Protocol):
    """What a renderer returns: the DOM as UTF-8 and a PNG screenshot, empty without one."""

    @property
    def dom(self) -> bytes: ...

    @property
    def screenshot(self) -> bytes: ...


class Renderer(Protocol):
    """Renders pages that need JavaScript (`data.rendering`)."""

    def needs_rendering(self, page: Page) -> bool: ...

    async def render(
        self, url: str, html: bytes | None = None, *, content_type: str = "", refusal: Refusal | None = None
    ) -> Rendered: ...
