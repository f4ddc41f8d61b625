"""Canonical URLs, crawl traps, and the check that an address is public."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

MAX_LENGTH = 2000
MAX_SEGMENTS = 16
MAX_PARAMETERS = 8
MAX_REPEATS = 3
"""How often one path segment may occur; relative links below a wrong base repeat it without end."""

_DEFAULT_PORTS = {"http": 80, "https": 443}
# Parameters that identify a visit and not a page.
_VISIT = re.compile(
    r"(utm_\w+|gclid|fbclid|msclkid|dclid|yclid|mc_[ce]id|_ga|jsessionid|phpsessid|aspsessionid\w*|cfid|cftoken"
    r"|s?sid|session_?id|sessid|sess|zenid|osCsid)",
    re.IGNORECASE,
)
_SESSION_IN_PATH = re.compile(
    r";jsessionid=[^/?;]*|/\([A-Z]\([0-9a-z]{24}\)\)(?=/|$)|/[sS]\([0-9a-zA-Z]{24}\)(?=/|$)", re.IGNORECASE
)
_DATE_IN_URL = re.compile(r"(?:^|[^0-9])((?:19|2[0-9])\d\d)(?:[-/_](0?[1-9]|1[0-2]))(?:[-/_]|[^0-9]|$)")
_YEAR_PARAMETER = re.compile(r"(?:^|[_-])(?:year|yr)$", re.IGNORECASE)
_CALENDAR = re.compile(
    r"calendar|kalender|calendrier|calendario|events?[/_-]?(?:by)?[/_-]?(?:day|month|week)", re.IGNORECASE
)
_NUMBER = re.compile(r"\d+")
_TOKEN = re.compile(r"(?=[^/]*\d)[0-9a-fA-F-]{12,}")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def canonical_url(url: str, base: str = "") -> str:
    """Return the canonical form of an `http` or `https` URL; empty if it is not one.

    Scheme and host are in lower case (IDNA), the default port, dot segments and the fragment are removed, escapes are
    normalized, parameters are sorted; session ids and tracking parameters are removed. Idempotent.
    """
    try:
        return _canonical(urljoin(base, url.strip()) if base else url.strip())
    except ValueError:  # an invalid IPv6 address
        return ""


@lru_cache(maxsize=1 << 16)  # pages of a site have most of their links in common
def _canonical(url: str) -> str:
    from w3lib.url import canonicalize_url, safe_url_string

    try:
        url = safe_url_string(url)
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:  # an invalid port, IPv6 address or IDNA name
        return ""
    if parts.scheme not in _DEFAULT_PORTS or not host or parts.username is not None or parts.password is not None:
        return ""
    host = f"[{host}]" if ":" in host else host
    location = host if port in (None, _DEFAULT_PORTS[parts.scheme]) else f"{host}:{port}"
    path = _SESSION_IN_PATH.sub("", parts.path) or "/"
    path = urljoin(f"{parts.scheme}://{location}/", re.sub(r"^/+", "/", path))
    parameters = [(key, value) for key, value in parse_qsl(parts.query, keep_blank_values=True) if not _VISIT.fullmatch(key)]
    kept = parts.query if len(parameters) == parts.query.count("&") + 1 else urlencode(parameters)
    return str(canonicalize_url(urlunsplit(urlsplit(path)._replace(query=kept))))


def origin_of(url: str) -> str:
    """Return scheme, host and port: what a robots.txt applies to."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def host_of(url: str) -> str:
    """Return host and port of a URL; politeness applies to it."""
    return urlsplit(url).netloc


def domain_of(url: str) -> str:
    """Return the host without port and without a leading `www.`; budgets and languages apply to it."""
    return (urlsplit(url).hostname or "").removeprefix("www.")


def template_of(url: str) -> str:
    """Return the pattern of a URL: numbers and identifiers are replaced by `N`, parameters have no values.

    Pages of one template come from one program, such as a calendar or a search, and share a budget.
    """
    parts = urlsplit(url)
    path = "/".join(_NUMBER.sub("N", _TOKEN.sub("N", segment)) for segment in parts.path.split("/"))
    keys = "&".join(sorted({key for key, _ in parse_qsl(parts.query, keep_blank_values=True)}))
    return f"{parts.netloc}{path}" + (f"?{keys}" if keys else "")


def trap_reason(url: str, latest_year: int) -> str:
    """Return why a canonical URL looks like a crawl trap; empty if it does not.

    A calendar is a trap where it leaves the years 1990 to `latest_year`; budgets per template limit the rest of it.
    """
    parts = urlsplit(url)
    segments = [segment for segment in parts.path.split("/") if segment]
    parameters = parse_qsl(parts.query, keep_blank_values=True)
    if len(url) > MAX_LENGTH:
        return f"the URL has {len(url)} characters, more than {MAX_LENGTH}"
    if len(segments) > MAX_SEGMENTS:
        return f"the path has {len(segments)} segments, more than {MAX_SEGMENTS}"
    if any(segments.count(segment) > MAX_REPEATS for segment in set(segments) if not segment.isdigit()):
        return f"a path segment occurs more than {MAX_REPEATS} times"
    if len(parameters) > MAX_PARAMETERS:
        return f"the URL has {len(parameters)} parameters, more than {MAX_PARAMETERS}"
    if len({key for key, _ in parameters}) < len(parameters) - 2:
        return "parameters repeat"
    year = _calendar_year(parts.path, parameters)
    if year is not None and not 1990 <= year <= latest_year:
        return f"a calendar page of the year {year}"
    return ""


def is_public_address(address: str) -> bool:
    """Return True if an IP address is on the public internet: not private, loopback, link-local, multicast or reserved.

    Addresses that embed an IPv4 address (mapped, 6to4, Teredo, NAT64) are checked by that one too.
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        embedded = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
        if ip in _NAT64:
            embedded.append(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
        if any(each is not None and not is_public_address(str(each)) for each in embedded):
            return False
        if ip.ipv4_mapped is not None or ip in _NAT64:
            return True
    return ip.is_global and not ip.is_multicast


def _calendar_year(path: str, parameters: list[tuple[str, str]]) -> int | None:
    """Return the year that a calendar page shows; None if the URL is not one."""
    values = dict(parameters)
    for key, value in parameters:
        if _YEAR_PARAMETER.search(key) and re.fullmatch(r"\d{4}", value):
            return int(value)
    dated = " ".join(
        value for key, value in values.items() if key.lower() in ("date", "day", "month", "ym", "start", "from")
    )
    text = f"{path} {dated}" if _CALENDAR.search(path) else dated
    found = _DATE_IN_URL.search(text)
    return int(found[1]) if found else None
