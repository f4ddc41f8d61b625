"""Rules of payment cards, bank accounts and national identity numbers. Inputs are without separators, upper case.

Every function returns True if the number follows the public rules of its issuer: length, dates, check digits.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence

IBAN_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BR": 29, "BY": 28, "CH": 21,
    "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18, "FO": 18, "FR": 27,
    "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26,
    "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "MC": 27, "MD": 24, "ME": 22,
    "MK": 19, "MR": 27, "MT": 31, "MU": 30, "NL": 18, "NO": 15, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24,
    "RS": 22, "SA": 24, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "TN": 24, "TR": 26, "UA": 29, "VG": 24, "XK": 20,
}  # fmt: skip

# First digits and lengths of the payment networks.
_CARDS = (
    (("4",), (13, 16, 19)),
    (tuple(map(str, range(51, 56))), (16,)),
    (tuple(map(str, range(2221, 2721))), (16,)),
    (("34", "37"), (15,)),
    (("300", "301", "302", "303", "304", "305", "36", "38", "39"), (14,)),
    (("6011", "644", "645", "646", "647", "648", "649", "65"), (16, 19)),
    (tuple(map(str, range(3528, 3590))), (16,)),
    (("62", "81"), (16, 17, 18, 19)),
    (("5018", "5020", "5038", "6304", "6759", "6761", "6763"), (16, 17, 18, 19)),
)
_ODD_DIGITS = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21)
_ODD_LETTERS = (*_ODD_DIGITS, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)
_ITALIAN_ODD = dict(zip("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", _ODD_DIGITS + _ODD_LETTERS, strict=True))
_ITALIAN_DIGITS = {letter: str(digit) for digit, letter in enumerate("LMNPQRSTUV")}  # replace digits of equal codes
_ITALIAN_MONTHS = "ABCDEHLMPRST"
_SPANISH_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"
_TAIWAN_LETTERS = "ABCDEFGHJKLMNPQRSTUVXYWZIO"  # the first letter stands for 10, the second for 11, ...
_BRITISH_EXCLUDED = ("BG", "GB", "KN", "NK", "NT", "TN", "ZZ")
_VIETNAM_PROVINCES = frozenset(
    (1, 2, 4, 6, 8, 10, 11, 12, 14, 15, 17, 19, 20, 22, 24, 25, 26, 27, 30, 31, 33, 34, 35, 36, 37, 38, 40, 42, 44, 45, 46,
     48, 49, 51, 52, 54, 56, 58, 60, 62, 64, 66, 67, 68, 70, 72, 74, 75, 77, 79, 80, 82, 83, 84, 86, 87, 89, 91, 92, 93, 94,
     95, 96)
)  # fmt: skip


def is_luhn(number: str) -> bool:
    """Luhn's check digit, ISO/IEC 7812."""
    total = 0
    for place, digit in enumerate(reversed(number)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 * (value > 9)
    return total % 10 == 0


def is_card(number: str) -> bool:
    """A payment card: prefix and length of a network, Luhn."""
    known = any(number.startswith(prefixes) and len(number) in lengths for prefixes, lengths in _CARDS)
    return known and len(set(number)) > 1 and is_luhn(number)


def is_iban(number: str) -> bool:
    """An international bank account number: length of the country, remainder 1 modulo 97."""
    if IBAN_LENGTHS.get(number[:2]) != len(number) or not number.isalnum() or not number[2:4].isdigit():
        return False
    return int("".join(str(int(character, 36)) for character in number[4:] + number[:4])) % 97 == 1


def is_us_ssn(number: str) -> bool:
    """A social security number of the United States: no check digit, but areas, groups and serials that are never issued."""
    area, group, serial = number[:3], number[3:5], number[5:]
    return area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"


def is_gb_nino(number: str) -> bool:
    """A national insurance number of the United Kingdom: no check digit, but prefixes that are never issued."""
    return number[:2] not in _BRITISH_EXCLUDED and number[0] not in "DFIQUV" and number[1] not in "DFIOQUV"


def is_dk_cpr(number: str) -> bool:
    """A Danish CPR number with a valid date and check digit."""
    return is_dk_cpr_date(number) and _weighted(number, (4, 3, 2, 7, 6, 5, 4, 3, 2, 1)) % 11 == 0


def is_dk_cpr_date(number: str) -> bool:
    """A Danish CPR number of any year; numbers since 2007 may lack the check digit."""
    seventh, year = int(number[6]), int(number[4:6])
    if seventh in (4, 9):
        century = 2000 if year < 37 else 1900
    elif seventh >= 5:
        century = 2000 if year < 58 else 1800
    else:
        century = 1900
    return _is_date(century + year, number[2:4], number[:2])


def is_nl_bsn(number: str) -> bool:
    """A Dutch citizen service number: the 11-test."""
    return int(number) > 0 and _weighted(number, (9, 8, 7, 6, 5, 4, 3, 2, -1)) % 11 == 0


def is_fr_nir(number: str) -> bool:
    """A French social security number with its key, modulo 97; Corsica has letters in the department."""
    digits = number[:13].replace("2A", "19").replace("2B", "18") if number[5:7] in ("2A", "2B") else number[:13]
    return digits.isdigit() and 97 - int(digits) % 97 == int(number[13:])


def is_de_idnr(number: str) -> bool:
    """A German tax number of a person: one digit two or three times in the first ten, check digit of ISO 7064 mod 11, 10."""
    counts = sorted(Counter(number[:10]).values())
    if number[0] == "0" or counts[-1] not in (2, 3) or (len(counts) > 1 and counts[-2] > 1):
        return False
    product = 10
    for digit in number[:10]:
        total = (int(digit) + product) % 10 or 10
        product = total * 2 % 11
    return (11 - product) % 10 == int(number[10])


def is_it_cf(number: str) -> bool:
    """An Italian tax code of a person: date of birth and check character."""
    digits = "".join(_ITALIAN_DIGITS.get(number[place], number[place]) for place in (6, 7, 9, 10))
    if not digits.isdigit() or number[8] not in _ITALIAN_MONTHS:
        return False
    day, month = int(digits[2:]) % 40, _ITALIAN_MONTHS.index(number[8]) + 1
    if not any(_is_date(century + int(digits[:2]), month, day) for century in (1900, 2000)):
        return False
    total = sum(_ITALIAN_ODD[character] for character in number[:15:2])
    total += sum(int(each) if each.isdigit() else ord(each) - ord("A") for each in number[1:15:2])
    return chr(ord("A") + total % 26) == number[15]


def is_no_fnr(number: str) -> bool:
    """A Norwegian birth number or D-number: date and two check digits."""
    day, month = int(number[:2]), int(number[2:4])
    day, month = day - 40 * (day > 40), month - 40 * (month > 40)
    if not any(_is_date(century + int(number[4:6]), month, day) for century in (1800, 1900, 2000)):
        return False
    return (
        _weighted(number[:10], (3, 7, 6, 1, 8, 9, 4, 5, 2, 1)) % 11 == 0
        and _weighted(number, (5, 4, 3, 2, 7, 6, 5, 4, 3, 2, 1)) % 11 == 0
    )


def is_pt_nif(number: str) -> bool:
    """A Portuguese tax number: first digit and check digit modulo 11."""
    check = (11 - _weighted(number[:8], range(9, 1, -1)) % 11) % 11 % 10
    return number[0] in "1235689" and check == int(number[8])


def is_br_cpf(number: str) -> bool:
    """A Brazilian CPF: two check digits modulo 11, not one digit repeated."""
    first = _weighted(number[:9], range(10, 1, -1)) * 10 % 11 % 10
    second = _weighted(number[:10], range(11, 1, -1)) * 10 % 11 % 10
    return len(set(number)) > 1 and number[9:] == f"{first}{second}"


def is_es_dni(number: str) -> bool:
    """A Spanish DNI: the letter is the number modulo 23."""
    return _SPANISH_LETTERS[int(number[:8]) % 23] == number[8]


def is_es_nie(number: str) -> bool:
    """A Spanish NIE, the number of foreigners: X, Y, Z stand for 0, 1, 2."""
    return is_es_dni(str("XYZ".index(number[0])) + number[1:])


def is_se_pnr(number: str) -> bool:
    """A Swedish personal or coordination number of 10 or 12 digits: date and Luhn."""
    short = number[-10:]
    centuries = (int(number[:2]) * 100,) if len(number) == 12 else (1800, 1900, 2000)
    day = int(short[4:6])
    day -= 60 * (day > 60)
    return any(_is_date(century + int(short[:2]), short[2:4], day) for century in centuries) and is_luhn(short)


def is_tr_tckn(number: str) -> bool:
    """A Turkish identity number: two check digits."""
    digits = list(map(int, number))
    tenth = (7 * sum(digits[0:9:2]) - sum(digits[1:8:2])) % 10
    return digits[0] != 0 and digits[9] == tenth and digits[10] == sum(digits[:10]) % 10


def is_cn_ric(number: str) -> bool:
    """A Chinese resident identity number of 18 characters: date and check character of ISO 7064 mod 11-2."""
    if number[0] not in "12345678" or not _is_date(number[6:10], number[10:12], number[12:14]):
        return False
    total = sum(int(digit) * pow(2, 17 - place, 11) for place, digit in enumerate(number[:17]))
    return "10X98765432"[total % 11] == number[17]


def is_tw_id(number: str) -> bool:
    """A Taiwanese identity number of a citizen (1, 2) or resident (8, 9): letter and check digit."""
    first = _TAIWAN_LETTERS.index(number[0]) + 10
    total = first // 10 + 9 * (first % 10) + _weighted(number[1:], (8, 7, 6, 5, 4, 3, 2, 1, 1))
    return number[1] in "1289" and total % 10 == 0


def is_jp_my_number(number: str) -> bool:
    """A Japanese individual number: check digit modulo 11."""
    remainder = _weighted(number[:11], (6, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2)) % 11
    return int(number[11]) == (0 if remainder <= 1 else 11 - remainder)


def is_kr_rrn(number: str) -> bool:
    """A Korean resident registration number with a valid date and check digit."""
    check = (11 - _weighted(number[:12], (2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5)) % 11) % 10
    return is_kr_rrn_date(number) and check == int(number[12])


def is_kr_rrn_date(number: str) -> bool:
    """A Korean resident registration number of any year; numbers since October 2020 lack the check digit."""
    century = {"9": 1800, "0": 1800, "3": 2000, "4": 2000, "7": 2000, "8": 2000}.get(number[6], 1900)
    return _is_date(century + int(number[:2]), number[2:4], number[4:6])


def is_vn_cccd(number: str) -> bool:
    """A Vietnamese citizen identity number: province, and the digit of century and sex. It has no check digit."""
    return int(number[:3]) in _VIETNAM_PROVINCES and number[3] in "0123"


def _weighted(number: str, weights: Sequence[int]) -> int:
    return sum(int(digit) * weight for digit, weight in zip(number, weights, strict=True))


def _is_date(year: str | int, month: str | int, day: str | int) -> bool:
    try:
        datetime.date(int(year), int(month), int(day))
    except ValueError:
        return False
    return True
