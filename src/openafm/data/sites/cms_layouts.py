"""Layouts as content management systems write them: blogs, portals, institutions, threads and pages with line breaks.

They are not among the default layouts of a site. The block classifier is trained on them: comments, teasers, author boxes
and archives next to texts that may be as short as one paragraph.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from html import escape

from openafm.data.sites.chrome import Chrome, PageParts

_NAMES = (  # class names around the page, the article and its text
    ("site-content", "post hentry type-post", "entry-content"),
    ("main-col", "csc-default", "csc-textpic-text"),
    ("region region-content", "node node-article", "field-name-body field-item"),
    ("item-page", "blog-item", "article-content"),
    ("main-column", "artikel", "artikeltext"),
    ("blog-posts hfeed", "post-outer", "post-body"),
    ("inhalt", "beitrag", "text"),
    ("container", "row", "col-md-8"),
    ("wrap", "single", "the-content"),
    ("layout", "box", "box-inner"),
)
_MONTHS = ("01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11", "12")


class _Page:
    """Draw the parts of one page with the class names of one system."""

    def __init__(self, rng: random.Random, chrome: Chrome, parts: PageParts) -> None:
        self.rng, self.chrome, self.parts = rng, chrome, parts
        self.outer, self.article, self.text = rng.choice(_NAMES)
        self.heading = rng.choice(("h1", "h1", "h2", "h3"))

    def some(self, share: float, html: str) -> str:
        """Return the HTML in a share of the cases, otherwise an empty string."""
        return html if self.rng.random() < share else ""

    def title(self) -> str:
        """Return the title, in some cases as a link to the page itself."""
        text = escape(self.parts.title)
        inner = f'<a href="{self.parts.url}" rel="bookmark">{text}</a>' if self.rng.random() < 0.4 else text
        return f'<{self.heading} class="entry-title">{inner}</{self.heading}>'

    def paragraph(self, num_sentences: int) -> str:
        """Return sentences that are not part of the main text."""
        return escape(self.chrome.writer.paragraph(self.rng, self.parts.topic, num_sentences))

    def person(self) -> str:
        """Return a name."""
        return escape(self.chrome.writer.person(self.rng))

    def details(self) -> str:
        """Return date, author and topic in one line."""
        topic = f'<a href="/tag/1" rel="tag">{escape(self.parts.topic)}</a>'
        pieces = [self.parts.date, f"{self.chrome.word('by')} {escape(self.parts.author)}", topic]
        self.rng.shuffle(pieces)
        name = self.rng.choice(("entry-meta", "postinfo", "submitted", "artikelinfo", "info"))
        return f'<div class="{name}">{" | ".join(pieces)}</div>'

    def author_box(self) -> str:
        """Return a text about the author."""
        name = self.rng.choice(("author-box", "about-author", "autor", "vcard"))
        return f'<div class="{name}"><h4>{escape(self.parts.author)}</h4><p>{self.paragraph(2)}</p></div>'

    def neighbors(self) -> str:
        """Return links to the previous and the next post."""
        links = [f'<a href="{path}">&laquo; {escape(title)}</a>' for path, title in self.parts.links[:2]]
        return f'<div class="{self.rng.choice(("navigation", "post-nav", "pager"))}">{" ".join(links)}</div>'

    def teasers(self) -> str:
        """Return other articles, each with some of its sentences."""
        items = [
            f'<div class="teaser"><h3><a href="{path}">{escape(title)}</a></h3><p>{self.paragraph(self.rng.randint(1, 3))} '
            f'<a href="{path}">{self.chrome.word("more")}</a></p></div>'
            for path, title in self.parts.links[: self.rng.randint(1, 6)]
        ]
        name = self.rng.choice(("teaserliste", "related-posts", "more-news", "block", "news-list", "row"))
        return f'<div class="{name}"><h2>{self.chrome.word("related")}</h2>{"".join(items)}</div>'

    def comments(self) -> str:
        """Return a list of comments of any length, some below others, and a form."""
        items = []
        for _ in range(self.rng.randrange(9)):
            reply = f'<ul class="children"><li><p>{self.paragraph(1)}</p></li></ul>' if self.rng.random() < 0.2 else ""
            items.append(
                f'<li class="comment"><div class="comment-author vcard"><cite>{self.person()}</cite>:</div>'
                f'<div class="comment-meta"><a href="#c">{self.parts.date} 12:{self.rng.randint(10, 59)}</a></div>'
                f"<p>{self.paragraph(self.rng.randint(1, 6))}</p>{reply}</li>"
            )
        tag = self.rng.choice(("ol", "ul"))
        listed = f'<{tag} class="{self.rng.choice(("commentlist", "kommentare", "comment-list"))}">{"".join(items)}</{tag}>'
        form = f'<div id="respond"><h3>{self.chrome.word("reply")}</h3><form><p>{self.paragraph(1)}</p></form></div>'
        title = f"<h3>{len(items)} {self.chrome.word('comments')}</h3>"
        return f'<div id="comments">{title}{listed if items else ""}{form}</div>'

    def widgets(self) -> str:
        """Return a column of boxes: texts, recent posts, an archive, a cloud of topics."""
        recent = "".join(f'<li><a href="{path}">{escape(title)}</a></li>' for path, title in self.parts.links)
        archive = "".join(f'<li><a href="/a">{month}/20{self.rng.randint(10, 25)}</a></li>' for month in _MONTHS)
        cloud = " ".join(f'<a href="/t">{escape(topic)}</a>' for topic in self.chrome.writer.topics[:9])
        boxes = [
            f"<h3>{self.chrome.word('about')}</h3><p>{self.paragraph(self.rng.randint(1, 4))}</p>",
            f"<h3>{self.chrome.word('related')}</h3><ul>{recent}</ul>",
            f"<ul>{archive}</ul>",
            f"<div>{cloud}</div>",
            f"<h3>{self.chrome.word('contact')}</h3><p>{self.person()}<br>{self.rng.randint(10000, 99999)}</p>",
            f"<p>{self.chrome.word('newsletter')}</p>",
        ]
        chosen = self.rng.sample(boxes, self.rng.randint(1, len(boxes)))
        name = self.rng.choice(("widget", "sidebox", "block block-views", "modul", "panel", "csc-default", "box"))
        column = self.rng.choice(("sidebar", "rechts", "col-md-4", "secondary", "marginal", "widget-area"))
        return f'<div id="{column}">' + "".join(f'<div class="{name}">{box}</div>' for box in chosen) + "</div>"

    def framed(self, inner: str) -> str:
        """Return the page around its middle part. The column of boxes is before or after it."""
        widgets = self.some(0.7, self.widgets())
        first, last = (widgets, "") if self.rng.random() < 0.4 else ("", widgets)
        return (
            f'<div id="page">{self.chrome.navigation(self.rng.choice(("div", "nav")))}'
            f"{self.some(0.4, self.chrome.breadcrumbs())}{first}<div class='{self.outer}'>{inner}</div>{last}"
            f"{self.chrome.footer(self.rng.choice(('div', 'footer')))}</div>{self.chrome.optional_banner(0.5)}"
        )


def render_cms_layout(rng: random.Random, layout: str, chrome: Chrome, parts: PageParts) -> str:
    """Return the body of a page in one of `CMS_LAYOUTS`."""
    page = _Page(rng, chrome, parts)
    return page.framed(_LAYOUTS[layout](page))


def _post(page: _Page) -> str:
    details = page.details()
    before, after = (details, "") if page.rng.random() < 0.6 else ("", details)
    return (
        f'<div class="{page.article}">{page.title()}{before}<div class="{page.text}">{page.parts.main}'
        f"{page.some(0.3, page.chrome.share_bar())}</div>{after}{page.some(0.3, page.author_box())}</div>"
        f"{page.some(0.5, page.neighbors())}{page.some(0.3, page.teasers())}{page.some(0.7, page.comments())}"
    )


def _portal(page: _Page) -> str:
    pieces = list(page.parts.pieces)
    inserts = (page.chrome.related(), page.chrome.share_bar(), f'<div class="box"><p>{page.paragraph(2)}</p></div>')
    for _ in range(page.rng.randint(0, 2)):
        pieces.insert(page.rng.randint(1, len(pieces)), page.rng.choice(inserts))
    return (
        f'<div class="{page.article}">{page.title()}{page.details()}{"".join(pieces)}</div>{page.teasers()}'
        f"{page.some(0.4, page.comments())}{page.some(0.5, page.teasers())}"
    )


def _breaks(page: _Page) -> str:
    """Paragraphs as text between line breaks, in one element."""
    text = "".join(
        piece[3:-4] + "<br><br>\n" if piece.startswith("<p>") and piece.endswith("</p>") else piece
        for piece in page.parts.pieces
    )
    tag = page.rng.choice(("div", "div", "td", "font", "center"))
    inner = f"<table><tr><td>{text}</td></tr></table>" if tag == "td" else f"<{tag}>{text}</{tag}>"
    after = page.some(0.4, page.teasers()) + page.some(0.3, page.comments())
    return f"{page.title()}{page.some(0.5, page.details())}{inner}{after}"


def _institution(page: _Page) -> str:
    """Each part of the text in elements of its own, without an element around all of it."""
    parts = "".join(
        f'<div class="{page.article}"><div class="{page.text}">{piece}</div></div>' for piece in page.parts.pieces
    )
    return f"{page.title()}{parts}{page.some(0.4, page.teasers())}"


def _thread(page: _Page) -> str:
    """The text in messages of different people, with signatures that are not part of it."""
    pieces = page.parts.pieces
    step = page.rng.randint(1, 3)
    messages = [
        f'<div class="post"><div class="user"><b>{page.person()}</b><br>{page.parts.date}</div><div class="content">'
        f"{''.join(pieces[start : start + step])}</div>{page.some(0.4, f'<div class=signature>{page.paragraph(1)}</div>')}"
        f'<div class="buttons"><a href="#q">{page.chrome.word("reply")}</a></div></div>'
        for start in range(0, len(pieces), step)
    ]
    return f'{page.title()}<div class="{page.rng.choice(("thread", "topic", "posts"))}">{"".join(messages)}</div>'


_LAYOUTS: Mapping[str, Callable[[_Page], str]] = {
    "post": _post,
    "portal": _portal,
    "breaks": _breaks,
    "institution": _institution,
    "thread": _thread,
}
CMS_LAYOUTS = tuple(_LAYOUTS)
