"""Layouts of generated pages: what is around the main content, and where."""

from __future__ import annotations

import random
from html import escape

from openafm.data.sites.chrome import Chrome, PageParts
from openafm.data.sites.cms_layouts import CMS_LAYOUTS, render_cms_layout
from openafm.data.sites.texts import SentenceWriter

LAYOUTS = ("semantic", "blog", "news", "docs", "forum", "tables", "bare", "utility")
"""The default layouts of a site."""

ALL_LAYOUTS = (*LAYOUTS, *CMS_LAYOUTS)


def render_layout(rng: random.Random, layout: str, writer: SentenceWriter, parts: PageParts) -> str:
    """Return the HTML of a page in one of `ALL_LAYOUTS`."""
    chrome = Chrome(rng, writer, parts)
    body = render_cms_layout(rng, layout, chrome, parts) if layout in CMS_LAYOUTS else _body(rng, layout, chrome, parts)
    direction = f'<html lang="{parts.language}">' if rng.random() < 0.9 else "<html>"
    return f"<!DOCTYPE html>\n{direction}{chrome.head()}<body>{body}{parts.script}</body></html>\n"


def _body(rng: random.Random, layout: str, chrome: Chrome, parts: PageParts) -> str:
    return {
        "semantic": _semantic,
        "blog": _blog,
        "news": _news,
        "docs": _docs,
        "forum": _forum,
        "tables": _tables,
        "bare": _bare,
        "utility": _utility,
    }[layout](rng, chrome, parts)


def _title(parts: PageParts) -> str:
    return f"<h1>{escape(parts.title)}</h1>"


def _semantic(rng: random.Random, chrome: Chrome, parts: PageParts) -> str:
    return (
        f"<header>{chrome.navigation('nav')}</header>{chrome.breadcrumbs() if rng.random() < 0.5 else ''}<main><article>"
        f"{_title(parts)}{chrome.byline()}{parts.main}{chrome.share_bar()}</article>{chrome.comments()}</main>"
        f"{chrome.sidebar() if rng.random() < 0.5 else ''}{chrome.footer()}{chrome.optional_banner(0.6)}"
    )


def _blog(rng: random.Random, chrome: Chrome, parts: PageParts) -> str:
    content = rng.choice(("entry-content", "post-body", "post_content", "blog-text"))
    return (
        f'<div id="wrapper"><div id="header">{chrome.navigation("div")}</div>{chrome.sidebar("div")}<div class="post">'
        f'{_title(parts)}<div class="meta">{chrome.byline()}</div>'
        f'<div class="{content}">{parts.main}</div>{chrome.share_bar()}'
        f"</div>{chrome.comments(10)}{chrome.footer('div')}</div>{chrome.optional_banner(0.4)}"
    )


def _news(rng: random.Random, chrome: Chrome, parts: PageParts) -> str:
    middle = parts.main.find("</p>") + 4
    first, rest = (parts.main[:middle], parts.main[middle:]) if middle > 3 else (parts.main, "")
    return (
        f"{chrome.cookie_banner()}{chrome.navigation('nav')}{chrome.breadcrumbs()}<article>{_title(parts)}{chrome.byline()}"
        f"{first}{chrome.related() if rng.random() < 0.5 else ''}{rest}</article>{chrome.related('h2')}{chrome.comments()}"
        f"{chrome.sidebar()}{chrome.footer()}"
    )


def _docs(rng: random.Random, chrome: Chrome, parts: PageParts) -> str:
    return (
        f'<div class="docs"><div class="toc">{chrome.navigation("div")}{chrome.related("h4")}</div>'
        f'<div class="body" role="main">{_title(parts)}{parts.main}</div></div>{chrome.footer()}'
    )


def _forum(rng: random.Random, chrome: Chrome, parts: PageParts) -> str:
    return (
        f'{chrome.navigation("div")}{chrome.breadcrumbs()}{_title(parts)}<div class="thread"><div class="message">'
        f'<div class="user">{escape(parts.author)}</div><div class="content">{parts.main}</div></div></div>'
        f"{chrome.related('h3')}{chrome.footer('div')}"
    )


def _tables(rng: random.Random, chrome: Chrome, parts: PageParts) -> str:
    return (
        f'<table width="100%"><tr><td colspan="2">{chrome.navigation("div")}</td></tr><tr><td valign="top">'
        f"{chrome.related('b')}</td><td>{_title(parts)}{parts.main}</td></tr><tr><td>{chrome.footer('div')}</td></tr></table>"
    )


def _bare(rng: random.Random, chrome: Chrome, parts: PageParts) -> str:
    return f"{_title(parts)}{parts.main}<hr>{chrome.footer('div') if rng.random() < 0.5 else ''}"


def _utility(rng: random.Random, chrome: Chrome, parts: PageParts) -> str:
    """Generated class names without meaning, as CSS tools write them."""
    names = [f"css-{rng.randrange(16**6):06x}" for _ in range(5)]
    return (
        f'<div class="{names[0]}"><div class="{names[1]}">{chrome.navigation("div")}</div>'
        f'<div class="{names[2]}">{_title(parts)}<div class="{names[3]}">{parts.main}</div>{chrome.share_bar()}</div>'
        f'<div class="{names[4]}">{chrome.related("div")}</div>'
        f"{chrome.comments(4)}{chrome.footer('div')}</div>{chrome.optional_banner(0.6)}"
    )
