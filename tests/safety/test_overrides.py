"""Override lists: disguised terms are found, words that contain a term are not; actions, exceptions, reload, updates."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openafm.adapters.delivery.keys import public_key, read_private_key, write_key_pair
from openafm.cli.main import run
from openafm.safety.guardrail import Allowed, CombinedGuardrail, OutputMonitor, Violation
from openafm.safety.overrides.folding import fold, squeezed
from openafm.safety.overrides.guardrail import FixedOverrides, OverrideGuardrail, OverridesFolder
from openafm.safety.overrides.lists import ActionFor, OverrideList, OverrideListError, parse_list, read_list, seed_lists
from openafm.safety.overrides.matcher import Overrides
from openafm.safety.overrides.updates import UntrustedUpdateError, apply_update, signed_update

pytest.importorskip("ahocorasick_rs")


def a_list(*terms: str, **values: object) -> OverrideList:
    defaults = {"name": "house", "subcategory": "hate.slurs", "terms": terms}
    return OverrideList(**{**defaults, **values})  # type: ignore[arg-type]


# Invented words, so that the tests carry no slurs.
HOUSE = Overrides(
    [a_list("grobnik", "tass", "melk*", "dark order", "bite", "schö", "黑帮派", "나쁜말", allow=("dark order form",))]
)


def found(text: str) -> list[str]:
    return [hit.term for hit in HOUSE.find(text)]


@pytest.mark.parametrize(
    "text",
    [
        "GROBNIK",
        "ｇｒｏｂｎｉｋ",
        "𝐠𝐫𝐨𝐛𝐧𝐢𝐤",
        "gr\u200bob\u00adnik",
        "grоbnіk",  # Cyrillic letters
        "g̶r̶o̶b̶n̶i̶k̶",
        "gröbnïk",
        "gr0bn1k",
        "9r0bn!k",
        "g r o b n i k",
        "g.r.o.b.n.i.k",
        "g_r_o_b_n_i_k",
        "g r 0 b n 1 k",
        "grob-nik",
        "gr*bnik",
        "g**bnik",
        "grooooobnik",
        "(grobnik)",
        "this_grobnik!",
    ],
)
def test_disguises_are_found(text: str) -> None:
    assert found(f"what a {text} here") == ["grobnik"]


@pytest.mark.parametrize(
    "text",
    [
        "grobniks",  # another word
        "ungrobnik",
        "grob nik",  # two words
        "grob. Nik",
        "grobnnik",  # one additional letter is another word
        "a bitte",
        "stass-furt tassen tas",
        "745",
        "scho",  # a short term with diacritics needs them
        "dark order form",
        "the darkorders",
        "",
        "***",
    ],
)
def test_other_words_are_not(text: str) -> None:
    assert found(text) == []


def test_a_bracket_is_a_letter_of_whole_words_alone() -> None:
    stems = Overrides([a_list("crobn*")])
    assert [hit.term for hit in stems.find("a (robn here")] == ["crobn*"]
    assert [hit.term for hit in stems.find("a crobniks here")] == ["crobn*"]
    assert stems.find("a word (robnik follows)") == []


def test_places_stems_phrases_and_scripts() -> None:
    text = "Melker, dark\n ORDER: 我黑帮派了 나쁜말이다"
    assert [(hit.term, text[hit.start : hit.end]) for hit in HOUSE.find(text)] == [
        ("melk*", "Melk"),
        ("dark order", "dark\n ORDER"),
        ("黑帮派", "黑帮派"),
        ("나쁜말", "나쁜말"),
    ]
    assert found("a dark order form and a dark order") == ["dark order"]
    decomposed = unicodedata.normalize("NFD", "나쁜말")
    assert found(decomposed) == ["나쁜말"]


def test_actions_by_locale_and_feature() -> None:
    overrides = Overrides(
        [
            a_list(
                "grobnik",
                locales=("de",),
                action="warn",
                by_locale=(ActionFor(name="de-AT", action="special"),),
                by_feature=(ActionFor(name="image_generation", action="block"),),
            )
        ]
    )

    def action(locale: str | None, feature: str | None = None) -> list[str]:
        return [hit.action for hit in overrides.find("ein Grobnik", locale, feature)]

    assert action("de") == action("de-CH") == action(None) == ["warn"]
    assert action("de-AT") == ["special"]
    assert action("de-AT", "image_generation") == ["block"]
    assert action("fr") == action("den") == []


def test_the_guardrail_blocks_and_combines() -> None:
    class Nothing:
        def check_input(self, text: str) -> Violation:
            return Violation(category="inner", reason="inner")

        check_output = check_input

    source = FixedOverrides(HOUSE)
    verdict = OverrideGuardrail(source).check_input("a gr0bnik")
    assert verdict == Violation(category="hate.slurs", reason="the text has a term of the list house")
    assert OverrideGuardrail(source).check_output("fine") == Allowed()
    assert CombinedGuardrail(OverrideGuardrail(source), Nothing()).check_output("fine") == Violation(
        category="inner", reason="inner"
    )
    monitor = OutputMonitor(OverrideGuardrail(source))
    assert isinstance([monitor.push(piece) for piece in "well, grob nik and " * 20 + "grobnik. "][-1], Allowed | Violation)
    assert isinstance(monitor.finish(), Violation)


def test_a_folder_is_reloaded_and_a_damaged_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "en.txt"
    path.write_text("# from a test, CC0\ngrobnik\n", encoding="utf-8")
    folder = OverridesFolder(tmp_path, seconds_between_looks=0)
    assert folder.current().lists[0].attribution == "from a test, CC0"
    assert [hit.action for hit in folder.current().find("grobnik", "en")] == ["warn"]
    path.write_text("flonk\n", encoding="utf-8")
    os.utime(path, ns=(1, 1))
    assert [hit.term for hit in folder.current().find("flonk grobnik")] == ["flonk"]
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    assert [hit.term for hit in folder.current().find("flonk")] == ["flonk"]
    assert "broken.json" in str(folder.error)
    (tmp_path / "broken.json").unlink()
    assert folder.current() is not None
    assert folder.error is None
    with pytest.raises(OverrideListError, match="pass a folder"):
        OverridesFolder(tmp_path / "nowhere")


def test_signed_updates(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    write_key_pair(tmp_path / "key")
    private = read_private_key(tmp_path / "key")
    folder = tmp_path / "lists"

    def document(sequence: int) -> bytes:
        values = {"name": "house", "sequence": sequence, "subcategory": "hate.slurs", "terms": ["grobnik"]}
        return json.dumps(values).encode()

    update = signed_update(document(2), private)
    assert apply_update(folder, update, public_key(private)).sequence == 2
    assert read_list(folder / "house.json").terms == ("grobnik",)
    for sequence in (1, 2):
        with pytest.raises(UntrustedUpdateError, match="higher number"):
            apply_update(folder, signed_update(document(sequence), private), public_key(private))
    forged = json.loads(update) | {"list": json.loads(signed_update(document(3), private))["list"]}
    with pytest.raises(UntrustedUpdateError, match="not signed"):
        apply_update(folder, json.dumps(forged).encode(), public_key(private))
    for damaged in (b"", b"[]", b'{"type":"openafm.OverrideUpdate"}', update[:-20]):
        with pytest.raises(OverrideListError):
            apply_update(folder, damaged, public_key(private))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action": "ban"}, "action"),
        ({"subcategory": "hate"}, "CATEGORY.NAME"),
        ({"terms": ()}, "at least one term"),
        ({"terms": ("...",)}, "must have a letter"),
        ({"name": "../x"}, "must consist of"),
        ({"sequence": 0}, "positive"),
        ({"words": ()}, "terms"),
    ],
)
def test_wrong_lists(change: dict[str, object], message: str) -> None:
    values = {"name": "house", "subcategory": "hate.slurs", "terms": ["grobnik"]} | change
    with pytest.raises(OverrideListError, match=message):
        parse_list(json.dumps(values).encode())


def test_seed_lists_name_their_source() -> None:
    lists = seed_lists()
    assert len({each.name for each in lists}) == len(lists) >= 10
    assert all(each.attribution for each in lists)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60))
def test_the_fast_form_agrees_with_the_one_with_places(text: str) -> None:
    text = unicodedata.normalize("NFC", text)
    folded = fold(text)
    assert squeezed(text) == folded.text
    assert all(0 <= start < end <= len(text) for start, end in zip(folded.starts, folded.ends, strict=True))


@settings(max_examples=200, deadline=None)
@given(st.text("ab .-*1\u200bé", max_size=40))
def test_any_text_has_valid_places(text: str) -> None:
    for hit in Overrides([a_list("ab", "aab b")]).find(text):
        assert re.search(r"[ab*1é]", unicodedata.normalize("NFC", text)[hit.start : hit.end])


def test_the_commands_sign_and_update(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cryptography")
    write_key_pair(tmp_path / "key")
    write_key_pair(tmp_path / "other")
    values = {"name": "house", "sequence": 2, "subcategory": "hate.slurs", "terms": ["grobnik"]}
    (tmp_path / "house.json").write_text(json.dumps(values))
    update, folder = str(tmp_path / "update"), str(tmp_path / "lists")
    assert run(["safety", "sign-list", str(tmp_path / "house.json"), "--key", str(tmp_path / "key"), "--out", update]) == 0
    assert run(["safety", "update-list", update, folder, "--key", str(tmp_path / "other.pub")]) == 1
    assert "not signed with this key" in capsys.readouterr().err
    assert run(["safety", "update-list", update, folder, "--key", str(tmp_path / "key.pub")]) == 0
    assert run(["safety", "update-list", update, folder, "--key", str(tmp_path / "key.pub")]) == 1
    assert "higher number" in capsys.readouterr().err
    assert run(["safety", "check", "a gr0bnik", "--lists", folder]) == 1


def first_blocked(text: str, size: int) -> int | None:
    """Return how many characters a stream had when it was blocked; None: never."""
    monitor = OutputMonitor(OverrideGuardrail(FixedOverrides(HOUSE)))
    for place in range(0, len(text), size):
        if isinstance(monitor.push(text[place : place + size]), Violation):
            return place + size
    return len(text) if isinstance(monitor.finish(), Violation) else None


@pytest.mark.parametrize("size", [1, 7, 2000])
@pytest.mark.parametrize(
    "term",
    [
        "grob" + "\u200b" * 500 + "nik",
        "grob" + "\u0300\u0301" * 300 + "nik",
        "gro" + "b" * 900 + "nik",
        "dark" + " " * 900 + "order",
        "dark" + " \u200b" * 500 + "order",
        "".join(letter + "\u0301\u200b" * 80 for letter in "grobnik"),
    ],
    ids=["invisible", "diacritics", "letters", "spaces", "mixed", "every letter"],
)
def test_padding_does_not_hide_a_term_of_a_stream(term: str, size: int) -> None:
    assert found(f"one {term} two")
    assert first_blocked(f"one {term} two three", size) is not None


def test_paragraphs_and_words_of_a_stream_stay_apart() -> None:
    for text in ("grob. " + "-" * 900 + "\n\nnik", "a grob" + " " * 900 + "nik", "xgrobnik " * 200):
        assert found(text) == []
        assert first_blocked(text, 1) is None
