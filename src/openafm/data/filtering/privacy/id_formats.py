"""Random national identity numbers that follow, or break, the rules of `checksums`; for measuring the finder."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from dataclasses import dataclass

from openafm.data.filtering.privacy import checksums

_LETTERS = string.ascii_uppercase


@dataclass(frozen=True)
class IdFormat:
    """How to draw and write one national id.

    `body` draws all characters but the last `checks` ones. A layout has one `#` for each character. With `needs_keyword`, a
    reader cannot tell the number from another one without its name.
    """

    name: str
    language: str
    body: Callable[[random.Random], str]
    checks: int
    is_valid: Callable[[str], bool]
    layouts: tuple[str, ...]
    keyword: str
    needs_keyword: bool = False
    check_characters: str = string.digits


def random_digits(count: int) -> Callable[[random.Random], str]:
    """Return a drawer of `count` digits."""
    return lambda rng: "".join(rng.choice(string.digits) for _ in range(count))


def _date(order: str, rest: int, years: tuple[int, int] = (40, 99)) -> Callable[[random.Random], str]:
    """Return a drawer of a date (`y`, `m`, `d`, two digits each) and further digits."""

    def draw(rng: random.Random) -> str:
        parts = {"y": rng.randint(*years), "m": rng.randint(1, 12), "d": rng.randint(1, 28)}
        return "".join(f"{parts[letter]:02d}" for letter in order) + random_digits(rest)(rng)

    return draw


def _italian(rng: random.Random) -> str:
    name = "".join(rng.choice("BCDFGLMNPRSTV") for _ in range(6))
    day = rng.randint(1, 28) + rng.choice((0, 40))
    return (
        f"{name}{rng.randint(30, 99)}{rng.choice('ABCDEHLMPRST')}{day:02d}{rng.choice('ABCDEFGHIL')}{rng.randint(100, 999)}"
    )


def _german(rng: random.Random) -> str:
    digits = rng.sample(string.digits, 10)
    digits[rng.randrange(1, 10)] = digits[0]
    return "".join(digits) if digits[0] != "0" else _german(rng)


def _french(rng: random.Random) -> str:
    return f"{rng.choice('12')}{rng.randint(30, 99)}{rng.randint(1, 12):02d}{rng.randint(1, 95):02d}{random_digits(6)(rng)}"


def _chinese(rng: random.Random) -> str:
    region = rng.choice(("110101", "310104", "440305", "510107", "330106"))
    return f"{region}{rng.randint(1940, 2005)}{rng.randint(1, 12):02d}{rng.randint(1, 28):02d}{random_digits(3)(rng)}"


def _ssn(rng: random.Random) -> str:
    return f"{rng.randint(1, 665):03d}{rng.randint(1, 99):02d}{rng.randint(1, 9999):04d}"


ID_FORMATS = (
    IdFormat("us_ssn", "en", _ssn, 0, checksums.is_us_ssn, ("###-##-####",), "SSN"),
    IdFormat("us_ssn", "en", _ssn, 0, checksums.is_us_ssn, ("#########",), "Social Security number", True),
    IdFormat("dk_cpr", "da", _date("dmy", 3), 1, checksums.is_dk_cpr, ("######-####",), "CPR"),
    IdFormat("dk_cpr", "da", _date("dmy", 3), 1, checksums.is_dk_cpr, ("##########",), "CPR-nr.", True),
    IdFormat("nl_bsn", "nl", random_digits(8), 1, checksums.is_nl_bsn, ("#########", "#### ## ###"), "BSN", True),
    IdFormat(
        "fr_nir",
        "fr",
        _french,
        2,
        checksums.is_fr_nir,
        ("###############", "# ## ## ## ### ### ##"),
        "N° de sécurité sociale",
    ),
    IdFormat("de_idnr", "de", _german, 1, checksums.is_de_idnr, ("###########", "## ### ### ###"), "Steuer-ID"),
    IdFormat("it_cf", "it", _italian, 1, checksums.is_it_cf, ("################",), "Codice fiscale", False, _LETTERS),
    IdFormat("no_fnr", "nb", _date("dmy", 3), 2, checksums.is_no_fnr, ("###########", "###### #####"), "Fødselsnummer"),
    IdFormat(
        "pt_nif",
        "pt",
        lambda rng: rng.choice("123") + random_digits(7)(rng),
        1,
        checksums.is_pt_nif,
        ("#########", "### ### ###"),
        "NIF",
        True,
    ),
    IdFormat("br_cpf", "pt", random_digits(9), 2, checksums.is_br_cpf, ("###.###.###-##", "###########"), "CPF"),
    IdFormat("es_dni", "es", random_digits(8), 1, checksums.is_es_dni, ("#########", "########-#"), "DNI", False, _LETTERS),
    IdFormat(
        "es_nie",
        "es",
        lambda rng: rng.choice("XYZ") + random_digits(7)(rng),
        1,
        checksums.is_es_nie,
        ("#########", "#-#######-#"),
        "NIE",
        False,
        _LETTERS,
    ),
    IdFormat("se_pnr", "sv", _date("ymd", 3), 1, checksums.is_se_pnr, ("######-####",), "Personnummer"),
    IdFormat(
        "se_pnr",
        "sv",
        lambda rng: "19" + _date("ymd", 3)(rng),
        1,
        checksums.is_se_pnr,
        ("########-####", "############"),
        "Personnummer",
    ),
    IdFormat(
        "tr_tckn",
        "tr",
        lambda rng: rng.choice("123456789") + random_digits(8)(rng),
        2,
        checksums.is_tr_tckn,
        ("###########",),
        "T.C. Kimlik No",
    ),
    IdFormat(
        "cn_ric", "zh-Hans", _chinese, 1, checksums.is_cn_ric, ("##################",), "身份证号", False, "0123456789X"
    ),
    IdFormat(
        "tw_id",
        "zh-Hant",
        lambda rng: rng.choice(_LETTERS) + rng.choice("12") + random_digits(7)(rng),
        1,
        checksums.is_tw_id,
        ("##########",),
        "身分證字號",
    ),
    IdFormat(
        "jp_my_number",
        "ja",
        random_digits(11),
        1,
        checksums.is_jp_my_number,
        ("############", "#### #### ####"),
        "マイナンバー",
        True,
    ),
    IdFormat(
        "kr_rrn",
        "ko",
        lambda rng: _date("ymd", 0)(rng) + rng.choice("12") + random_digits(5)(rng),
        1,
        checksums.is_kr_rrn,
        ("######-#######",),
        "주민등록번호",
    ),
    IdFormat(
        "vn_cccd",
        "vi",
        lambda rng: rng.choice(("001", "079", "048")) + rng.choice("0123") + random_digits(8)(rng),
        0,
        checksums.is_vn_cccd,
        ("############",),
        "Số CCCD",
        True,
    ),
)


def draw_id(rng: random.Random, form: IdFormat, *, is_valid: bool = True) -> str:
    """Return a national id without separators; with `is_valid` False, one that breaks the rule of its check digits."""
    while True:
        number = form.body(rng) + "".join(rng.choice(form.check_characters) for _ in range(form.checks))
        if form.is_valid(number) == is_valid:
            return number
