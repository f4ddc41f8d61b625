"""A generated web site with the gold main text of each page, for tests, figures and training of the web pipeline."""

from __future__ import annotations

import datetime
import hashlib
import random
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import escape

from openafm.core.config import Config
from openafm.data.sites.chrome import PageParts
from openafm.data.sites.cms_layouts import CMS_LAYOUTS
from openafm.data.sites.content import ContentBlock, draw_article, draw_reference_page, joined_text
from openafm.data.sites.layouts import ALL_LAYOUTS, LAYOUTS, render_layout
from openafm.data.sites.pictures import Asset, with_pictures
from openafm.data.sites.scripts import SCRIPT_KINDS, page_data, scripted_content
from openafm.data.sites.texts import SentenceWriter, chrome_words
from openafm.data.synthetic.languages import LANGUAGES

ROBOTS = {
    "open": "User-agent: *\nDisallow: /private/\nSitemap: {origin}/sitemap.xml\n",
    "delay": "User-agent: *\nCrawl-delay: 1\nDisallow: /private/\nSitemap: {origin}/sitemap.xml\n",
    "closed": "User-agent: *\nDisallow: /\n",
    "no_training": (
        "User-agent: *\nDisallow: /private/\n\nUser-agent: Applebot-Extended\nDisallow: /\nSitemap: {origin}/sitemap.xml\n"
    ),
    "googlebot": "User-agent: Googlebot\nDisallow: /private/\n\nUser-agent: *\nDisallow: /\n",
}
ROBOTS_KINDS = (*ROBOTS, "missing", "error", "endless", "redirect")
"""Variants of robots.txt. The last four answer 404, 503, a body without end, and a redirect to `/robots2.txt`."""

CHARSETS: Mapping[str, tuple[str, ...]] = {
    "ja": ("shift_jis", "euc-jp"),
    "ko": ("euc-kr",),
    "zh-Hans": ("gb18030",),
    "zh-Hant": ("big5",),
    "tr": ("iso-8859-9",),
    "vi": ("windows-1258",),
}
_LATIN = ("windows-1252", "iso-8859-1")
_LICENSES = ("", "", "https://creativecommons.org/licenses/by/4.0/", "https://creativecommons.org/licenses/by-sa/4.0/")
_OPT_OUTS: tuple[tuple[Mapping[str, str], str], ...] = (
    ({"x-robots-tag": "noai, noimageai"}, ""),
    ({"tdm-reservation": "1"}, ""),
    ({"x-robots-tag": "noindex"}, ""),
    ({}, '<meta name="robots" content="noai">'),
    ({}, '<meta name="tdm-reservation" content="1">'),
)


@dataclass(frozen=True, kw_only=True)
class SitePage:
    """A generated page.

    `html` is the payload in the declared encoding; `text` is the gold main text in plain lines, without the title. If
    `needs_script`, a part of the text is not in `html`; `script` is the kind, one of `SCRIPT_KINDS`. `opt_out` is True if
    the page reserves use for training. `copy_of` is the path of the page of which this one is a near duplicate.
    """

    path: str
    html: bytes
    text: str
    language: str
    title: str = ""
    author: str = ""
    date: str = ""
    license: str = ""
    layout: str = ""
    script: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200
    opt_out: bool = False
    copy_of: str = ""

    @property
    def needs_script(self) -> bool:
        """True if a script adds a part of the main text."""
        return bool(self.script)


@dataclass(frozen=True, kw_only=True)
class Site:
    """A generated site. `pages` and `assets` are by path; `links` are the paths that each index page links to.

    `robots_txt` holds `{origin}` where the server writes its own origin; `robots` is the variant. `traps` is True if the
    server answers the endless paths below `/calendar/`, `/filter` and `/session`.
    """

    pages: Mapping[str, SitePage]
    assets: Mapping[str, Asset]
    robots: str
    robots_txt: str
    traps: bool

    @property
    def articles(self) -> tuple[SitePage, ...]:
        """The pages that have a main text, in order."""
        return tuple(page for page in self.pages.values() if page.text)


@dataclass(frozen=True, kw_only=True)
class SiteConfig(Config):
    """Config of a generated site; equal configs give equal bytes.

    Shares are of `num_pages`: `script_share` built by scripts, `charset_share` in an encoding other than UTF-8,
    `opt_out_share` reserved from training, `duplicate_share` near duplicates of an earlier page. `scripts` and `layouts` are
    the kinds to draw from. With `pictures`, each figure has a drawn picture (`pictures.KINDS`); else one of 8 plain images.
    """

    seed: int = 0
    num_pages: int = 100
    languages: tuple[str, ...] = LANGUAGES
    layouts: tuple[str, ...] = LAYOUTS
    scripts: tuple[str, ...] = SCRIPT_KINDS
    script_share: float = 0.2
    charset_share: float = 0.1
    opt_out_share: float = 0.05
    duplicate_share: float = 0.0
    robots: str = "open"
    traps: bool = True
    pictures: bool = False

    def __post_init__(self) -> None:
        self.require(self.num_pages >= 1, f"num_pages is {self.num_pages}; use 1 or more")
        self.require(
            self.robots in ROBOTS_KINDS, f"unknown robots variant '{self.robots}'; use one of {', '.join(ROBOTS_KINDS)}"
        )
        for name, values, known in (
            ("language", self.languages, LANGUAGES),
            ("layout", self.layouts, ALL_LAYOUTS),
            ("script", self.scripts, SCRIPT_KINDS),
        ):
            unknown = sorted(set(values) - set(known))
            self.require(
                bool(values) and not unknown,
                f"{name}s must be some of {', '.join(known)}; got {', '.join(unknown) or 'none'}",
            )

    def build(self) -> Site:
        """Generate the site."""
        return generate_site(self)


def generate_site(config: SiteConfig) -> Site:
    """Return the site of a config. Pages are at `/<language>/<number>.html`, with an index at `/` and at `/<language>/`."""
    drafts = [_draft(config, index) for index in range(config.num_pages)]
    pictures: dict[str, Asset] = {}
    if config.pictures:
        drafts = [_with_pictures(draft, pictures) for draft in drafts]
    links = {
        language: [(draft.path, draft.title) for draft in drafts if draft.language == language]
        for language in config.languages
    }
    pages: dict[str, SitePage] = {}
    assets: dict[str, Asset] = {
        f"/images/{index}.png": Asset(body=_image(index), content_type="image/png") for index in range(8)
    }
    assets |= pictures
    for index, draft in enumerate(drafts):
        page = _page(config, index, draft, links[draft.language])
        if page.needs_script:
            data = page_data([block.html for block in draft.blocks]).encode()
            assets[f"/api/{index}.json"] = Asset(body=data, content_type="application/json")
        pages[page.path] = page
    for language, of_language in links.items():
        pages[f"/{language}/"] = _index_page(f"/{language}/", language, of_language, config.traps)
    roots = [(f"/{language}/", language) for language in config.languages]
    pages["/"] = _index_page("/", config.languages[0], roots, config.traps)
    private = config.languages[0]
    pages["/private/1.html"] = _index_page("/private/1.html", private, [], False)
    return Site(
        pages=pages,
        assets=assets,
        robots=config.robots,
        robots_txt=ROBOTS.get(config.robots, ROBOTS["open"]),
        traps=config.traps,
    )


@dataclass(frozen=True, kw_only=True)
class _Draft:
    path: str
    language: str
    topic: str
    layout: str
    title: str
    blocks: tuple[ContentBlock, ...]
    copy_of: str


def _generator(config: SiteConfig, index: int, purpose: str) -> random.Random:
    return random.Random(f"{config.seed}/{index}/{purpose}")


def _draft(config: SiteConfig, index: int) -> _Draft:
    rng = _generator(config, index, "draft")
    language = config.languages[index % len(config.languages)]
    path = f"/{language}/{index}.html"
    source = index - len(config.languages)
    if source >= 0 and rng.random() < config.duplicate_share:
        original = _draft(config, source)
        blocks = original.blocks[:-1] if len(original.blocks) > 3 else original.blocks
        return _Draft(
            path=path,
            language=language,
            topic=original.topic,
            layout=rng.choice(config.layouts),
            title=original.title,
            blocks=blocks,
            copy_of=original.copy_of or original.path,
        )
    writer = SentenceWriter(language)
    layout = config.layouts[(index // len(config.languages) + index) % len(config.layouts)]
    topic = rng.choice(writer.topics)
    draw = draw_reference_page if layout == "docs" else draw_article
    blocks = draw(rng, writer, topic, rng.randint(1 if layout in CMS_LAYOUTS else 3, 14))
    return _Draft(
        path=path, language=language, topic=topic, layout=layout, title=writer.heading(rng, topic), blocks=blocks, copy_of=""
    )


def _with_pictures(draft: _Draft, pictures: dict[str, Asset]) -> _Draft:
    blocks = (replace(block, html=with_pictures(block.html, draft.path, pictures)) for block in draft.blocks)
    return replace(draft, blocks=tuple(blocks))


def _page(config: SiteConfig, index: int, draft: _Draft, links: list[tuple[str, str]]) -> SitePage:
    rng = _generator(config, index, "page")
    writer = SentenceWriter(draft.language)
    script = config.scripts[index % len(config.scripts)] if rng.random() < config.script_share else ""
    charset = rng.choice(CHARSETS.get(draft.language, _LATIN)) if rng.random() < config.charset_share else "utf-8"
    opt_out = rng.random() < config.opt_out_share
    more_headers, meta = rng.choice(_OPT_OUTS) if opt_out else ({}, "")
    pieces, script_html = [block.html for block in draft.blocks], ""
    if script:
        words = dict(chrome_words(draft.language))
        main, script_html = scripted_content(script, pieces, f"/api/{index}.json", words)
        pieces = [main]
    others = [link for link in links if link[0] != draft.path]
    date = (datetime.date(2020, 1, 1) + datetime.timedelta(days=rng.randrange(2200))).isoformat()
    parts = PageParts(
        url=draft.path,
        title=draft.title,
        author=writer.person(rng),
        date=date,
        language=draft.language,
        topic=draft.topic,
        license=rng.choice(_LICENSES),
        main="".join(pieces),
        pieces=pieces,
        links=rng.sample(others, min(6, len(others))),
        meta=meta,
        script=script_html,
        charset=charset,
    )
    body = render_layout(rng, draft.layout, writer, parts).encode(charset, "xmlcharrefreplace")
    declared = f"; charset={charset}" if rng.random() < 0.6 else ""
    return SitePage(
        path=draft.path,
        html=body,
        text=joined_text(draft.blocks),
        language=draft.language,
        title=draft.title,
        author=parts.author,
        date=date,
        license=parts.license,
        layout=draft.layout,
        script=script,
        headers=_headers(body, f"text/html{declared}", date) | dict(more_headers),
        opt_out=opt_out,
        copy_of=draft.copy_of,
    )


def _index_page(path: str, language: str, links: list[tuple[str, str]], traps: bool) -> SitePage:
    """A page of links, without a main text."""
    trap_links = [("/calendar/2026/1", "2026"), ("/filter?page=1", "1"), ("/session?sid=0", "0")] if traps else []
    hidden = [("/private/1.html", "private")]
    items = "".join(f'<li><a href="{target}">{escape(title)}</a></li>' for target, title in [*links, *trap_links, *hidden])
    title = chrome_words(language)["home"]
    html = (
        f'<!DOCTYPE html>\n<html lang="{language}"><head><meta charset="utf-8"><title>{escape(title)}</title></head>'
        f"<body><h1>{escape(title)}</h1><ul>{items}</ul></body></html>\n"
    ).encode()
    return SitePage(
        path=path,
        html=html,
        text="",
        language=language,
        title=title,
        layout="index",
        headers=_headers(html, "text/html; charset=utf-8", "2026-01-01"),
    )


def _headers(body: bytes, content_type: str, date: str) -> dict[str, str]:
    modified = datetime.date.fromisoformat(date).strftime("%a, %d %b %Y 00:00:00 GMT")
    return {"content-type": content_type, "etag": f'"{hashlib.sha256(body).hexdigest()[:16]}"', "last-modified": modified}


def _image(index: int) -> bytes:
    """A PNG of 320 x 200 pixels in one color."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = b"\x00" + bytes((index * 30, 255 - index * 30, 128)) * 320
    header = struct.pack(">IIBBBBB", 320, 200, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row * 200)) + chunk(b"IEND", b"")
