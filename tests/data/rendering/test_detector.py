"""Which pages need JavaScript: precision and recall on generated sites, and forms that applications use."""

from __future__ import annotations

import re
import time

import pytest

from openafm.data.rendering.detector import needs_rendering
from openafm.data.sites import SiteConfig
from openafm.data.web.documents import Page

SITE = SiteConfig(seed=5, num_pages=200, languages=("en", "ja"), script_share=0.4)
TEXT = "<p>" + "The harbor of the old town has a long wall of gray stone. " * 12 + "</p>"


def page(html: str) -> Page:
    return Page(url="https://example.com/", body=html.encode())


def _counts(names_are_usual: bool) -> tuple[int, int, int]:
    """Hits, false alarms and misses on a generated site."""
    hits = alarms = misses = 0
    for each in SITE.build().articles:
        html = each.html if names_are_usual else re.sub(rb"""(['"])app\1""", rb"\1x81f\1", each.html)
        found = needs_rendering(Page(url=each.path, body=html, headers=each.headers))
        hits += found and each.needs_script
        alarms += found and not each.needs_script
        misses += not found and each.needs_script
    return hits, alarms, misses


@pytest.mark.parametrize("names_are_usual", [True, False])
def test_precision_and_recall_on_generated_sites(names_are_usual: bool) -> None:
    hits, alarms, misses = _counts(names_are_usual)
    assert hits > 60
    assert hits / (hits + misses) >= 0.98
    assert hits / (hits + alarms) >= 0.95


@pytest.mark.parametrize(
    "html",
    [
        '<div id="root"></div><script src="/main.js"></script>',
        '<div id="__next"> <!-- filled later --></div><script type="module" src="/_next/app.js"></script>',
        f'{TEXT}<article id="story-9"></article><script>fetch("/9").then(r => show(r, "story-9"))</script>',
        f'{TEXT}<div role="tab">More</div><script>tabs.onclick = () => box.append(next())</script>',
        "<p>Loading</p><script src='/bundle.js'></script>",
        "<script>document.write(text)</script>",
    ],
)
def test_pages_of_applications_need_rendering(html: str) -> None:
    assert needs_rendering(page(f"<html><body>{html}</body></html>"))


@pytest.mark.parametrize(
    "html",
    [
        TEXT,
        f'{TEXT}<script src="https://www.googletagmanager.com/gtag/js"></script><script>dataLayer.push(1)</script>',
        f'{TEXT}<div id="ad-7"></div><script src="/theme.js"></script>',
        f'{TEXT}<script type="application/ld+json">{{"a": 1}}</script><div id="app"></div>',
        "<p>short</p>",
        "",
        "<script>",
        "<a " * 20_000,
        f"{TEXT}<!-- <script>document.write(1)</script>",
    ],
)
def test_static_pages_do_not(html: str) -> None:
    assert not needs_rendering(page(f"<html><body>{html}</body></html>"))


def test_a_rendered_page_is_not_rendered_again() -> None:
    html = b'<div id="root"></div><script src="/main.js"></script>'
    assert not needs_rendering(Page(url="https://example.com/", body=html, rendered=True))


def test_nested_tags_take_linear_time() -> None:
    start = time.process_time()
    needs_rendering(page("<script src='/main.js'></script>" + "<div id=a>" * 50_000))
    assert time.process_time() - start < 5.0
