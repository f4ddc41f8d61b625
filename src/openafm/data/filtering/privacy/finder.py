"""Find personal data in a text: e-mail and IP addresses, phone numbers, cards, accounts, national identity numbers."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from openafm.data.filtering.base import alphabet
from openafm.data.filtering.privacy.config import KINDS
from openafm.data.filtering.privacy.numbers import (
    ANY_NATIONAL_ID,
    CARD,
    NATIONAL_IDS,
    find_ibans,
    is_beside,
    keywords_of,
)
from openafm.data.filtering.privacy.phones import find_phones

_Find: TypeAlias = Callable[[str, int, int, str], Iterator[tuple[int, int, str]]]

# Characters of width one, so that places do not move: full-width forms, dashes, special spaces.
_PLAIN = {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
_PLAIN |= dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212\ufe63", "-")
_PLAIN |= dict.fromkeys("\u00a0\u2007\u2009\u202f\u3000", " ")

_DIGITS = re.compile(r"\d+", re.ASCII)
_MAX_GAP = 12  # letters and separators between two runs of digits of one number
_MIN_DIGITS = 5
_BEFORE, _AFTER = 24, 32
# Accounts, cards and national ids have nine or more characters with single separators; most dates and prices do not.
_LONG = re.compile(r"[0-9A-Z](?:[ .+/-]?[0-9A-Z]){8}")
_LONG_KINDS = ("iban", "card", "national_id")

_URL = re.compile(r"\b(?:https?|ftp)://[^\s<>\"']+|\bwww\.[^\s<>\"']+")
_AT = r"(?:@| ?[\[({] ?(?:at|AT|@) ?[\])}] ?)"
_HIDDEN_AT = re.compile(r"[\[({] ?(?:at|AT) ?[\])}]")
_DOT = r"(?:\.| ?[\[({] ?(?:dot|DOT|\.) ?[\])}] ?)"
_LABEL = "[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
_EMAIL = re.compile(
    r"(?<![0-9A-Za-z._%+-])[0-9A-Za-z](?:[0-9A-Za-z._%+-]{0,62}[0-9A-Za-z_%+-])?"
    rf"{_AT}((?:{_LABEL}{_DOT}){{1,5}}[A-Za-z]{{2,24}})(?![0-9A-Za-z-])"
)
_MAX_LOCAL, _MAX_HOST = 70, 400  # characters of an address before and after its @, with the spaces of hidden ones
_FILE_ENDINGS = frozenset(
    ("png", "jpg", "jpeg", "gif", "svg", "webp", "ico", "css", "js", "mjs", "ts", "json", "xml", "html", "php", "pdf", "zip")
)
_IPV4 = re.compile(r"(?<![0-9A-Za-z_.])(?:\d{1,3}\.){3}\d{1,3}(?![0-9A-Za-z_]|\.\d)", re.ASCII)
_IPV6 = re.compile(r"(?<![0-9A-Za-z_:.])[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]{2,35}(?<!:)(?![0-9A-Za-z_])")
_VERSION = keywords_of(
    "v", "ver", "version", "versions", "versie", "versión", "versione", "versão", "versjon", "release", "build", "firmware",
    "driver", "update", "section", "abschnitt", "chapter", "kapitel", "sürüm", "phiên bản", "版本", "バージョン", "버전",
)  # fmt: skip
_ADDRESS = keywords_of("ip", "ipv4", "ip-adresse", "address", "host", "server", "from", "ping", "dns")
_MIN_OCTET = 20  # 8.8.8.8 and 1.2.3.4: sections and versions rather than a person's address, without a keyword


@dataclass(frozen=True)
class Finding:
    """A place of a text with personal data. `detail` is the format of a national id, such as `de_idnr`."""

    kind: str
    start: int
    end: int
    detail: str = ""


class Finder:
    """Find personal data of the given kinds.

    Most of a text has no digits and no `@`, so the formats are searched only around groups of digits. Numbers inside URLs
    are not searched; they name pages.
    """

    def __init__(self, kinds: Sequence[str], phone_regions: Mapping[str, Sequence[str]]) -> None:
        self._finds_email = "email" in kinds
        self._phone_regions = phone_regions
        finds: dict[str, _Find] = {
            "iban": lambda text, start, end, _: ((*place, "") for place in find_ibans(text, start, end)),
            "card": lambda text, start, end, language: ((*place, "") for place in CARD.find(text, start, end, language)),
            "national_id": _find_national_ids,
            "ip": _find_ips,
            "phone": self._find_phones,
        }
        self._finds = [(kind, finds[kind]) for kind in KINDS if kind in finds and kind in kinds]

    def find(self, text: str, language: str) -> list[Finding]:
        """Return what is found, in the order of the text, without overlaps."""
        text = _plain(text)
        found = list(_find_emails(text)) if self._finds_email else []
        windows = _windows(text)
        if not windows:
            return found
        taken = bytearray(len(text))
        for start, end in [match.span() for match in _URL.finditer(text)] + [(each.start, each.end) for each in found]:
            taken[start:end] = b"\1" * (end - start)
        for start, end in windows:
            is_long = _LONG.search(text, start, end) is not None
            for kind, find in self._finds:
                if kind in _LONG_KINDS and not is_long:
                    continue
                for first, last, detail in find(text, start, end, language):
                    if 1 not in taken[first:last]:
                        taken[first:last] = b"\1" * (last - first)
                        found.append(Finding(kind, first, last, detail))
        return sorted(found, key=lambda finding: finding.start)

    def _find_phones(self, text: str, start: int, end: int, language: str) -> Iterator[tuple[int, int, str]]:
        for place in find_phones(text, start, end, self._phone_regions.get(language, ())):
            yield *place, ""


def _plain(text: str) -> str:
    """Return the text with ASCII characters in the place of similar ones of other widths."""
    if not text.isascii():
        for character in alphabet(text) & _PLAIN.keys():  # several times as fast as `str.translate`
            text = text.replace(character, _PLAIN[character])
    return text


def _windows(text: str) -> list[tuple[int, int]]:
    """Return the parts of a text with enough digits close together, with a margin."""
    windows: list[tuple[int, int]] = []
    first, last, count = 0, -_MAX_GAP - 1, 0
    for start, end in [match.span() for match in _DIGITS.finditer(text)] + [(len(text) + _MAX_GAP + 1,) * 2]:
        if start - last > _MAX_GAP:
            if count >= _MIN_DIGITS:
                place = (max(0, first - _BEFORE), min(len(text), last + _AFTER))
                if windows and place[0] <= windows[-1][1]:
                    place = (windows.pop()[0], place[1])
                windows.append(place)
            first, count = start, 0
        last, count = end, count + end - start
    return windows


def _find_emails(text: str) -> Iterator[Finding]:
    for start, end in _email_windows(text):
        for match in _EMAIL.finditer(text, start, end):
            ending = re.split(r"\W", match[1])[-1].lower()
            is_remote = match.group().startswith("git@") and text[match.end() : match.end() + 1] == ":"
            if ending not in _FILE_ENDINGS and ".." not in match.group() and not is_remote:
                yield Finding("email", *match.span())


def _email_windows(text: str) -> list[tuple[int, int]]:
    """Return the parts of a text in which an address can be: around each `@`, and each `at` in brackets."""
    places = [match.start() for match in _HIDDEN_AT.finditer(text)] if "at" in text or "AT" in text else []
    place = text.find("@")
    while place >= 0:
        places.append(place)
        place = text.find("@", place + 1)
    windows: list[tuple[int, int]] = []
    for place in sorted(places):
        start, end = max(0, place - _MAX_LOCAL), min(len(text), place + _MAX_HOST)
        if windows and start <= windows[-1][1]:
            start = windows.pop()[0]
        windows.append((start, end))
    return windows


def _find_national_ids(text: str, start: int, end: int, language: str) -> Iterator[tuple[int, int, str]]:
    if ANY_NATIONAL_ID.search(text, start, end) is None:
        return
    for kind in NATIONAL_IDS:
        for place in kind.find(text, start, end, language):
            yield *place, kind.name


def _find_ips(text: str, start: int, end: int, _: str) -> Iterator[tuple[int, int, str]]:
    """Yield addresses of the public Internet; private and reserved ones identify no person."""
    for match in _IPV4.finditer(text, start, end):
        octets = match.group().split(".")
        if not _is_global(match.group()) or _VERSION.search(text[max(0, match.start() - 16) : match.start()].lower()):
            continue
        if max(map(int, octets)) >= _MIN_OCTET or is_beside(_ADDRESS, text, match.start(), match.end()):
            yield *match.span(), ""
    for match in _IPV6.finditer(text, start, end):
        if _is_global(match.group()):
            yield *match.span(), ""


def _is_global(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False
