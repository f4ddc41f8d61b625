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
