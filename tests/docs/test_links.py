"""Relative links of all pages lead to files and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "src/**/*.md") for path in ROOT.glob(pattern)
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        path, _, heading = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), target
        if heading:
            assert heading in headings(found), target


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in plain}


def test_the_pages_are_found() -> None:
    assert len(PAGES) > 40
