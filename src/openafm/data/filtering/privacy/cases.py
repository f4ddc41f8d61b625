"""Labelled cases that measure the recall and precision of the finder: personal data, and numbers that resemble it.

Every case is a sentence in one of sixteen languages with one value. Values are random. Their check
digits are those of `checksums`, which tests compare with another implementation.
"""

from __future__ import annotations

import random
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from openafm.data.filtering.privacy import checksums
from openafm.data.filtering.privacy.config import KINDS
from openafm.data.filtering.privacy.finder import Finder
from openafm.data.filtering.privacy.id_formats import ID_FORMATS, IdFormat, draw_id, random_digits

# language: text before, text after, the word for a phone
_FRAMES = {
    "en": ("Please note the details of the request.", "We answer within a few days.", "Phone"),
    "da": ("Se oplysningerne om sagen her.", "Vi svarer inden for få dage.", "Telefon"),
    "nl": ("Bekijk hier de gegevens van de aanvraag.", "Wij antwoorden binnen enkele dagen.", "Telefoon"),
    "fr": ("Voici les informations de la demande.", "Nous répondons en quelques jours.", "Téléphone"),
    "de": ("Hier stehen die Angaben zur Anfrage.", "Wir antworten in wenigen Tagen.", "Telefon"),
    "it": ("Ecco i dati della richiesta.", "Rispondiamo in pochi giorni.", "Telefono"),
    "nb": ("Her er opplysningene om saken.", "Vi svarer i løpet av få dager.", "Telefon"),
    "pt": ("Aqui estão os dados do pedido.", "Respondemos em poucos dias.", "Telefone"),
    "es": ("Estos son los datos de la solicitud.", "Respondemos en pocos días.", "Teléfono"),
    "sv": ("Här finns uppgifterna om ärendet.", "Vi svarar inom några dagar.", "Telefon"),
    "tr": ("Başvurunun bilgileri aşağıdadır.", "Birkaç gün içinde yanıt veriyoruz.", "Telefon"),
    "zh-Hans": ("以下是申请的资料。", "我们会在几天内答复。", "电话"),
    "zh-Hant": ("以下是申請的資料。", "我們會在幾天內答覆。", "電話"),
    "ja": ("お申し込みの内容は次のとおりです。", "数日以内にお返事します。", "電話番号"),
    "ko": ("신청 내용은 다음과 같습니다.", "며칠 안에 답변드립니다.", "전화"),
    "vi": ("Dưới đây là thông tin của yêu cầu.", "Chúng tôi trả lời trong vài ngày.", "Điện thoại"),
}
_REGIONS = {
    "en": ("US", "GB"), "da": ("DK",), "nl": ("NL",), "fr": ("FR",), "de": ("DE",), "it": ("IT",), "nb": ("NO",),
    "pt": ("BR", "PT"), "es": ("ES",), "sv": ("SE",), "tr": ("TR",), "zh-Hans": ("CN",), "zh-Hant": ("TW",), "ja": ("JP",),
    "ko": ("KR",), "vi": ("VN",),
}  # fmt: skip
_NAMES = ("anna", "bob", "chen", "davi", "elif", "finn", "giulia", "hugo", "ines", "jun", "kim", "lars", "minh", "noor")
_DOMAINS = ("example.com", "mail.example.org", "post.example.de", "example.co.uk", "uni-example.fr", "example.museum")
_CARD_PREFIXES = (
    ("4", 16),
    ("4", 13),
    ("51", 16),
    ("55", 16),
    ("2221", 16),
    ("34", 15),
    ("37", 15),
    ("36", 14),
    ("6011", 16),
    ("3528", 16),
    ("62", 19),
)
_LETTERS = string.ascii_uppercase


@dataclass(frozen=True)
class Case:
    """A text with the places of its personal data: (kind, start, end). `family` groups cases in reports."""

    text: str
    language: str
    family: str
    gold: tuple[tuple[str, int, int], ...]


def draw_card(rng: random.Random, *, is_valid: bool = True) -> str:
    """Return the digits of a card number."""
    while True:
        prefix, length = rng.choice(_CARD_PREFIXES)
        number = prefix + random_digits(length - len(prefix))(rng)
        if checksums.is_card(number) == is_valid:
            return number


def draw_iban(rng: random.Random, *, is_valid: bool = True) -> str:
    """Return an account number without spaces."""
    country = rng.choice(("DE", "FR", "NL", "ES", "IT", "DK", "SE", "NO", "PT", "TR", "GB", "AT", "BE", "CH", "MT"))
    length = checksums.IBAN_LENGTHS[country]
    bank = "".join(rng.choice(_LETTERS) for _ in range({"NL": 4, "GB": 4, "MT": 4, "IT": 1}.get(country, 0)))
    account = bank + random_digits(length - 4 - len(bank))(rng)
    check = 98 - int("".join(str(int(each, 36)) for each in account + country + "00")) % 97
    return f"{country}{check if is_valid else (check + rng.randint(1, 90)) % 99:02d}{account}"


def generate_cases(count: int, seed: int = 0) -> list[Case]:
    """Return labelled cases, about half of them without personal data. Deterministic in (count, seed)."""
    rng = random.Random(f"privacy:{seed}")
    drawers = [_email, _card, _iban, _ip, _phone, _phone, _national_id, _national_id, _national_id]
    cases = []
    for number in range(count):
        draw = drawers[number // 2 % len(drawers)] if number % 2 == 0 else rng.choice(_NEAR_MISSES)
        cases.append(draw(rng))
    return cases


def measure(finder: Finder, cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Return recall, precision and counts of each kind and of `all`. A finding counts if kind and place are exact."""
    right, gold, found = Counter[str](), Counter[str](), Counter[str]()
    for case in cases:
        places = {(each.kind, each.start, each.end) for each in finder.find(case.text, case.language)}
        for name, kinds in [("all", KINDS), *((kind, (kind,)) for kind in KINDS)]:
            mine = {place for place in places if place[0] in kinds}
            theirs = {place for place in case.gold if place[0] in kinds}
            right[name] += len(mine & theirs)
            gold[name] += len(theirs)
            found[name] += len(mine)
    return {
        name: {
            "recall": right[name] / max(1, gold[name]),
            "precision": right[name] / max(1, found[name]),
            "cases": gold[name],
            "found": found[name],
        }
        for name in ("all", *KINDS)
    }


def _case(language: str, family: str, value: str, kind: str = "", label: str = "") -> Case:
    """Return a case with a value, and an optional label, between the sentences of its language."""
    before, after, _ = _FRAMES[language]
    start = f"{before} {label}: " if label else f"{before} "
    gold = ((kind, len(start), len(start) + len(value)),) if kind else ()
    return Case(f"{start}{value}\n{after}", language, family, gold)


def _language(rng: random.Random) -> str:
    return rng.choice(tuple(_FRAMES))


def _grouped(number: str, sizes: Sequence[int], separator: str) -> str:
    parts, place = [], 0
    for size in [*sizes, len(number)]:
        parts.append(number[place : place + size])
        place += size
    return separator.join(part for part in parts if part)


def _laid_out(number: str, layout: str) -> str:
    characters = iter(number)
    return "".join(next(characters) if each == "#" else each for each in layout)


def _email(rng: random.Random) -> Case:
    name, other = rng.choice(_NAMES), rng.choice(_NAMES)
    local = rng.choice((name, f"{name}.{other}", f"{name}_{rng.randint(1, 99)}", f"{name}+{other}", f"{name[0]}{other}"))
    sign = "@" if rng.random() < 0.9 else rng.choice((" [at] ", "(at)"))
    return _case(_language(rng), "email", f"{local}{sign}{rng.choice(_DOMAINS)}", "email", rng.choice(("", "E-mail")))


def _card(rng: random.Random) -> Case:
    return _case(_language(rng), "card", _written_card(rng, draw_card(rng)), "card", rng.choice(("", "Visa")))


def _written_card(rng: random.Random, number: str) -> str:
    sizes = {15: (4, 6, 5), 14: (4, 6, 4), 16: (4, 4, 4, 4), 19: (4, 4, 4, 4, 3)}.get(len(number))
    return _grouped(number, sizes, rng.choice((" ", "-", ""))) if sizes else number


def _iban(rng: random.Random) -> Case:
    return _case(_language(rng), "iban", _grouped_iban(rng, draw_iban(rng)), "iban", rng.choice(("", "IBAN")))


def _grouped_iban(rng: random.Random, number: str) -> str:
    return _grouped(number, (4,) * (len(number) // 4), " ") if rng.random() < 0.6 else number


def _ip(rng: random.Random) -> Case:
    if rng.random() < 0.3:
        parts = ["2a02", "8109", *(f"{rng.randrange(65536):x}" for _ in range(6))]
        text = ":".join(parts) if rng.random() < 0.5 else ":".join(parts[:4]) + "::" + parts[-1]
    else:
        first = rng.choice([number for number in range(1, 224) if number not in (10, 100, 127, 169, 172, 192, 198, 203)])
        text = ".".join(map(str, (first, *(rng.randint(0, 255) for _ in range(3)))))
    return _case(_language(rng), "ip", text, "ip", rng.choice(("", "IP", "Server")))


def _phone(rng: random.Random) -> Case:
    from phonenumbers import PhoneNumberFormat, PhoneNumberType, example_number_for_type, format_number, is_valid_number

    language = _language(rng)
    region = rng.choice(_REGIONS[language])
    number = None
    while number is None or not is_valid_number(number):
        number = example_number_for_type(region, rng.choice((PhoneNumberType.FIXED_LINE, PhoneNumberType.MOBILE)))
        national = str(number.national_number) if number else ""
        if number:
            number.national_number = int(national[:-5] + random_digits(5)(rng))
    layout = rng.choice((PhoneNumberFormat.INTERNATIONAL, PhoneNumberFormat.NATIONAL, PhoneNumberFormat.E164))
    written = format_number(number, layout)
    if rng.random() < 0.15:
        written = written.replace(" ", rng.choice((".", "-", "  ")))
    label = _FRAMES[language][2] if rng.random() < 0.7 else ""
    return _case(language, f"phone.{region}", written, "phone", label)


def _national_id(rng: random.Random) -> Case:
    form = rng.choice(ID_FORMATS)
    # One in ten is in a text of another language or without its name, where weak formats cannot be found.
    is_hard = rng.random() < 0.1
    language = _language(rng) if is_hard else form.language
    label = form.keyword if rng.random() < 0.5 or (form.needs_keyword and not is_hard) else ""
    return _case(
        language, f"national_id.{form.name}", _laid_out(draw_id(rng, form), rng.choice(form.layouts)), "national_id", label
    )


def _wrong_id(rng: random.Random) -> Case:
    form = rng.choice([form for form in ID_FORMATS if form.checks])
    while True:
        number = draw_id(rng, form, is_valid=False)
        others = [other for other in ID_FORMATS if len(other.layouts[0].replace("-", "")) == len(number)]
        # A Danish or Korean number of recent years has no check digit, so a wrong one is not wrong.
        if form.name not in ("dk_cpr", "kr_rrn") and not any(_follows(other, number) for other in others):
            return _case(
                form.language, f"wrong.{form.name}", _laid_out(number, rng.choice(form.layouts)), label=form.keyword
            )
        form = rng.choice([form for form in ID_FORMATS if form.checks])


def _follows(form: IdFormat, number: str) -> bool:
    try:
        return form.is_valid(number)
    except (ValueError, KeyError, IndexError):  # letters where this id has digits
        return False


def _wrong_card(rng: random.Random) -> Case:
    return _case(_language(rng), "wrong.card", _written_card(rng, draw_card(rng, is_valid=False)), label="Visa")


def _wrong_iban(rng: random.Random) -> Case:
    return _case(_language(rng), "wrong.iban", _grouped_iban(rng, draw_iban(rng, is_valid=False)), label="IBAN")


def _order_number(rng: random.Random) -> Case:
    """Any number of 8 to 14 digits; by chance it may follow a rule, which counts as an error."""
    digits = random_digits(rng.randint(8, 14))(rng)
    written = rng.choice((digits, f"{digits[:3]}-{digits[3:]}", f"A{digits}", f"{digits[:4]}/{digits[4:]}"))
    return _case(_language(rng), "order", written, label=rng.choice(("Order", "Ref", "SKU", "")))


def _version(rng: random.Random) -> Case:
    parts = ".".join(str(rng.randint(0, limit)) for limit in (20, 30, 400, 300)[: rng.randint(3, 4)])
    return _case(_language(rng), "version", rng.choice((f"v{parts}", f"version {parts}", f"Build {parts}")))


def _date_or_time(rng: random.Random) -> Case:
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(1950, 2030)
    hour, minute, second = rng.randint(0, 23), rng.randint(0, 59), rng.randint(0, 59)
    forms = (
        f"{year}-{month:02d}-{day:02d}",
        f"{day:02d}.{month:02d}.{year}",
        f"{month}/{day}/{year}",
        f"{year}年{month}月{day}日",
        f"{year}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}",
        f"{hour:02d}:{minute:02d}:{second:02d}",
        f"{year - 4}-{year}",
        f"{day:02d}-{month:02d}-{year} {hour:02d}:{minute:02d}",
        f"{year}/{month:02d}/{day:02d}",
    )
    return _case(_language(rng), "date", rng.choice(forms))


def _amount(rng: random.Random) -> Case:
    value = rng.randint(1_000, 99_999_999)
    forms = (
        f"{value:,}",
        f"{value:,.2f} USD",
        f"{value:,}".replace(",", ".") + " €",
        f"{value:,}".replace(",", " ") + " kr",
        f"¥{value:,}",
        f"{value / 1000:.4f}",
        f"{value}",
        f"{rng.random() * 90:.6f}, {rng.random() * 180:.6f}",
        f"{value % 100}%",
    )
    return _case(_language(rng), "amount", rng.choice(forms))


def _code(rng: random.Random) -> Case:
    isbn = "978" + random_digits(9)(rng)
    check = (10 - sum(int(digit) * (1 + 2 * (place % 2)) for place, digit in enumerate(isbn))) % 10
    forms = (
        f"ISBN {isbn}{check}",
        f"ISBN {isbn[:3]}-{isbn[3]}-{isbn[4:7]}-{isbn[7:]}-{check}",
        f"#{random_digits(6)(rng)}",
        f"RFC {random_digits(4)(rng)}",
        f"https://example.org/item/{random_digits(16)(rng)}",
        f"{rng.randrange(1 << 64):016x}",
        f"DOI 10.{random_digits(4)(rng)}/{random_digits(8)(rng)}",
        f"{rng.choice(('react', 'lodash'))}@{rng.randint(1, 20)}.{rng.randint(0, 30)}.{rng.randint(0, 9)}",
        f"logo@{rng.randint(2, 3)}x.png",
        f"@{rng.choice(_NAMES)}",
        "git@example.com:team/project.git",
    )
    return _case(_language(rng), "code", rng.choice(forms))


def _private_ip(rng: random.Random) -> Case:
    last = f"{rng.randint(0, 255)}.{rng.randint(1, 254)}"
    forms = (
        f"192.168.{last}",
        f"10.0.{last}",
        f"172.16.{last}",
        "127.0.0.1",
        "0.0.0.0",
        "255.255.255.0",
        "::1",
        "fe80::1",
        f"256.{last}.7",
        f"{rng.randint(1, 9)}.{rng.randint(1, 9)}.{rng.randint(1, 9)}.{rng.randint(1, 9)}",
        "std::vector",
    )
    return _case(_language(rng), "private_ip", rng.choice(forms))


_NEAR_MISSES = (
    _wrong_id,
    _wrong_id,
    _wrong_card,
    _wrong_iban,
    _order_number,
    _order_number,
    _version,
    _date_or_time,
    _amount,
    _code,
    _private_ip,
)
