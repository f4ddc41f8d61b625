"""The parts around the main content of generated pages: navigation, banners, sidebars, comments and footers."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from openafm.data.sites.texts import SentenceWriter, chrome_words

_STYLE = "body{font-family:sans-serif;max-width:60em;margin:auto}nav a{margin:.3em}aside{float:right;width:14em}"


@dataclass(frozen=True, kw_only=True)
class PageParts:
    """What a layout puts together. `main` is the HTML of the main content; `links` are paths with their titles."""

    url: str
    title: str
    author: str
    date: str
    language: str
    topic: str
    license: str
    main: str
    pieces: Sequence[str]  # what `main` joins
    links: Sequence[tuple[str, str]]
    meta: str = ""  # more HTML for the head
    script: str = ""  # HTML at the end of the body
    charset: str = "utf-8"


class Chrome:
    """Draw the parts around the main content of one page."""

    def __init__(self, rng: random.Random, writer: SentenceWriter, parts: PageParts) -> None:
        self._rng, self.writer, self._parts = rng, writer, parts
        self.words: Mapping[str, str] = chrome_words(parts.language)

    def word(self, key: str) -> str:
        """Return a word of navigation, escaped."""
        return escape(self.words[key])

    def optional_banner(self, share: float) -> str:
        """Return a consent banner in a share of the cases, otherwise an empty string."""
        return self.cookie_banner() if self._rng.random() < share else ""

    def navigation(self, kind: str) -> str:
        """Return a site menu in a `<kind>` element."""
        names = [self.words["home"], *self._rng.sample(self.writer.topics, min(6, len(self.writer.topics)))]
        items = [f'<a href="/{self._parts.language}/">{escape(names[0])}</a>']
        items += [f'<a href="/{self._parts.language}/#{index}">{escape(name)}</a>' for index, name in enumerate(names[1:])]
        listed = "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"
        inner = " ".join(items) if self._rng.random() < 0.5 else listed
        attribute = "" if kind == "nav" else f' class="{self._rng.choice(("menu", "nav-main", "topbar", "navigation"))}"'
        return f"<{kind}{attribute}>{inner}</{kind}>"

    def breadcrumbs(self) -> str:
        """Return the path of the page as links."""
        return (
            f'<div class="breadcrumb"><a href="/{self._parts.language}/">{self.word("home")}</a> &raquo; '
            f'<a href="/{self._parts.language}/?t=1">{escape(self._parts.topic)}</a> &raquo; '
            f"{escape(self._parts.title)}</div>"
        )

    def cookie_banner(self) -> str:
        """Return a consent banner."""
        name = self._rng.choice(("cookie-banner", "consent", "gdpr-notice", "cc-window"))
        return (
            f'<div id="{name}" class="{name}"><p>{self.word("cookies")} <a href="/privacy">{self.word("privacy")}'
            f'</a></p><button class="accept">{self.word("accept")}</button>'
            f'<button class="reject">{self.word("reject")}</button></div>'
        )

    def byline(self) -> str:
        """Return the author and date of the page."""
        return (
            f'<p class="byline">{self.word("by")} <a rel="author" href="/author/1">{escape(self._parts.author)}</a>, '
            f'<time datetime="{self._parts.date}">{self._parts.date}</time></p>'
        )

    def share_bar(self) -> str:
        """Return links to share the page."""
        links = " ".join(f'<a href="/share?to={name}">{name}</a>' for name in ("Mastodon", "E-Mail", "RSS"))
        return f'<div class="share">{self.word("share")}: {links}</div>'

    def related(self, heading: str = "h3") -> str:
        """Return links to other pages, in some cases with a teaser each."""
        items = []
        for path, title in self._parts.links[:6]:
            teaser = (
                f"<p>{escape(self.writer.sentence(self._rng, self._parts.topic))}</p>" if self._rng.random() < 0.4 else ""
            )
            items.append(f'<li><a href="{path}">{escape(title)}</a>{teaser}</li>')
        name = self._rng.choice(("related", "more-stories", "recommended", "teasers"))
        return f'<div class="{name}"><{heading}>{self.word("related")}</{heading}><ul>{"".join(items)}</ul></div>'

    def sidebar(self, tag: str = "aside") -> str:
        """Return a sidebar with links, an advertisement and a newsletter form."""
        text = self.writer.paragraph(self._rng, self._rng.choice(self.writer.topics), self._rng.randint(1, 3))
        return (
            f'<{tag} class="sidebar"><div class="widget"><h4>{self.word("about")}</h4><p>{escape(text)}</p></div>'
            f'{self.related("h4")}<form action="/newsletter"><p>{self.word("newsletter")}</p>'
            f'<input name="email"><button>OK</button></form></{tag}>'
        )

    def comments(self, most: int = 6) -> str:
        """Return reader comments, or an empty string."""
        comments = []
        for _ in range(self._rng.randrange(most + 1)):
            text = self.writer.paragraph(self._rng, self._parts.topic, self._rng.randint(1, 3))
            comments.append(
                f'<div class="comment"><span class="comment-author">{escape(self.writer.person(self._rng))}</span> '
                f'<span class="date">{self._parts.date}</span><p>{escape(text)}</p>'
                f'<a href="#r">{self.word("reply")}</a></div>'
            )
        if not comments:
            return ""
        return f'<section id="comments"><h3>{self.word("comments")} ({len(comments)})</h3>{"".join(comments)}</section>'

    def footer(self, tag: str = "footer") -> str:
        """Return the foot of the page."""
        links = " | ".join(f'<a href="/{key}">{self.word(key)}</a>' for key in ("about", "contact", "privacy"))
        return f'<{tag} class="footer"><p>&copy; {self._parts.date[:4]} {self.word("rights")}</p><p>{links}</p></{tag}>'

    def head(self) -> str:
        """Return the head of the page with its metadata."""
        parts = self._parts
        structured = {
            "@context": "https://schema.org",
            "@type": "Article",
            "headline": parts.title,
            "author": {"@type": "Person", "name": parts.author},
            "datePublished": parts.date,
            "inLanguage": parts.language,
        }
        data = json.dumps(structured, ensure_ascii=False).replace("</", "<\\/")
        lines = [
            f'<meta charset="{parts.charset}">',
            f"<title>{escape(parts.title)} - Example</title>",
            f'<meta name="author" content="{escape(parts.author)}">',
            f'<meta property="article:published_time" content="{parts.date}">',
            f'<link rel="canonical" href="{parts.url}">',
            f'<link rel="license" href="{parts.license}">' if parts.license else "",
            f'<script type="application/ld+json">{data}</script>' if self._rng.random() < 0.5 else "",
            f"<style>{_STYLE}</style>",
            parts.meta,
        ]
        return "<head>" + "\n".join(line for line in lines if line) + "</head>"
