"""Rules of numbers, compared with published examples and with python-stdnum."""

import importlib
import random
import string

import pytest

from openafm.data.filtering.privacy import checksums
from openafm.data.filtering.privacy.cases import draw_card, draw_iban
from openafm.data.filtering.privacy.id_formats import ID_FORMATS, draw_id

_ORACLES = {
    "us_ssn": "us.ssn",
    "nl_bsn": "nl.bsn",
    "fr_nir": "fr.nir",
    "de_idnr": "de.idnr",
    "it_cf": "it.codicefiscale",
    "no_fnr": "no.fodselsnummer",
    "pt_nif": "pt.nif",
    "br_cpf": "br.cpf",
    "es_dni": "es.dni",
    "es_nie": "es.nie",
    "se_pnr": "se.personnummer",
    "tr_tckn": "tr.tckimlik",
    "cn_ric": "cn.ric",
    "kr_rrn": "kr.rrn",
}
_STRICTER_ORACLES = ("no_fnr", "kr_rrn", "cn_ric")  # they also check lists of places and centuries


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("is_card", "4111111111111111"),
        ("is_card", "378282246310005"),
        ("is_iban", "DE89370400440532013000"),
        ("is_iban", "GB29NWBK60161331926819"),
        ("is_iban", "MT84MALT011000012345MTLCAST001S"),
        ("is_dk_cpr", "2110625629"),
        ("is_tw_id", "A123456789"),
        ("is_jp_my_number", "123456789018"),
        ("is_fr_nir", "295109912611193"),
        ("is_de_idnr", "36574261809"),
        ("is_it_cf", "RCCMNL83S18D969H"),
        ("is_cn_ric", "11010519491231002X"),
        ("is_tr_tckn", "17291716060"),
        ("is_vn_cccd", "001099012345"),
        ("is_gb_nino", "AA123456C"),
    ],
)
def test_published_examples_are_valid(name: str, number: str) -> None:
    assert getattr(checksums, name)(number)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("is_card", "4111111111111112"),
        ("is_card", "0000000000000000"),
        ("is_iban", "DE89370400440532013001"),
        ("is_iban", "DE8937040044053201300"),
        ("is_us_ssn", "000123456"),
        ("is_us_ssn", "666123456"),
        ("is_us_ssn", "123450000"),
        ("is_dk_cpr", "3102625629"),
        ("is_tw_id", "A123456788"),
        ("is_jp_my_number", "123456789019"),
        ("is_gb_nino", "GB123456C"),
        ("is_vn_cccd", "999099012345"),
    ],
)
def test_broken_examples_are_invalid(name: str, number: str) -> None:
    assert not getattr(checksums, name)(number)


@pytest.mark.parametrize("form", [form for form in ID_FORMATS if form.name in _ORACLES], ids=lambda form: form.name)
def test_national_ids_agree_with_another_implementation(form) -> None:
    """Both implementations accept the valid numbers, and both reject numbers with wrong check digits."""
    oracle = importlib.import_module(f"stdnum.{_ORACLES[form.name]}")
    rng = random.Random(form.name)
    num_accepted = sum(oracle.is_valid(draw_id(rng, form)) for _ in range(50))
    assert num_accepted == 50 or (form.name in _STRICTER_ORACLES and num_accepted >= 20)
    if form.checks:
        assert not any(oracle.is_valid(draw_id(rng, form, is_valid=False)) for _ in range(50))


def test_cards_and_accounts_agree_with_another_implementation() -> None:
    luhn, iban = importlib.import_module("stdnum.luhn"), importlib.import_module("stdnum.iban")
    rng = random.Random(0)
    for _ in range(300):
        digits = "".join(rng.choice(string.digits) for _ in range(rng.randint(8, 19)))
        assert checksums.is_luhn(digits) == luhn.is_valid(digits)
        assert luhn.is_valid(draw_card(rng))
        number = draw_iban(rng)
        assert iban.is_valid(number, check_country=False)
        assert checksums.is_iban(number)
        assert not iban.is_valid(draw_iban(rng, is_valid=False), check_country=False)
