"""The finder on single texts and on thousands of labelled cases."""

import itertools
import random
import time

import pytest

from openafm.data.filtering.privacy import KINDS, PrivacyConfig
from openafm.data.filtering.privacy import finder as finder_module
from openafm.data.filtering.privacy.cases import generate_cases, measure
from openafm.data.filtering.privacy.finder import Finder
from openafm.data.filtering.privacy.id_formats import ID_FORMATS, IdFormat, draw_id
from openafm.data.filtering.privacy.numbers import ANY_NATIONAL_ID

_FINDER = Finder(KINDS, PrivacyConfig().phone_regions)


def _found(text: str, language: str = "en") -> list[tuple[str, str]]:
    return [(each.detail or each.kind, text[each.start : each.end]) for each in _FINDER.find(text, language)]


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en", "Mail bob.smith@example.com.", [("email", "bob.smith@example.com")]),
        ("en", "name [at] example [dot] org", [("email", "name [at] example [dot] org")]),
        ("zh-Hans", "邮箱：ｔｅｓｔ＠example.com。", [("email", "ｔｅｓｔ＠example.com")]),
        ("en", "SSN 219-09-9999, or 219-09-9998.", [("us_ssn", "219-09-9999"), ("us_ssn", "219-09-9998")]),
        ("en", "Card 4111 1111 1111 1111 123", [("card", "4111 1111 1111 1111")]),
        ("de", "IBAN DE89 3704 0044 0532 0130 00, Konto", [("iban", "DE89 3704 0044 0532 0130 00")]),
        ("nl", "GB29NWBK60161331926819", [("iban", "GB29NWBK60161331926819")]),
        ("en", "From 84.17.33.4 and 2a02:8109:9340:136c::1", [("ip", "84.17.33.4"), ("ip", "2a02:8109:9340:136c::1")]),
        ("de", "Telefon 030 1234567", [("phone", "030 1234567")]),
        ("en", "+44 20 7946 0958 or (212) 736-5000", [("phone", "+44 20 7946 0958"), ("phone", "(212) 736-5000")]),
        ("ko", "연락처는 010-2345-6789로", [("phone", "010-2345-6789")]),
        ("ja", "マイナンバー：123456789018です", [("jp_my_number", "123456789018")]),
        ("zh-Hans", "身份证号码11010519491231002X。", [("cn_ric", "11010519491231002X")]),
    ],
)
def test_personal_data_is_found_with_its_exact_place(language: str, text: str, expected: list[tuple[str, str]]) -> None:
    assert _found(text, language) == expected


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "Version 4.18.22.103 and v10.0.219.41"),
        ("en", "192.168.1.17, 127.0.0.1, 300.1.2.3, section 1.2.3.4"),
        ("en", "logo@2x.png, react@18.2.0, git@github.com:team/project.git, @handle"),
        ("en", "https://example.org/item/4111111111111111"),
        ("en", "2024-11-22, 12:30:45, 1999-2003, 1,234,567.89, 3.14159265"),
        ("nl", "Bestelnummer 123456782"),  # follows the 11-test, without its keyword
        ("de", "12.03.2024, 1.200.000 Euro, DIN 12345-678"),
        ("en", "4111 1111 1111 1112"),
        ("en", "std::vector<int> ab::cd"),
        ("da", "310262-5629"),  # the 31st of February
    ],
)
def test_resembling_texts_are_not_found(language: str, text: str) -> None:
    assert _found(text, language) == []


def test_weak_numbers_need_their_keyword() -> None:
    assert _found("BSN: 123456782", "nl") == [("nl_bsn", "123456782")]
    assert _found("BSN: 123456783", "nl") == []


def test_findings_do_not_overlap() -> None:
    places = [(each.start, each.end) for each in _FINDER.find("+49 30 1234567 DE89370400440532013000 " * 20, "de")]
    assert len(places) == 40
    assert all(last <= first for (_, last), (first, _) in itertools.pairwise(places))


@pytest.mark.parametrize("count", [1000, pytest.param(5000, marks=pytest.mark.slow)])
def test_recall_and_precision_on_labelled_cases(count: int) -> None:
    cases = generate_cases(count)
    figures = measure(_FINDER, cases)
    assert len({case.language for case in cases}) == 16
    assert figures["all"]["cases"] == count / 2
    assert figures["all"]["recall"] >= 0.98
    assert figures["all"]["precision"] >= 0.98
    for kind, floor in {"email": 1.0, "iban": 1.0, "card": 0.99, "national_id": 0.95, "ip": 0.99, "phone": 0.98}.items():
        assert figures[kind]["recall"] >= floor
    for kind, floor in {"email": 1.0, "iban": 1.0, "card": 0.98, "national_id": 0.99, "ip": 0.99, "phone": 0.95}.items():
        assert figures[kind]["precision"] >= floor


def test_cases_are_deterministic() -> None:
    assert generate_cases(50, seed=3) == generate_cases(50, seed=3)
    assert generate_cases(50, seed=3) != generate_cases(50, seed=4)


@pytest.mark.parametrize("part", ["1", "a@", "1 ", "a.a-", "1.1.1.", "DE89", "2a02:", "(at)", "x@a."])
def test_hostile_texts_take_linear_time(part: str) -> None:
    start = time.process_time()
    _FINDER.find(part * (20_000 // len(part)), "en")
    assert time.process_time() - start < 2


def test_addresses_are_found_wherever_they_are_in_a_long_text() -> None:
    rng = random.Random(3)
    parts = [
        "plain words at home, " * 30,
        "x" * 90,
        "@",
        "jo@a.example",
        "git@host.example:repo",
        "a.b+c [at] host [dot] example.org,",
    ]
    parts += [f"{'l' * 64}@{'h' * 63}.{'i' * 63}.example", "me(at)there.example\n", "a@b", "one@two.example@three.example "]
    text = " ".join(rng.choice(parts) for _ in range(300))
    expected = [match.span() for match in finder_module._EMAIL.finditer(text) if not match.group().startswith("git@")]
    found = Finder(("email",), {}).find(text, "en")
    assert [(each.start, each.end) for each in found] == expected
    assert len(expected) > 100


@pytest.mark.parametrize("form", ID_FORMATS, ids=lambda form: form.name)
def test_every_format_of_a_national_id_passes_the_common_expression(form: IdFormat) -> None:
    rng = random.Random(5)
    for layout in form.layouts:
        digits = iter(draw_id(rng, form))
        assert ANY_NATIONAL_ID.search("".join(next(digits) if mark == "#" else mark for mark in layout))
