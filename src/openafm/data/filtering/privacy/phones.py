"""Phone numbers by the numbering plans of phonenumbers."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence

from openafm.core.libraries import needed
from openafm.data.filtering.privacy.numbers import is_beside, keywords_of

# The matcher of phonenumbers takes half a millisecond for a place, so it sees only places with enough digits in a row.
_CANDIDATE = re.compile(
    r"(?<![0-9A-Za-z_])(?<!\d[-./,])[+(]{0,2}\d(?:[ .\-/()]{0,2}\d){6,}(?![0-9A-Za-z_]|[.,]\d)", re.ASCII
)
_MAX_LENGTH = 48  # two numbers side by side; longer runs of digits are rows of tables
_YEAR = r"(?:19|20)\d\d"
_DATE_OR_AMOUNT = re.compile(
    rf"{_YEAR}([-./])(?:0?[1-9]|1[0-2])\1(?:[0-2]?\d|3[01])(?: \d\d)?"
    rf"|(?:[0-2]?\d|3[01])([-./])(?:[0-2]?\d|3[01])\2{_YEAR}(?: \d\d)?"
    rf"|\d{{1,3}}(?:([. ])\d{{3}})(?:\3\d{{3}})*|{_YEAR} ?[-/] ?{_YEAR}|\d{{1,3}}\.\d{{4,}}",
    re.ASCII,
)
_KEYWORDS = keywords_of(
    "tel", "phone", "telephone", "call", "mobile", "cell", "fax", "whatsapp", "sms", "telefon", "tlf", "mobil", "ring",
    "telefoon", "bel", "téléphone", "appelez", "portable", "anrufen", "rufen", "handy", "rufnummer", "telefono", "cellulare",
    "chiama", "telefone", "telemóvel", "celular", "ligue", "teléfono", "móvil", "llame", "llama", "ringa", "arayın",
    "cep", "điện thoại", "sđt", "gọi", "电话", "手机", "致电", "電話", "手機", "致電", "携帯", "전화", "연락처", "휴대폰",
)  # fmt: skip


def find_phones(text: str, start: int, end: int, regions: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the places of valid phone numbers: international ones, and national ones of the regions.

    A national number counts if it is grouped as its country writes it, or if a word such as `phone` is beside it. A number
    without any separator needs the word.

    Raises:
        MissingLibraryError: phonenumbers is not installed.
    """
    for candidate in _CANDIDATE.finditer(text, start, end):
        digits = candidate.group()
        if len(digits) > _MAX_LENGTH:
            continue
        has_keyword = is_beside(_KEYWORDS, text, candidate.start(), candidate.end())
        if not has_keyword and (digits.isdigit() or _DATE_OR_AMOUNT.fullmatch(digits) or _is_fraction(digits)):
            continue
        taken = candidate.start()
        for first, last in _matches(digits, tuple(regions), has_keyword):
            place = (candidate.start() + first, candidate.start() + last)
            if place[0] >= taken:
                yield place
                taken = place[1]


@functools.lru_cache(maxsize=4096)  # the pages of a site repeat its number
def _matches(candidate: str, regions: tuple[str, ...], is_lenient: bool) -> list[tuple[int, int]]:
    with needed("the privacy filter", "phonenumbers", "data"):
        from phonenumbers import Leniency, PhoneNumberMatcher
    leniency = Leniency.VALID if is_lenient else Leniency.STRICT_GROUPING
    for region in ("ZZ",) if candidate.startswith("+") or not regions else regions:
        found = [(match.start, match.end) for match in PhoneNumberMatcher(candidate, region, leniency=leniency)]
        if found:
            return found
    return []


def _is_fraction(digits: str) -> bool:
    """Return True for digits with a slash that do not begin like a phone number: DOIs, references."""
    return "/" in digits and digits[0] not in "+(0"
