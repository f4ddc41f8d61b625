"""Render pages that JavaScript builds, with the system's Chromium.

async with RenderConfig().build() as renderer:
    if needs_rendering(page):
        rendered = await renderer.render(page.url, page.body)
"""

from openafm.data.rendering.config import RenderConfig
from openafm.data.rendering.detector import needs_rendering
from openafm.data.rendering.renderer import (
    FAILURES,
    REASONS,
    Rendered,
    Renderer,
    RenderError,
    RenderingUnavailableError,
    check_installation,
)
from openafm.data.rendering.requests import PageRequest

__all__ = [
    "FAILURES",
    "REASONS",
    "PageRequest",
    "RenderConfig",
    "RenderError",
    "Rendered",
    "Renderer",
    "RenderingUnavailableError",
    "check_installation",
    "needs_rendering",
]
