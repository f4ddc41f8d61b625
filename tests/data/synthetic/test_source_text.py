"""The text format of hand-written files: what it parses to, how it is filled, and where mistakes are reported."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from openafm.data.synthetic.rendering import Piece, Pieces, render, text_of, value_of
from openafm.data.synthetic.text_files.source_text import (
    Line,
    Slot,
    SourceTextError,
    parse_frame,
    read_sections,
    read_with_more,
)


def line(text: str) -> Line:
    return Line(text=text, number=7, file="en/events.txt")


def filled(text: str, language: str = "en", **values: str) -> str:
    def resolve(slot: Slot) -> Pieces:
        return (Piece(values[slot.name]),)

    return text_of(render(parse_frame(line(text)), random.Random(0), resolve, language=language))


def test_slots_capitals_escapes_and_line_breaks() -> None:
    assert filled(r"{A} and {a}\n\[{b}\] \<3 (ok)", a="ab", b="x") == "Ab and ab\n[x] <3 (ok)"
    assert filled("{Istanbul}", "tr", istanbul="istanbul") == "İstanbul"


def test_groups_are_kept_or_left_out_and_choices_are_drawn() -> None:
    frame = parse_frame(line("(hi|hello) {a}[, {b}]"))
    resolve = {"a": (Piece("A"),), "b": (Piece("B"),)}
    texts = {
        text_of(render(frame, random.Random(seed), lambda slot: resolve[slot.name], keep=kept.__eq__))
        for kept in (frozenset({"b"}), frozenset[str]())
        for seed in range(20)
    }
    assert texts == {"hi A, B", "hello A, B", "hi A", "hello A"}
    assert frame.names == {"a", "b"}
    assert frame.required == {"a"}


def test_spans_are_values_letter_by_letter() -> None:
    pieces = render(parse_frame(line("go <title: see {a}> <at {b}>")), random.Random(0), lambda _: (Piece("X"),))
    assert text_of(pieces) == "go see X at X"
    assert value_of(pieces, "title") == "see X"
    assert value_of(pieces, "bare") == "at X"
    assert value_of(pieces, "place") is None


@pytest.mark.parametrize(
    ("word", "expected"), [("책", "책이"), ("사과", "사과가"), ("7", "7이"), ("Tom", "Tom이"), ("Anna", "Anna가")]
)
def test_korean_particles_follow_the_sound(word: str, expected: str) -> None:
    assert filled("{a}(이/가)", "ko", a=word) == expected


def test_a_slot_has_form_divisor_and_value() -> None:
    (slot,) = parse_frame(line("{minutes:word/60}")).slots
    assert (slot.name, slot.form, slot.divisor) == ("minutes", "word", 60)
    (slot,) = parse_frame(line("{flag=living room}")).slots
    assert slot.value == "living room"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a [b", "']' is missing"),
        ("a ] b", "closes nothing"),
        ("{a b}", "malformed slot"),
        ("[a [b] c]", "nested"),
        ("<title: a", "'>' is missing"),
    ],
)
def test_mistakes_have_file_and_line(text: str, message: str) -> None:
    with pytest.raises(SourceTextError, match=r"en/events.txt:7: .*" + message):
        parse_frame(line(text))


def test_sections(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("# comment\n\n== one | x | y=z\nfirst  \n# no\nsecond\n== two\n", encoding="utf-8")
    one, two = read_sections(file)
    assert (one.name, one.options, [line.text for line in one.lines]) == ("one", ("x", "y=z"), ["first", "second"])
    assert [line.number for line in one.lines] == [4, 6]
    assert two.lines == ()
    file.write_text("text\n== one\n")
    with pytest.raises(SourceTextError, match=":1: text before the first header"):
        read_sections(file)
    file.write_text("== one\n== one\n")
    with pytest.raises(SourceTextError, match=":2: a second section 'one'"):
        read_sections(file)
    with pytest.raises(SourceTextError, match="cannot be read"):
        read_sections(tmp_path / "none.txt")


def test_files_beside_one_add_lines_to_its_sections(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("== one | x\nfirst\n== two\n")
    (tmp_path / "a_z.txt").write_text("== three\nthird\n== one\nlast\n")
    (tmp_path / "a_b.txt").write_text("== one\nsecond\n")
    (tmp_path / "ab.txt").write_text("== four\nother\n")
    sections = read_with_more(file)
    found = [(section.name, [line.text for line in section.lines]) for section in sections]
    assert found == [("one", ["first", "second", "last"]), ("two", []), ("three", ["third"])]
    assert sections[0].options == ("x",)
    assert [line.file.rpartition("/")[2] for line in sections[0].lines] == ["a.txt", "a_b.txt", "a_z.txt"]
