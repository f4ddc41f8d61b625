"""Opt-outs of publishers: may a page be used for training, may its links be followed.

What may be crawled is decided by robots.txt before a fetch. What may be trained on is a second fact, with these sources:

- a robots.txt group for a training agent, such as Applebot-Extended, that disallows the URL
- `Content-Signal: ai-train=no` in robots.txt
- meta robots and X-Robots-Tag: noai, noindex, none, nosnippet, max-snippet:0, noarchive
- the TDM Reservation Protocol: header, meta element, `/.well-known/tdmrep.json`
- a file of exceptions by publisher

If sources disagree, the page is opted out; only an exception of the publisher's own overrules that. All functions are pure.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from openafm.core.errors import UsageError
from openafm.data.web.permissions.robots import Robots, Rule, path_of
from openafm.data.web.tags import attributes
from openafm.data.web.urls import domain_of

TRAINING_AGENTS = ("OpenAFMBot-Extended", "Applebot-Extended")
"""Product tokens that decide use for training only, as Apple documents for Applebot-Extended."""
CRAWL_AGENT = "OpenAFMBot"
FALLBACK_AGENTS = ("Applebot", "Googlebot")
"""Whose group applies instead of `*` if robots.txt does not name the crawler, as Apple documents for Applebot."""

_NO_TRAINING = frozenset({"noai", "noindex", "none", "nosnippet", "noarchive", "max-snippet:0"})
_NO_IMAGES = frozenset({"noai", "noimageai", "noimageindex"})
_FOR_ALL_AGENTS = frozenset({"noai", "noimageai"})  # conventions for every agent, whichever a header names
_WITH_VALUE = frozenset({"max-snippet", "max-image-preview", "max-video-preview", "unavailable_after"})
_ROBOTS_META = frozenset({"robots", "openafmbot", "openafmbot-extended", "applebot", "applebot-extended"})
HEAD_BYTES = 256 * 1024
"""Bytes of a page in which meta elements are looked for."""


class ExceptionsError(UsageError):
    """The file of exceptions by publisher is malformed."""


@dataclass(frozen=True, kw_only=True)
class PublisherException:
    """An agreement with a publisher, which overrules what its pages declare.

    `path` is a pattern as in robots.txt. `crawl` may only be False: robots.txt is the place where a publisher allows
    crawling. `train` None leaves the decision to the page.
    """

    domain: str
    path: str = "/"
    crawl: bool = True
    train: bool | None = None
    reason: str = ""

    def applies(self, url: str) -> bool:
        """Return True if the URL is on the domain or below it and the path matches."""
        host = domain_of(url)
        is_on_domain = host == self.domain or host.endswith(f".{self.domain}")
        return is_on_domain and _pattern(self.path).matches(path_of(url))


def read_exceptions(path: Path) -> tuple[PublisherException, ...]:
    """Read a TOML file of `[[publisher]]` tables with the fields of `PublisherException`.

    Raises:
        ExceptionsError: the file is missing or malformed.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))["publisher"]
        found = tuple(PublisherException(**table) for table in tables)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExceptionsError(
            f"{path} is not a file of exceptions: {error}; "
            "expected [[publisher]] tables with domain, path, crawl, train, reason"
        ) from error
    for each in found:
        if not isinstance(each.domain, str) or not each.domain or type(each.crawl) is not bool:
            raise ExceptionsError(
                f"{path}: domain must be text and crawl true or false, got {each.domain!r}, {each.crawl!r}"
            )
        if each.train is not None and type(each.train) is not bool:
            raise ExceptionsError(f"{path}: train of {each.domain} must be true or false, got {each.train!r}")
    return found


def crawl_agent(robots: Robots, agent: str = CRAWL_AGENT, fallbacks: Sequence[str] = FALLBACK_AGENTS) -> str:
    """Return the agent whose group of robots.txt applies: the crawler itself, the first named fallback, or the crawler."""
    named = (each for each in (agent, *fallbacks) if robots.names(each))
    return next(named, agent)


def crawl_denial(url: str, exceptions: Iterable[PublisherException]) -> str:
    """Return why an exception forbids crawling a URL; empty if none does."""
    for each in exceptions:
        if not each.crawl and each.applies(url):
            return f"exception for {each.domain}: {each.reason or 'not to be crawled'}"
    return ""


def training_opt_out(
    url: str,
    headers: Mapping[str, str],
    body: bytes = b"",
    *,
    robots: Robots | None = None,
    tdm_file: bytes = b"",
    exceptions: Iterable[PublisherException] = (),
    agents: Sequence[str] = TRAINING_AGENTS,
    is_image: bool = False,
) -> str:
    """Return the reason why a page or an image must not be used for training; empty if it may be.

    `headers` has lower-case names; `tdm_file` is the origin's `/.well-known/tdmrep.json`. For an image, pass `is_image` and
    no body: noimageai and noimageindex apply to it too, and its bytes hold no meta elements.
    """
    no_training = _NO_TRAINING | _NO_IMAGES if is_image else _NO_TRAINING
    decided = [each for each in exceptions if each.train is not None and each.applies(url)]
    if decided:
        denied = [each for each in decided if not each.train]
        return f"exception for {denied[0].domain}: {denied[0].reason or 'not for training'}" if denied else ""
    for agent in agents:
        if robots is not None and robots.names(agent):
            decision = robots.decide(agent, url)
            if not decision.allowed:
                return f"{agent}: {decision}"
    if robots is not None and robots.content_signals(agents[0] if agents else "*").get("ai-train") == "no":
        return "robots.txt: Content-Signal: ai-train=no"
    if found := no_training & x_robots_directives(headers, agents):
        return f"X-Robots-Tag: {min(found)}"
    if headers.get("tdm-reservation", "").strip() == "1":
        return "header tdm-reservation"
    meta = meta_elements(body)
    if found := _NO_TRAINING & _meta_directives(meta):
        return f"meta robots: {min(found)}"
    if any(name == "tdm-reservation" and content.strip() == "1" for name, content in meta):
        return "meta tdm-reservation"
    return tdm_file_reservation(url, tdm_file)


def image_opt_out(headers: Mapping[str, str], body: bytes = b"", agents: Sequence[str] = TRAINING_AGENTS) -> str:
    """Return the reason why images of a page must not be used for training; empty if they may be."""
    if found := _NO_IMAGES & x_robots_directives(headers, agents):
        return f"X-Robots-Tag: {min(found)}"
    if found := _NO_IMAGES & _meta_directives(meta_elements(body)):
        return f"meta robots: {min(found)}"
    return ""


def follows_links(headers: Mapping[str, str], body: bytes = b"", agents: Sequence[str] = (CRAWL_AGENT, "Applebot")) -> bool:
    """Return False if the page declares nofollow or none."""
    return not {"nofollow", "none"} & (x_robots_directives(headers, agents) | _meta_directives(meta_elements(body)))


def x_robots_directives(headers: Mapping[str, str], agents: Sequence[str]) -> frozenset[str]:
    """Return the directives of X-Robots-Tag that apply to all agents or to one of `agents`, in lower case.

    `googlebot: noindex, nofollow` applies to that agent. Repeated headers are joined by line breaks (`join_headers`).
    noai and noimageai count whichever agent is named.
    """
    known = {agent.lower() for agent in agents}
    found = set()
    for line in headers.get("x-robots-tag", "").lower().splitlines():
        applies = True
        for part in line.split(","):
            name, colon, value = (piece.strip() for piece in part.partition(":"))
            if colon and name not in _WITH_VALUE:
                applies = name in known or any(agent.startswith(f"{name}-") for agent in known)
                directive = value
            else:
                directive = f"{name}:{value}" if colon else name
            if directive and (applies or directive in _FOR_ALL_AGENTS):
                found.add(directive)
    return frozenset(found)


def meta_elements(body: bytes) -> list[tuple[str, str]]:
    """Return name and content, both in lower case, of the meta elements of a page.

    Only robots and tdm names matter here, so the bytes are read as ASCII or UTF-16. An element inside a comment or script
    counts too: that errs on the side of the publisher.
    """
    head = body[:HEAD_BYTES]
    is_wide = head[:2] in (b"\xff\xfe", b"\xfe\xff")
    text = head.decode("utf-16" if is_wide else "latin-1", "replace").lower()
    found = []
    for element in text.split("<meta")[1:]:  # each part ends before the next element, so that the time is linear
        values = attributes(element)
        if "name" in values and "content" in values:
            found.append((values["name"].strip(), values["content"]))
    return found


def tdm_file_reservation(url: str, tdm_file: bytes) -> str:
    """Return the reason if `tdmrep.json` reserves the rights to a URL; the first matching location decides."""
    try:
        entries = json.loads(tdm_file) if tdm_file else []
    except (ValueError, RecursionError):
        return ""
    for entry in entries if isinstance(entries, list) else [entries]:
        location = entry.get("location") if isinstance(entry, dict) else None
        if isinstance(location, str) and _pattern(location).matches(path_of(url)):
            return f"tdmrep.json: {location}" if str(entry.get("tdm-reservation")) == "1" else ""
    return ""


def join_headers(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers by lower-case name. Repeated ones are joined by commas, X-Robots-Tag by line breaks.

    A header `bot: noindex` must not absorb the directives of the next header.
    """
    joined: dict[str, str] = {}
    for name, value in pairs:
        name = name.lower()
        separator = "\n" if name == "x-robots-tag" else ", "
        joined[name] = f"{joined[name]}{separator}{value}" if name in joined else value
    return joined


def split_headers(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the header lines that `join_headers` joined by line breaks."""
    for name, value in headers.items():
        yield from ((name, line) for line in value.splitlines() or [""])


def _meta_directives(meta: Iterable[tuple[str, str]]) -> frozenset[str]:
    parts = (part for name, content in meta if name in _ROBOTS_META for part in content.split(","))
    return frozenset(re.sub(r"\s*:\s*", ":", part.strip()) for part in parts)


def _pattern(text: str) -> Rule:
    """Return a location pattern as a rule: `*` for any characters, a final `$` for the end."""
    return Rule.of_pattern(text if text.startswith(("/", "*")) else f"/{text}")
