"""Render pages that JavaScript builds, with the system's Chromium (`renderer.py`).

async with RenderConfig().build() as renderer:
    if needs_rendering(page):
        rendered = await renderer.render(page.url, page.body)
"""

from openafm.data.rendering.config import RenderConfig
from openafm.data.rendering.detector import needs_rendering

__all__ = ["RenderConfig", "needs_rendering"]
