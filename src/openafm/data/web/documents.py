"""What the stages of the web pipeline pass on: a fetched page, an extracted document, or the reason for a drop.

Report section 3.1. Opt-outs are two facts: what may be crawled is decided before a fetch; what may be trained on is carried
with every page and document in `opt_out`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Page:
    """A fetched page.

    `body` is the payload as received, after HTTP content decoding, or the UTF-8 document object model (DOM) if `rendered`.
    Header names are lower case. `opt_out` is the reason why the page must not be used for training; empty if it may be.
    `notes` are what earlier steps measured; the document takes them over in its metadata.
    """

    url: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200
    fetched_at: str = ""  # ISO 8601, UTC
    rendered: bool = False
    opt_out: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def content_type(self) -> str:
        """The HTTP Content-Type header with its parameters; empty without one."""
        return self.headers.get("content-type", "")


@dataclass(frozen=True, kw_only=True)
class Media:
    """An image or video of a document. `offset` is the character of the text before which it stands."""

    url: str
    kind: str = "image"
    alt: str = ""
    caption: str = ""
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class WebDocument:
    """A document extracted from a page. `text` is Markdown.

    `id` is a hash of the URL and the payload, so that it does not depend on the order of processing. `date` is ISO 8601.
    `confidence` is the F-score that the extractor expects of its choice of main content, from 0 to 1.
    """

    id: str
    url: str
    text: str
    language: str = ""
    title: str = ""
    author: str = ""
    date: str = ""
    license: str = ""
    media: tuple[Media, ...] = ()
    opt_out: str = ""
    extractor: str = ""
    confidence: float = 1.0
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """A page or document that a stage drops. `reason` is from the stage's documented list; `detail` is for a reader."""

    reason: str
    detail: str = ""
    url: str = ""
