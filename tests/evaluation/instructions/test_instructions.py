"""Each of IFEval's 25 kinds of instructions on responses that follow it and on near misses."""

from __future__ import annotations

from typing import Any

import pytest

from openafm.evaluation.instructions import (
    InstructionError,
    follows_all,
    follows_loosely,
    instruction_ids,
    read_instructions,
)
from openafm.evaluation.instructions.base import num_sentences, words

CASES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "keywords:existence": ({"keywords": ["cat", "Dog"]}, ["A CAT and a dog."], ["A category and a dog."]),
    "keywords:frequency": (
        {"keyword": "go", "frequency": 2.0, "relation": "at least"},
        ["Go, go!"],
        ["Go, gone!"],
    ),
    "keywords:forbidden_words": ({"forbidden_words": ["no"]}, ["I know."], ["No."]),
    "keywords:letter_frequency": (
        {"letter": "e", "let_frequency": 2, "let_relation": "less than"},
        ["The man"],
        ["Even"],
    ),
    "language:response_language": (
        {"language": "de"},
        ["Heute scheint die Sonne über den Bergen und wir gehen wandern."],
        ["The sun shines over the mountains today and we go hiking."],
    ),
    "length_constraints:number_words": ({"num_words": 3, "relation": "at least"}, ["It's a dog", "三个字"], ["a dog"]),
    "length_constraints:number_sentences": (
        {"num_sentences": 2, "relation": "less than"},
        ["Dr. Who paid 3.50 dollars."],
        ["One. Two!"],
    ),
    "length_constraints:number_paragraphs": (
        {"num_paragraphs": 2},
        ["one\n***\ntwo", "one\n\nstill one\n***\ntwo\n***"],
        ["one", "one\n***\n\n***\ntwo", "one *** two"],
    ),
    "length_constraints:nth_paragraph_first_word": (
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
        ['First.\n\n"Then, later"'],
        ["First.\n\nlater then", "Then\n\nThen\n\nThen"],
    ),
    "detectable_content:number_placeholders": ({"num_placeholders": 2}, ["[name], [street 1]"], ["[name] []"]),
    "detectable_content:postscript": (
        {"postscript_marker": "P.P.S"},
        ["Bye\nP.P.S. Hello", "Bye\nPPS: Hello"],
        ["Bye\nP.S. Hello", "Bye, P.P.S. inside"],
    ),
    "detectable_format:number_bullet_lists": ({"num_bullets": 2}, ["* a\n- b", "  * a\n  * b"], ["* a", "**a**\n* b"]),
    "detectable_format:constrained_response": ({}, ["My answer is maybe."], ["Maybe."]),
    "detectable_format:number_highlighted_sections": ({"num_highlights": 2}, ["*a* and **b c**"], ["*a* and * b", "** **"]),
    "detectable_format:multiple_sections": (
        {"section_spliter": "Section", "num_sections": 2},
        ["Section 1\nx\nSECTION 2\ny"],
        ["Section 1\nx\nSection two", "Subsection 1 Subsection 2"],
    ),
    "detectable_format:json_format": ({}, ['{"a": 1}', '```json\n{"a": 1}\n```'], ["{a: 1}", 'Here: {"a": 1}']),
    "detectable_format:title": ({}, ["<<A title>>\ntext"], ["<<>>", "<A title>"]),
    "combination:two_responses": ({}, ["one ****** two"], ["one", "same ****** same", "a ****** b ****** c"]),
    "combination:repeat_prompt": ({"prompt_to_repeat": "Say hi."}, ["say hi. Hi!"], ["Hi! Say hi."]),
    "startend:end_checker": ({"end_phrase": "The end."}, ["This is the end.", 'So: "the end."'], ["The end. Really"]),
    "startend:quotation": ({}, ['"quoted"', "„zitiert“"], ['"', 'say "x"']),
    "change_case:capital_word_frequency": (
        {"capital_frequency": 2, "capital_relation": "less than"},
        ["ONE more"],
        ["TWO MORE"],
    ),
    "change_case:english_capital": ({}, ["ALL, 1!"], ["All"]),
    "change_case:english_lowercase": ({}, ["all, 1!"], ["All"]),
    "punctuation:no_comma": ({}, ["a; b"], ["a, b", "一，二"]),
}


def _read(name: str, arguments: dict[str, Any]) -> Any:
    return read_instructions({"instruction_id_list": [name], "kwargs": [arguments]})


def test_all_kinds_of_ifeval_are_there() -> None:
    assert set(instruction_ids()) == set(CASES)
    assert len(CASES) == 25


@pytest.mark.parametrize("name", CASES)
def test_responses_that_follow_and_near_misses(name: str) -> None:
    arguments, follows, misses = CASES[name]
    instructions = _read(name, arguments | {"unused": None})
    assert [follows_all(instructions, response) for response in follows] == [[True]] * len(follows)
    assert [follows_all(instructions, response) for response in misses] == [[False]] * len(misses)
    assert follows_all(instructions, " \n") == [False]


def test_loose_checks_allow_an_introduction_and_markdown() -> None:
    lower, title = _read("change_case:english_lowercase", {})[0], _read("detectable_format:title", {})[0]
    response = "Sure!\n**some text** without <<title"
    assert follows_all((lower, title), response) == [False, False]
    assert follows_loosely((lower, title), response) == [True, False]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "expected lists of equal length"),
        ({"instruction_id_list": ["keywords:existance"], "kwargs": [{}]}, "did you mean 'keywords:existence'"),
        ({"instruction_id_list": ["keywords:existence"], "kwargs": [{}]}, "missing keywords"),
        ({"instruction_id_list": ["keywords:existence"], "kwargs": [None]}, "expected an object of arguments"),
        ({"instruction_id_list": ["detectable_format:title"], "kwargs": [{"size": 1}]}, "unknown key"),
    ],
)
def test_lines_that_are_no_instructions_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InstructionError, match=message):
        read_instructions(values)


def test_words_and_sentences_are_counted_in_many_scripts() -> None:
    assert words("don't stop, café 3") == ["don't", "stop", "café", "3"]
    assert num_sentences("你好。再见！") == 2
    assert num_sentences("# Title\n- first item\n- second item") == 3
    assert num_sentences('He said "no." Then he left... e.g. home.') == 3
