"""Parse and match robots.txt (RFC 9309), with the choices of google/robotstxt where the RFC leaves one.

Rules match bytes. The longest pattern decides; Allow wins a tie. All groups that name an agent apply together; the group `*`
applies to agents that no group names. A pattern has `*` for any characters and a final `$` for the end of the URL.

RFC 9309 (2.2.2) compares unreserved characters decoded, so that `%62` equals `b`; google/robotstxt compares patterns as
written. Disallow rules match in both forms and Allow rules only as written: if the two readings differ, the URL is not
fetched.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

MAX_BYTES = 500 * 1024
"""Bytes of a robots.txt that are read (RFC 9309, 2.5)."""
MAX_LINE_BYTES = 2083 * 8 - 1
"""Bytes of a line that are read, as in google/robotstxt: eight times the longest URL of a browser."""
MAX_REDIRECTS = 5
CACHE_SECONDS = 24 * 3600
"""How long rules are used before robots.txt is fetched again (RFC 9309, 2.4)."""

# Spellings that publishers use; google/robotstxt reads them too.
_KINDS = {
    **dict.fromkeys(("user-agent", "useragent", "user agent"), "user-agent"),
    **dict.fromkeys(("disallow", "dissallow", "dissalow", "disalow", "diasllow", "disallaw"), "disallow"),
    **dict.fromkeys(("crawl-delay", "crawldelay", "crawl delay"), "crawl-delay"),
    **dict.fromkeys(("sitemap", "site-map"), "sitemap"),
    "allow": "allow",
    "content-signal": "content-signal",
}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PRODUCT_TOKEN = re.compile(r"[A-Za-z_-]*")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


@dataclass(frozen=True)
class Directive:
    """A line `key: value`. `kind` is the key without spelling variants; empty if the key is unknown."""

    line: int
    kind: str
    value: str


@dataclass(frozen=True)
class Rule:
    """An Allow or Disallow line. `parts` is the pattern split at `*`."""

    pattern: str
    is_allow: bool
    line: int
    parts: tuple[str, ...]
    is_anchored: bool

    @classmethod
    def of_pattern(cls, pattern: str, *, is_allow: bool = False, line: int = 0) -> Rule:
        """Return the rule of an escaped pattern."""
        is_anchored = pattern.endswith("$")
        parts = (pattern[:-1] if is_anchored else pattern).split("*")
        return cls(pattern, is_allow, line, tuple(parts), is_anchored)

    def matches(self, path: str) -> bool:
        """Return True if the pattern matches a path and query. Runs in time linear in the path per part."""
        first, *rest = self.parts
        if not path.startswith(first):
            return False
        if not rest:
            return not self.is_anchored or len(path) == len(first)
        position = len(first)
        for part in rest[:-1]:
            found = path.find(part, position)
            if found < 0:
                return False
            position = found + len(part)
        if self.is_anchored:
            return len(path) - position >= len(rest[-1]) and path.endswith(rest[-1])
        return path.find(rest[-1], position) >= 0


@dataclass(frozen=True)
class Decision:
    """Whether an agent may fetch a URL, and the rule that decided; None if no rule matched."""

    allowed: bool
    rule: Rule | None = None

    def __str__(self) -> str:
        if self.rule is None:
            return "no rule of robots.txt matches" if self.allowed else "robots.txt is not available"
        kind = "Allow" if self.rule.is_allow else "Disallow"
        return f"robots.txt line {self.rule.line}: {kind}: {self.rule.pattern}"


@dataclass
class _Group:
    rules: list[Rule] = field(default_factory=list)
    crawl_delay: float | None = None
    signals: dict[str, str] = field(default_factory=dict)


class Robots:
    """The rules of one robots.txt."""

    def __init__(
        self, groups: dict[str, _Group] | None = None, sitemaps: Sequence[str] = (), *, is_unreachable: bool = False
    ) -> None:
        self._groups = groups or {}
        for group in self._groups.values():
            group.rules.sort(key=lambda rule: (-len(rule.pattern), not rule.is_allow))
        self.sitemaps = tuple(sitemaps)
        self.is_unreachable = is_unreachable
        """True if robots.txt could not be read for now; then no URL is allowed (RFC 9309, 2.3.1.4)."""

    @classmethod
    def parse(cls, data: bytes) -> Robots:
        """Return the rules of a robots.txt. Unknown and malformed lines are ignored; no input is an error."""
        groups: dict[str, _Group] = {}
        current: list[str] = []
        sitemaps = []
        is_closed = False  # a rule ends the list of agents of its group
        for directive in directives(data):
            if directive.kind == "user-agent":
                current, is_closed = ([] if is_closed else current), False
                if agent := _agent_of_value(directive.value):
                    groups.setdefault(agent, _Group())
                    current.append(agent)
            elif directive.kind in ("allow", "disallow"):
                is_closed = True
                for rule in _rules(directive):
                    for agent in current:
                        groups[agent].rules.append(rule)
            elif directive.kind == "crawl-delay":
                for agent in current:
                    groups[agent].crawl_delay = _seconds(directive.value, groups[agent].crawl_delay)
            elif directive.kind == "content-signal":
                for agent in current:
                    groups[agent].signals.update(_signals(directive.value))
            elif directive.kind == "sitemap":
                sitemaps.append(directive.value)
        return cls(groups, sitemaps)

    @classmethod
    def of_response(cls, status: int, body: bytes = b"") -> Robots:
        """Return the rules that follow from the answer to a request for robots.txt, after redirects (RFC 9309, 2.3.1).

        2xx: the rules of `body`. 429, 5xx, and status 0 for no answer: nothing is allowed for now. Everything else, such as
        404 or too many redirects: everything is allowed.
        """
        if 200 <= status < 300:
            return cls.parse(body)
        return cls(is_unreachable=status == 0 or status == 429 or status >= 500)

    def allows(self, user_agent: str, url: str) -> bool:
        """Return True if the agent with this product token may fetch the URL."""
        return self.decide(user_agent, url).allowed

    def decide(self, user_agent: str, url: str) -> Decision:
        """Return whether the agent may fetch the URL, and the rule that decides.

        `url` is percent-encoded. `user_agent` is the product token alone, such as `Applebot`, without version.
        """
        if self.is_unreachable:
            return Decision(False)
        path = path_of(url)
        normal = _decode_unreserved(escape_pattern(path))
        for rule in self._group(user_agent).rules:
            if not path.startswith(rule.parts[0]) and normal is path:
                continue  # most rules end here; a method call takes three times as long
            if rule.matches(path) or (not rule.is_allow and normal != path and rule.matches(normal)):
                return Decision(rule.is_allow, rule)
        return Decision(True)

    def names(self, user_agent: str) -> bool:
        """Return True if a group names this agent itself, not only `*`."""
        return user_agent.lower() in self._groups

    def crawl_delay(self, user_agent: str) -> float | None:
        """Return the Crawl-delay in seconds for an agent; None without one."""
        return self._group(user_agent).crawl_delay

    def content_signals(self, user_agent: str) -> dict[str, str]:
        """Return the values of Content-Signal lines for an agent, such as {"search": "yes", "ai-train": "no"}."""
        return dict(self._group(user_agent).signals)

    def _group(self, user_agent: str) -> _Group:
        return self._groups.get(user_agent.lower()) or self._groups.get("*") or _Group()


class RobotsCache:
    """Parsed rules by origin, the least recently used dropped first.

    Rules expire after `CACHE_SECONDS`. Expired rules are replaced by those of `put`, except that an unreachable robots.txt
    leaves the earlier rules in use (RFC 9309, 2.4).
    """

    def __init__(self, max_origins: int = 10_000) -> None:
        self._max_origins = max_origins
        self._entries: OrderedDict[str, tuple[float, Robots]] = OrderedDict()

    def get(self, origin: str, now: float) -> Robots | None:
        """Return the rules of an origin; None if there are none or they expired."""
        if origin not in self._entries:
            return None
        fetched_at, robots = self._entries[origin]
        self._entries.move_to_end(origin)
        lifetime = CACHE_SECONDS / 24 if robots.is_unreachable else CACHE_SECONDS  # ask again after an hour
        return robots if now - fetched_at < lifetime else None

    def put(self, origin: str, robots: Robots, now: float) -> Robots:
        """Store freshly fetched rules and return the rules to use."""
        earlier = self._entries.get(origin)
        if robots.is_unreachable and earlier is not None and not earlier[1].is_unreachable:
            robots = earlier[1]
        self._entries[origin] = (now, robots)
        self._entries.move_to_end(origin)
        while len(self._entries) > self._max_origins:
            self._entries.popitem(last=False)
        return robots


def directives(data: bytes) -> Iterator[Directive]:
    """Yield the lines of a robots.txt that have a key and a value; empty lines and comments are left out.

    At most `MAX_BYTES` are read; a line that this limit cuts is ignored.
    """
    if len(data) > MAX_BYTES:
        data = data[: max(data.rfind(b"\n", 0, MAX_BYTES), data.rfind(b"\r", 0, MAX_BYTES), 0)]
    for count in (3, 2, 1):  # a byte order mark may be cut
        if data.startswith(_BYTE_ORDER_MARK[:count]):
            data = data[count:]
            break
    for number, line in enumerate(data.splitlines(), start=1):
        text = line[:MAX_LINE_BYTES].partition(b"#")[0].strip().decode("utf-8", "surrogateescape")
        key, colon, value = text.partition(":")
        if not colon:  # `Disallow /`, without a colon
            words = text.split()
            if len(words) != 2:
                continue
            key, value = words
        if key.strip():
            yield Directive(number, _KINDS.get(key.strip().lower(), ""), value.strip())


def path_of(url: str) -> str:
    """Return path, parameters and query of a URL: what rules match. The scheme may be missing; the fragment is left out."""
    start = 2 if url.startswith("//") else 0
    early_path = _find(url, "/?;", start)
    protocol_end = url.find("://", start)
    if early_path < protocol_end:  # `://` is part of the path or query
        protocol_end = -1
    start = start if protocol_end < 0 else protocol_end + 3
    path_start = _find(url, "/?;", start)
    fragment = url.find("#", start)
    end = len(url) if fragment < 0 else fragment
    if path_start >= end:
        return "/"
    return url[path_start:end] if url[path_start] == "/" else "/" + url[path_start:end]


def escape_pattern(pattern: str) -> str:
    """Return a pattern with bytes outside ASCII percent-encoded and the digits of escapes in upper case."""
    if not pattern.isascii():
        encoded = pattern.encode("utf-8", "surrogateescape")
        pattern = "".join(chr(byte) if byte < 128 else f"%{byte:02X}" for byte in encoded)
    return _ESCAPE.sub(lambda match: match[0].upper(), pattern) if "%" in pattern else pattern


def is_product_token(user_agent: str) -> bool:
    """Return True if a name can occur in robots.txt: letters, `_` and `-` (RFC 9309, 2.2.1)."""
    return bool(user_agent) and _PRODUCT_TOKEN.fullmatch(user_agent) is not None


def _agent_of_value(value: str) -> str:
    """Return the agent of a User-agent line in lower case: up to the first character that names cannot have, or `*`."""
    if value.startswith("*") and (len(value) == 1 or value[1].isspace()):
        return "*"
    found = _PRODUCT_TOKEN.match(value)
    return found[0].lower() if found else ""


def _rules(directive: Directive) -> Iterator[Rule]:
    """Yield the rules of an Allow or Disallow line; an empty value has none."""
    if not directive.value:
        return
    pattern = escape_pattern(directive.value)
    if directive.kind == "disallow":
        yield _rule(pattern, directive)
        if (decoded := _decode_unreserved(pattern)) != pattern:
            yield _rule(decoded, directive)
        return
    yield _rule(pattern, directive)
    folder, slash, name = pattern.rpartition("/")
    if slash and name.startswith("index.htm"):  # allowing the index allows the folder
        yield _rule(f"{folder}/$", directive)


def _rule(pattern: str, directive: Directive) -> Rule:
    return Rule.of_pattern(pattern, is_allow=directive.kind == "allow", line=directive.line)


def _decode_unreserved(text: str) -> str:
    """Return text with escapes of unreserved characters decoded."""
    if "%" not in text:
        return text

    def decode(match: re.Match[str]) -> str:
        character = chr(int(match[1], 16))
        return character if character in _UNRESERVED else match[0]

    return _ESCAPE.sub(decode, text)


def _seconds(value: str, default: float | None) -> float | None:
    """Return a Crawl-delay; `default` if it is not a number of seconds. Several delays of an agent: the longest."""
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?|\.\d{1,9}", value) is None:
        return default
    return max(float(value), default or 0.0)


def _signals(value: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in value.lower().split(","))
    return {key.strip(): setting.strip() for key, equals, setting in pairs if equals}


def _find(text: str, characters: str, start: int) -> int:
    """Return the index of the first of several characters; the length of the text without one."""
    found = [index for index in (text.find(character, start) for character in characters) if index >= 0]
    return min(found, default=len(text))
