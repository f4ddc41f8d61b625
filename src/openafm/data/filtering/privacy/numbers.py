"""Numbers that identify a person or an account: their formats, their rules, and the context that they need.

A format alone is not enough: a number counts only if it follows its issuer's rules (`checksums`). Some rules accept many
ordinary numbers (a ninth or tenth of all); such numbers count only beside a keyword, or in documents of their language.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from openafm.data.filtering.privacy import checksums

# ASCII on purpose: Chinese, Japanese and Korean have no spaces around numbers.
_START = r"(?<![0-9A-Za-z_])(?<!\d[-./])"
_END = r"(?![0-9A-Za-z_]|[-./]\d)"
_KEYWORD_BEFORE, _KEYWORD_AFTER = 48, 20
_SEPARATORS = str.maketrans("", "", " -./")


class Evidence(Enum):
    """What a valid number needs beside it to count."""

    NONE = "none"
    LANGUAGE = "language"  # a document in one of its languages, or a keyword
    KEYWORD = "keyword"


@dataclass(frozen=True)
class NumberKind:
    """A kind of number. `keywords` is a regular expression for lower case text; `languages` are primary tags."""

    name: str
    patterns: tuple[re.Pattern[str], ...]
    is_valid: Callable[[str], bool]
    evidence: Evidence
    keywords: re.Pattern[str]
    languages: tuple[str, ...] = ()

    def find(self, text: str, start: int, end: int, language: str) -> Iterator[tuple[int, int]]:
        """Yield the places of such numbers that begin between two places of a text."""
        for pattern in self.patterns:
            for match in pattern.finditer(text, start, end):
                if self.is_valid(match.group().translate(_SEPARATORS).upper()) and self._has_evidence(text, match, language):
                    yield match.span()

    def _has_evidence(self, text: str, match: re.Match[str], language: str) -> bool:
        if self.evidence is Evidence.NONE:
            return True
        if self.evidence is Evidence.LANGUAGE and language.partition("-")[0] in self.languages:
            return True
        return is_beside(self.keywords, text, match.start(), match.end())


def is_beside(keywords: re.Pattern[str], text: str, start: int, end: int) -> bool:
    """Return True if a keyword is shortly before or after a place of a text."""
    before = text[max(0, start - _KEYWORD_BEFORE) : start].lower()
    return bool(keywords.search(before) or keywords.search(text[end : end + _KEYWORD_AFTER].lower()))


def keywords_of(*words: str) -> re.Pattern[str]:
    """Return the expression of whole words; words of Chinese, Japanese and Korean are found anywhere."""
    return re.compile("|".join(rf"(?<![a-z]){word}(?![a-z])" if word.isascii() else word for word in words))


def _kind(
    name: str,
    formats: tuple[str, ...],
    is_valid: Callable[[str], bool],
    evidence: Evidence,
    languages: tuple[str, ...],
    *keywords: str,
) -> NumberKind:
    patterns = tuple(re.compile(f"{_START}(?:{each}){_END}", re.ASCII) for each in formats)
    return NumberKind(name, patterns, is_valid, evidence, keywords_of(*keywords), languages)


CARD = _kind(
    "card",
    (r"\d{13,19}", r"\d{4}([ -])\d{4}\1\d{4}\1\d{4}(?:\1\d{3})?", r"\d{4}([ -])\d{4}\1\d{4}\1\d{4}",
     r"\d{4}([ -])\d{6}\1\d{4,5}"),
    checksums.is_card, Evidence.NONE, (), "card",
)  # fmt: skip

NATIONAL_IDS = (
    _kind("us_ssn", (r"\d{3}-\d{2}-\d{4}",), checksums.is_us_ssn, Evidence.NONE, ("en",)),
    _kind(
        "us_ssn", (r"\d{9}", r"\d{3} \d{2} \d{4}"), checksums.is_us_ssn, Evidence.KEYWORD, ("en",),
        "ssn", "social security", "soc sec",
    ),
    _kind(
        "gb_nino", (r"[A-Z]{2} ?\d{2} ?\d{2} ?\d{2} ?[A-D]",), checksums.is_gb_nino, Evidence.LANGUAGE, ("en",),
        "nino", "national insurance", "ni number",
    ),
    _kind("dk_cpr", (r"\d{6}-\d{4}",), checksums.is_dk_cpr, Evidence.LANGUAGE, ("da",), "cpr", "cpr-nr", "personnummer"),
    _kind(
        "dk_cpr", (r"\d{6}[- ]?\d{4}",), checksums.is_dk_cpr_date, Evidence.KEYWORD, ("da",),
        "cpr", "cpr-nr", "cpr-nummer", "personnummer",
    ),
    _kind(
        "nl_bsn", (r"\d{9}", r"\d{4}[ .]\d{2}[ .]\d{3}", r"\d{3}[ .]\d{3}[ .]\d{3}"), checksums.is_nl_bsn, Evidence.KEYWORD,
        ("nl",), "bsn", "burgerservicenummer", "sofinummer", "sofi-nummer",
    ),
    _kind(
        "fr_nir", (r"[12] ?\d{2} ?(?:0[1-9]|1[0-2]|[2-9]\d) ?(?:\d{2}|2[AB]) ?\d{3} ?\d{3} ?\d{2}",), checksums.is_fr_nir,
        Evidence.NONE, ("fr",), "nir",
    ),
    _kind("de_idnr", (r"[1-9]\d{10}", r"[1-9]\d ?\d{3} ?\d{3} ?\d{3}"), checksums.is_de_idnr, Evidence.LANGUAGE, ("de",),
          "idnr", "steuer-id", "steuer-idnr", "steueridentifikationsnummer", "tax id"),
    _kind(
        "it_cf", (r"[A-Z]{6}[\dL-NP-V]{2}[A-EHLMPRST][\dL-NP-V]{2}[A-Z][\dL-NP-V]{3}[A-Z]",), checksums.is_it_cf,
        Evidence.NONE, ("it",), "codice fiscale",
    ),
    _kind("no_fnr", (r"\d{6}[ -]?\d{5}",), checksums.is_no_fnr, Evidence.NONE, ("nb",), "personnummer"),
    _kind(
        "pt_nif", (r"\d{9}", r"\d{3} \d{3} \d{3}"), checksums.is_pt_nif, Evidence.KEYWORD, ("pt",),
        "nif", "contribuinte", "identificação fiscal",
    ),
    _kind("br_cpf", (r"\d{3}\.\d{3}\.\d{3}-\d{2}",), checksums.is_br_cpf, Evidence.NONE, ("pt",), "cpf"),
    _kind("br_cpf", (r"\d{11}", r"\d{9}-\d{2}"), checksums.is_br_cpf, Evidence.LANGUAGE, ("pt",), "cpf"),
    _kind("es_dni", (r"\d{8}[- ]?[A-HJ-NP-TV-Z]",), checksums.is_es_dni, Evidence.LANGUAGE, ("es",), "dni", "nif"),
    _kind("es_nie", (r"[XYZ][- ]?\d{7}[- ]?[A-HJ-NP-TV-Z]",), checksums.is_es_nie, Evidence.LANGUAGE, ("es",), "nie", "nif"),
    _kind(
        "se_pnr", (r"\d{6}[-+]\d{4}", r"[12]\d{7}[-+]?\d{4}"), checksums.is_se_pnr, Evidence.LANGUAGE, ("sv",),
        "personnummer", "samordningsnummer",
    ),
    _kind("se_pnr", (r"\d{10}",), checksums.is_se_pnr, Evidence.KEYWORD, ("sv",), "personnummer", "samordningsnummer"),
    _kind(
        "tr_tckn", (r"[1-9]\d{10}",), checksums.is_tr_tckn, Evidence.LANGUAGE, ("tr",),
        "kimlik", "tc", "tckn", "t\\.c\\.",
    ),
    _kind("cn_ric", (r"[1-8]\d{16}[\dXx]",), checksums.is_cn_ric, Evidence.NONE, ("zh",), "身份证"),
    _kind(
        "tw_id", (r"[A-Z][1289]\d{8}",), checksums.is_tw_id, Evidence.LANGUAGE, ("zh",),
        "身分證", "身份證", "統一編號", "居留證",
    ),
    _kind(
        "jp_my_number", (r"\d{12}", r"\d{4}([ -])\d{4}\1\d{4}"), checksums.is_jp_my_number, Evidence.KEYWORD, ("ja",),
        "マイナンバー", "個人番号", "my number",
    ),
    _kind("kr_rrn", (r"\d{6}-[0-9]\d{6}",), checksums.is_kr_rrn, Evidence.NONE, ("ko",), "주민"),
    _kind(
        "kr_rrn", (r"\d{6}[- ]?[0-9]\d{6}",), checksums.is_kr_rrn_date, Evidence.KEYWORD, ("ko",),
        "주민등록번호", "주민번호", "외국인등록번호",
    ),
    _kind(
        "vn_cccd", (r"0\d{11}", r"0\d{2} \d{3} \d{3} \d{3}"), checksums.is_vn_cccd, Evidence.KEYWORD, ("vi",),
        "cccd", "căn cước", "định danh", "cmnd",
    ),
)  # fmt: skip

_FORMATS = {each.pattern.removeprefix(_START).removesuffix(_END) for kind in NATIONAL_IDS for each in kind.patterns}
# Each position is tested for all formats at once. Separators need not be equal here, because groups have other numbers.
ANY_NATIONAL_ID = re.compile(
    f"{_START}(?:{'|'.join(sorted(_FORMATS)).replace('([ -])', '[ -]').replace(chr(92) + '1', '[ -]')}){_END}", re.ASCII
)

_IBAN_START = re.compile(rf"{_START}[A-Z]{{2}}\d{{2}}(?=[ -]?[0-9A-Z]{{4}})", re.ASCII)


def find_ibans(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the places of account numbers; as many characters are read as the country's numbers have."""
    for match in _IBAN_START.finditer(text, start, end):
        length = checksums.IBAN_LENGTHS.get(match.group()[:2], 0)
        place = match.start()
        characters: list[str] = []
        while (
            place < len(text)
            and len(characters) < length
            and (text[place].isalnum() or text[place] in " -")
            and text[place].isascii()
        ):
            if text[place].isalnum():
                characters.append(text[place])
            place += 1
        is_whole = place == len(text) or not (text[place].isascii() and text[place].isalnum())
        if is_whole and checksums.is_iban("".join(characters)):
            yield match.start(), place
