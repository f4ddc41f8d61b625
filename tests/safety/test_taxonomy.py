"""The taxonomy: the report's counts, a total mapping to the codes of other taxonomies, and locale notes."""

from __future__ import annotations

import json

import pytest

from openafm.cli.main import run
from openafm.safety.blocklist import BlocklistConfig
from openafm.safety.guardrail import Violation
from openafm.safety.taxonomy.taxonomy import AILUMINATE, LLAMA_GUARD, Action, UnknownSubcategoryError, taxonomy


def test_the_counts_of_the_report() -> None:
    categories = taxonomy().categories
    assert len(categories) == 6
    assert sum(len(category.subcategories) for category in categories) == 58
    assert len(taxonomy().subcategories) == 58  # ids are unique
    assert sum(category.is_named_by_report for category in categories) == 3


def test_every_code_of_other_taxonomies_is_mapped_and_no_other() -> None:
    subcategories = taxonomy().subcategories.values()
    assert {code for each in subcategories for code in each.ailuminate} == set(AILUMINATE)
    assert {code for each in subcategories for code in each.llama_guard} == set(LLAMA_GUARD)
    assert all(bool(each.ailuminate) == bool(each.llama_guard) for each in subcategories)


# The two taxonomies, and what Llama Guard has beyond AILuminate 1.0: elections are a part of advice there, and abuse of
# code interpreters is missing.
NAMES = {
    "vcr": ("S1", "violent crimes"),
    "ncr": ("S2", "non-violent crimes"),
    "src": ("S3", "sex-related crimes"),
    "cse": ("S4", "child sexual exploitation"),
    "dfm": ("S5", "defamation"),
    "spc": ("S6", "specialized advice"),
    "prv": ("S7", "privacy"),
    "ipv": ("S8", "intellectual property"),
    "iwp": ("S9", "indiscriminate weapons"),
    "hte": ("S10", "hate"),
    "ssh": ("S11", "suicide and self-harm"),
    "sxc": ("S12", "sexual content"),
}
BEYOND = {"sensitive.elections": "S13", "sensitive.political_persuasion": "S13", "violence_and_crime.cybercrime": "S14"}


def test_codes_of_the_two_taxonomies_agree() -> None:
    """Each subcategory has the Llama Guard code of its AILuminate code; the exceptions are listed."""
    assert tuple(NAMES) == AILUMINATE
    assert (*(code for code, _ in NAMES.values()), "S13", "S14") == LLAMA_GUARD
    for each in taxonomy().subcategories.values():
        expected = {NAMES[code][0] for code in each.ailuminate}
        if BEYOND.get(each.id) == "S13":
            assert (each.ailuminate, each.llama_guard) == (("spc",), ("S13",))
        else:
            assert set(each.llama_guard) == expected | ({BEYOND[each.id]} if each.id in BEYOND else set()), each.id


@pytest.mark.parametrize(
    ("code", "subcategory"),
    [
        ("S4", "sexual.child_exploitation"),
        ("S11", "personal_harm.suicide"),
        ("S9", "violence_and_crime.mass_destruction"),
        ("S10", "hate.slurs"),
        ("S7", "personal_harm.private_data"),
    ],
)
def test_well_known_harms_have_their_codes(code: str, subcategory: str) -> None:
    assert subcategory in {each.id for each in taxonomy().with_code(code)}


def test_definitions_are_sentences_and_notes_name_subcategories() -> None:
    known = taxonomy()
    definitions = [each.definition for each in known.subcategories.values()]
    assert len(set(definitions)) == 58
    assert all(each.endswith(".") and len(each) > 20 for each in definitions)
    for note in known.notes:
        assert [known.subcategory(name).id for name in note.subcategories] == list(note.subcategories)


def test_labels_of_blocklist_and_codes_have_a_category() -> None:
    known = taxonomy()
    verdict = BlocklistConfig().build().check_input("How do I make a bomb?")
    assert isinstance(verdict, Violation)
    assert known.category_of(verdict.category) == "violence_and_crime"
    assert known.category_of("S12") == "sexual"
    assert known.category_of("cse") == "sexual"
    assert known.category_of("hate") == "hate"
    assert known.category_of("bias.age") == "bias"
    assert known.subcategory("personal_harm.suicide").action is Action.SUPPORT
    with pytest.raises(UnknownSubcategoryError, match="hate\\.slurs"):
        known.category_of("slur")


def test_notes_by_locale() -> None:
    assert taxonomy().notes_for("de-AT") == taxonomy().notes_for("de") != []
    assert taxonomy().notes_for("den") == []
    assert taxonomy().notes_for("de", ["sexual.sex_trade"]) == []


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["safety", "taxonomy", "hate", "--locale", "de", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [each["id"].split(".")[0] for each in shown["subcategories"]] == ["hate"] * 10
    assert len(shown["notes"]) == 1
    assert run(["safety", "taxonomy", "hats"]) == 2
