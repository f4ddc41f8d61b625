"""The 25 checks of IFEval: verdicts of the published program, written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openafm.evaluation.harness.task import Output, TaskDataError
from openafm.evaluation.tasks.ifeval import IFEvalConfig
from openafm.evaluation.tasks.ifeval_rules import CHECKS, follows

LEAST: dict[str, Any] = {"relation": "at least"}
CASES: list[tuple[str, dict[str, Any], str, bool]] = [
    ("keywords:existence", {"keywords": ["cat"]}, "Concatenate.", True),  # inside a word, as published
    ("keywords:existence", {"keywords": ["cat", "dog"]}, "A cat.", False),
    ("keywords:frequency", {"keyword": "a", "frequency": 2, **LEAST}, "A banana", True),
    ("keywords:frequency", {"keyword": "a", "frequency": 2, "relation": "less than"}, "a b", True),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "Concatenate.", True),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "A CAT.", False),
    ("keywords:letter_frequency", {"letter": "#", "let_frequency": 2, "let_relation": "at least"}, "# #", True),
    ("language:response_language", {"language": "de"}, "Das ist ein deutscher Satz über das Wetter.", True),
    ("language:response_language", {"language": "fr"}, "Das ist ein deutscher Satz über das Wetter.", False),
    ("language:response_language", {"language": "fr"}, "123", True),  # no letters
    ("length_constraints:number_sentences", {"num_sentences": 2, **LEAST}, "Dr. No came. He left.", True),
    ("length_constraints:number_sentences", {"num_sentences": 3, **LEAST}, "Dr. No came. He left.", False),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", True),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a *** *** b", False),
    ("length_constraints:number_words", {"num_words": 3, **LEAST}, "It's two", True),  # It, s, two
    ("length_constraints:number_words", {"num_words": 7, **LEAST}, "यह हिन्दी में एक वाक्य है", False),  # 10 without marks
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "So"},
        "A.\n\n'so, it",
        True,
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "so"},
        "A.\n\nb.\n\nso",
        False,
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] []", True),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye p. s. more", True),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Bye P.S. more", False),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b\n** c", True),
    ("detectable_format:constrained_response", {}, "Well. My answer is maybe.", True),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "**a** b", False),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* *b*", True),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1 a Section 2",
        True,
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', True),
    ("detectable_format:json_format", {}, "[" * 100_000, False),
    ("detectable_format:title", {}, "<<A>> text", True),
    ("detectable_format:title", {}, "<< >>", False),
    ("combination:two_responses", {}, "a ****** b", True),
    ("combination:two_responses", {}, "a ****** a", False),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say A"}, "say a. A", True),
    ("startend:end_checker", {"end_phrase": "Any more?"}, 'Yes. "any more?"', True),
    ("startend:quotation", {}, '"a"', True),
    ("startend:quotation", {}, "“a”", False),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"}, "AN IBM pc", True),
    ("change_case:english_capital", {}, "THIS IS AN ENGLISH SENTENCE ABOUT THE WEATHER.", True),
    ("change_case:english_capital", {}, "DAS IST EIN DEUTSCHER SATZ ÜBER DAS WETTER.", False),
    ("change_case:english_lowercase", {}, "this is an english sentence about the weather.", True),
    ("punctuation:no_comma", {}, "a， b", True),  # other commas are not commas, as published
    ("punctuation:no_comma", {}, "a, b", False),
]


@pytest.mark.parametrize(("name", "arguments", "response", "expected"), CASES)
def test_checks(name: str, arguments: dict[str, Any], response: str, expected: bool) -> None:
    assert follows(name, arguments, response) is expected


def test_every_kind_has_a_case() -> None:
    assert {name for name, *_ in CASES} == set(CHECKS)
    assert len(CHECKS) == 25


def test_an_empty_response_follows_nothing() -> None:
    assert not any(follows(name, arguments, " \n") for name, arguments, *_ in CASES)


def test_strict_and_loose_verdicts(tmp_path: Path) -> None:
    row = {
        "key": 1,
        "prompt": "Quote it.",
        "instruction_id_list": ["startend:quotation", "punctuation:no_comma"],
        "kwargs": [{}, {}],
    }
    (tmp_path / "input_data.jsonl").write_text(json.dumps(row))
    (item,) = IFEvalConfig().items(tmp_path)
    verdict = IFEvalConfig().judge(item, Output(text='Sure:\n"a"'))
    assert verdict.scores["inst_level_strict_acc"] == (0.0, 1.0)
    assert verdict.scores["prompt_level_loose_acc"] == 1.0
    assert verdict.extraction == "breaks startend:quotation"
    assert IFEvalConfig().failed(item, Output(error="too long")).scores["inst_level_strict_acc"] == (0.0, 0.0)
    (tmp_path / "input_data.jsonl").write_text(json.dumps({**row, "instruction_id_list": ["startend:quote", "a"]}))
    with pytest.raises(TaskDataError, match="did you mean 'startend:quotation'"):
        list(IFEvalConfig().items(tmp_path))
