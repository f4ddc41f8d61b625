"""Title, date, author, language, license and structured data of a page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

_MAX_VALUE = 1000  # characters of one value
_MAX_JSON = 1 << 20  # characters of one JSON-LD script
_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})")
_DATE_COMPACT = re.compile(r"^(\d{4})(\d{2})(\d{2})")
_LANGUAGE = re.compile(r"^[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*$")
_TITLES = ("og:title", "twitter:title", "dc.title")
_AUTHORS = ("author", "article:author", "dc.creator", "byl", "parsely-author", "sailthru.author")
_DATES = (
    "article:published_time",
    "datepublished",
    "date",
    "dc.date",
    "dc.date.issued",
    "pubdate",
    "publishdate",
    "parsely-pub-date",
    "sailthru.date",
    "og:published_time",
)
_LANGUAGES = ("og:locale", "content-language", "dc.language")
_OTHERS = {
    "description": ("description", "og:description"),
    "site_name": ("og:site_name",),
    "type": ("og:type",),
    "keywords": ("keywords",),
}
_RIGHTS = ("dc.rights",)
_NAMES = frozenset(
    (*_TITLES, *_AUTHORS, *_DATES, *_LANGUAGES, *_RIGHTS, *(name for names in _OTHERS.values() for name in names))
)
_LICENSE_URL = re.compile(r"creativecommons\.org/(?:licenses|publicdomain)/[\w./-]+")


_SOURCES = (
    'meta, link[rel="license"], link[rel="canonical"], script[type*="ld+json"], title, h1, time[datetime], '
    'a[rel*="license"], a[rel*="author"], base[href]'
)


@dataclass(frozen=True, kw_only=True)
class PageMetadata:
    """What a page states about itself; empty strings where it states nothing. `date` is ISO 8601.

    `base` is the `href` of its first base element, which relative URLs refer to.
    """

    title: str = ""
    author: str = ""
    date: str = ""
    language: str = ""
    license: str = ""
    base: str = ""
    more: Mapping[str, str] = field(default_factory=dict)


def read_metadata(root: LexborNode) -> PageMetadata:
    """Return the metadata of a DOM: JSON-LD first, then meta elements, then visible elements."""
    meta: dict[str, str] = {}
    structured: dict[str, str] = {}
    title = heading = license_url = time = author = canonical = base = ""
    for node in root.css(_SOURCES):
        tag = node.tag
        get = node.attributes.get
        if tag == "meta":
            name = (get("property") or get("name") or get("itemprop") or get("http-equiv") or "").lower()
            if name in _NAMES and (content := get("content")):
                meta.setdefault(name, _clean(content))
        elif tag == "a":
            rel = get("rel") or ""
            license_url = license_url or (_license(get("href")) if "license" in rel else "")
            author = author or (_clean(node.text()) if "author" in rel else "")
        elif tag == "link":
            if get("rel") == "license":
                license_url = license_url or _license(get("href"))
            else:
                canonical = canonical or _clean(get("href") or "")
        elif tag == "script":
            structured = _structured(node.text()) | structured
        elif tag == "title":
            title = title or _clean(node.text())
        elif tag == "h1":
            heading = heading or _clean(node.text())
        elif tag == "base":
            base = base or _clean(get("href") or "")
        elif tag == "time":
            time = time or iso_date(get("datetime") or "")
    more = {key: value for key, names in _OTHERS.items() if (value := _first(meta, names))}
    more |= {key: value for key, value in (("canonical", canonical), ("schema_type", structured.get("type", ""))) if value}
    language = (root.attributes.get("lang") or "").strip() or structured.get("language", "") or _first(meta, _LANGUAGES)
    return PageMetadata(
        title=structured.get("title", "") or _first(meta, _TITLES) or heading or title,
        author=structured.get("author", "") or _first(meta, _AUTHORS) or author,
        date=iso_date(structured.get("date", ""))
        or next((d for n in _DATES if (d := iso_date(meta.get(n, "")))), "")
        or time,
        language=language.replace("_", "-") if _LANGUAGE.match(language) else "",
        license=structured.get("license", "") or license_url or _first(meta, _RIGHTS),
        base=base,
        more=more,
    )


def iso_date(text: str) -> str:
    """Return the date at the start of a text as `YYYY-MM-DD`; empty if there is none or it does not exist."""
    import datetime

    match = _DATE.search(text[:40]) or _DATE_COMPACT.match(text)
    if match is None:
        return ""
    try:
        return datetime.date(int(match[1]), int(match[2]), int(match[3])).isoformat()
    except ValueError:
        return ""


def _structured(text: str) -> dict[str, str]:
    """The fields of the first article-like item in JSON-LD; empty for JSON that is malformed."""
    if len(text) > _MAX_JSON:
        return {}
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    found: dict[str, str] = {}
    for item in _items(data):
        kind = _string(item.get("@type"))
        if not ("headline" in item or "datePublished" in item or kind.endswith(("Article", "Posting", "Page"))):
            continue
        values = {
            "title": _string(item.get("headline")),
            "author": _names(item.get("author")),
            "date": _string(item.get("datePublished")),
            "language": _string(item.get("inLanguage")),
            "license": _string(item.get("license")),
            "type": kind,
        }
        found = {key: value for key, value in values.items() if value} | found
    return found


def _items(data: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    if depth > 4:
        return
    if isinstance(data, list):
        for item in data[:100]:
            yield from _items(item, depth + 1)
    elif isinstance(data, dict):
        yield data
        yield from _items(data.get("@graph"), depth + 1)
        yield from _items(data.get("mainEntity"), depth + 1)


def _names(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(filter(None, (_names(item) for item in value[:10])))
    return _string(value.get("name")) if isinstance(value, dict) else _string(value)


def _string(value: Any) -> str:
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, dict):
        value = value.get("name") or value.get("url") or value.get("@id")
    return _clean(value) if isinstance(value, str) else ""


def _first(meta: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((meta[name] for name in names if meta.get(name)), "")


def _license(href: str | None) -> str:
    url = _clean(href or "")
    match = _LICENSE_URL.search(url)
    return f"https://{match[0]}" if match else url


def _clean(text: str) -> str:
    return " ".join(text[: 4 * _MAX_VALUE].split())[:_MAX_VALUE]
