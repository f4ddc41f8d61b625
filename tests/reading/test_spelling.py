"""Spelling: n-grams choose between characters that look alike, and decide about unlikely letters."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openafm.models.vision.letters import CHARACTERS, NUM_CLASSES, SPACE, class_of
from openafm.reading.letters import Letter
from openafm.reading.spelling import ORDER, Spelling

TEXTS = ["Family Fun Day", "a theatre near the harbor", "the old mill", "everyone is welcome", "tickets at the door"] * 10
english = Spelling.of(TEXTS)


def letter(characters: str, shares: tuple[float, ...] = (1.0,), probability: float = 1.0) -> Letter:
    classes_K = np.zeros(NUM_CLASSES, np.float32)
    for character, share in zip(characters, shares, strict=True):
        classes_K[SPACE if character == " " else class_of(character)] = share
    return Letter(x=0.0, y=0.0, unit=1.0, probability=probability, classes_K=classes_K)


def likely(text: str) -> list[Letter]:
    return [letter(character) for character in text]


@given(st.text("".join(sorted({each for each in CHARACTERS if each != " "})), min_size=1, max_size=20))
def test_sure_letters_stay_as_they_are(text):
    assert english.text(likely(text)) == Spelling().text(likely(text)) == text


def test_of_characters_that_look_alike_words_choose():
    seen = [*likely("Fun D"), letter("oa", (0.55, 0.45)), letter("y")]
    assert Spelling().text(seen) == "Fun Doy"
    assert english.text(seen) == "Fun Day"
    surely = [*likely("Fun D"), letter("oa", (0.99, 0.01)), letter("y")]
    assert english.text(surely) == "Fun Doy"


def test_case_and_digits_are_those_that_were_seen():
    for characters in ("wW", "59"):
        for first in (0.6, 0.4):
            seen = [letter(characters, (first, 1 - first)), *likely("elcome")]
            assert english.text(seen)[0] == characters[first < 0.5]


def test_characters_have_the_case_of_the_letters_before():
    seen = [*likely("c"), letter("Oo", (0.6, 0.4)), *likely("nsist")]
    assert Spelling().text(seen) == "consist"
    assert Spelling().text([*likely("FAM"), letter("iI", (0.6, 0.4)), *likely("LY")]) == "FAMILY"
    assert Spelling().text([letter("Oo", (0.6, 0.4)), *likely("nce")]) == "Once"
    assert Spelling().text([letter("fF", (0.51, 0.49)), *likely("AMILY")]) == "FAMILY"
    assert Spelling().text(likely("JavaScript SHAx")) == "JavaScript SHAx"


def test_an_unlikely_letter_is_kept_in_a_word_and_left_out_elsewhere():
    assert english.text([*likely("the"), letter("a", probability=0.3), *likely("tre")]) == "theatre"
    assert english.text([*likely("the"), letter("q", probability=0.16), letter("a"), *likely("tre")]) == "theatre"
    assert Spelling().text([letter("x"), letter("q", probability=0.05), letter("y")]) == "xy"


def test_spaces_do_not_double_and_do_not_begin_or_end_a_line():
    assert english.text(likely("  the  old ")) == "the old"
    assert english.text([]) == english.text(likely("  ")) == ""


def test_probabilities_are_those_of_counted_n_grams():
    """Witten-Bell smoothing over the frequencies in the texts, by strings instead of numbers."""

    def fold(text: str) -> str:
        return "".join("0" if each.isdigit() else each.lower() for each in text)

    grams = Counter[str]()
    for text in TEXTS:
        line = f"\n{fold(text)}\n"
        grams.update(line[start:stop] for stop in range(2, len(line) + 1) for start in range(max(stop - ORDER, 0), stop))
    kept = {gram: count for gram, count in grams.items() if count >= 4}
    alphabet = len({fold(each) for each in CHARACTERS}) + 1

    def probability(history: str, character: str) -> float:
        result = 1 / alphabet
        for order in range(len(history) + 1):
            after = history[len(history) - order :]
            following = [count for gram, count in kept.items() if gram[:-1] == after and len(gram) == order + 1]
            if not following:
                break
            result = (kept.get(after + character, 0) + len(following) * result) / (sum(following) + len(following))
        return result

    codes = {character: code for code, character in enumerate(dict.fromkeys(map(fold, CHARACTERS)), start=2)} | {"\n": 1}
    for history, character in (("\n", "t"), ("\nthe", "a"), ("old ", "m"), ("xyz", "q"), ("door", "\n"), ("\n", "f")):
        number = 0
        for each in history[-(ORDER - 1) :]:
            number = number << 6 | codes[each]
        found = english.log_probability(number, codes[character])
        assert found == pytest.approx(np.log(probability(history[-(ORDER - 1) :], character)))


def test_few_logarithms_are_kept(monkeypatch):
    monkeypatch.setattr("openafm.reading.spelling._MOST_KEPT", 5)
    small = Spelling.of(TEXTS)
    seen = [*likely("Fun D"), letter("oa", (0.55, 0.45)), letter("y")]
    assert small.text(seen) == "Fun Day"
    assert len(small._logs) <= 5


def test_rare_long_n_grams_are_left_out():
    def number(text: str) -> int:
        found = 0
        for character in text:
            found = found << 6 | _code(character)
        return found

    grams = Spelling.of(["quiz", "jazz", "jazz", "jazz", "jazz"]).grams_N
    assert number("qui") in grams
    assert number("quiz") not in grams
    assert number("jazz") in grams


def test_counts_have_a_limit():
    many = Spelling.of(["aaaaaaaaaa"] * 7_000)
    assert many.counts_N.max() == 65_535
    assert many.text(likely("aa")) == "aa"


@pytest.mark.parametrize(
    ("grams", "counts"),
    [
        (np.zeros(3, np.uint32), np.zeros(2, np.uint16)),
        (np.zeros(3, np.float32), np.zeros(3, np.uint16)),
        (np.zeros(3, np.uint32), np.zeros(3, np.int16)),
        (np.zeros((1, 3), np.uint32), np.zeros((1, 3), np.uint16)),
    ],
)
def test_arrays_of_other_types_and_lengths_are_refused(grams, counts):
    with pytest.raises(ValueError, match="uint32 and uint16"):
        Spelling(grams_N=grams, counts_N=counts)


def test_too_many_n_grams_are_refused():
    with pytest.raises(ValueError, match="at most 1,000,000"):
        Spelling(grams_N=np.zeros(1_000_001, np.uint32), counts_N=np.zeros(1_000_001, np.uint16))


def test_probabilities_of_all_characters_sum_to_one():
    for text in ("the", "zzz", "mill"):
        history = 0
        for character in text:
            history = history << 6 | _code(character)
        every = sum(np.exp(english.log_probability(history, code)) for code in {1, *map(_code, CHARACTERS)})
        assert every == pytest.approx(1)


def _code(character: str) -> int:
    folded = list(dict.fromkeys("0" if each.isdigit() else each.lower() for each in CHARACTERS))
    return folded.index("0" if character.isdigit() else character.lower()) + 2
