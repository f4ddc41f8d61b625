"""Mathematical answers: boxes, percentages, European numbers, choices, formulas, and text that makes sympy hang."""

from __future__ import annotations

from fractions import Fraction

import pytest
from reward_samples import sample

from openafm.evaluation.math_answers import final_answer, is_correct, numbers
from openafm.rl.rewards.math_answer import MathAnswerConfig

RIGHT = [
    (r"So \boxed{\frac{1}{2}}.", "0.5", ""),
    (r"\boxed{\frac{\sqrt{8}}{2}}", r"\sqrt{2}", ""),
    (r"\boxed{x^2+2x+1}", "(x+1)^2", ""),
    (r"\boxed{\{3, 1\}}", r"\{1, 3\}", ""),
    (r"We get \boxed{50\%}.", "0.5", ""),
    ("Answer: 50%", "50", ""),
    ("Answer: 0.5", "50%", ""),
    ("Das ergibt\nAntwort: 1.234,5", "1234.5", "de"),
    ("Réponse : 1 234,5", "1234.5", "fr"),
    ("Answer: 1,234", "1234", "en"),
    ("Antwort: 3,5", "3.5", "de"),
    ("**Answer:** $1,234.50", "1234.5", ""),
    ("#### 42", "42", ""),
    ("The final answer is $\\frac{3}{4}$.", "3/4", ""),
    ("答案：７", "7", "zh-Hans"),
    ("She has 12 apples.", "12", ""),
    ("first \\boxed{1}, then \\boxed{2}", "2", ""),
    ("Answer: −3", "-3", ""),
    (r"\boxed{\text{B}}", "B", ""),
    ("Answer: (B)", "B", ""),
    ("Answer: B. Paris", "B", ""),
    ("Answer: **B**", "B", ""),
]
WRONG = [
    (r"\boxed{0.5}", "0.25", ""),
    ("Answer: 1.234", "1234", "en"),
    ("Answer: 5000", "50%", ""),
    ("Answer: C", "B", ""),
    ("It could be A or B", "B", ""),
    ("", "1", ""),
    (r"\boxed{}", "1", ""),
    ("Answer: 1/0", "1", ""),
    ("I do not know", "7", ""),
]


@pytest.mark.parametrize(("text", "gold", "language"), RIGHT)
def test_right_answers(text: str, gold: str, language: str) -> None:
    assert is_correct(text, gold, language=language)


@pytest.mark.parametrize(("text", "gold", "language"), WRONG)
def test_wrong_answers(text: str, gold: str, language: str) -> None:
    assert not is_correct(text, gold, language=language)


def test_choices_may_be_named_by_their_text() -> None:
    choices = {"A": "3.5", "B": "Paris"}
    assert is_correct("Answer: paris", "B", choices=choices)
    assert is_correct(r"\boxed{B}", "B", choices=choices)
    assert not is_correct("Answer: 3.5", "B", choices=choices)


def test_numbers_have_the_values_of_their_notation() -> None:
    assert numbers("1.234", "de") == {Fraction("1.234"), Fraction(1234)}
    assert numbers("1,234") == {Fraction(1234)}
    assert numbers("1'234.5") == {Fraction("1234.5")}
    assert numbers("12 %") == {Fraction(12), Fraction("0.12")}
    assert numbers("1,23") == {Fraction("1.23")}
    assert numbers("1,2,3") == numbers("x") == numbers(".") == frozenset()


def test_the_final_answer_of_unclosed_boxes_is_the_last_line() -> None:
    assert final_answer("one\n\\boxed{2") == "\\boxed{2"
    assert final_answer("\\boxed{a {b} c} end") == "a {b} c"


@pytest.mark.long
def test_the_reward_ends_formulas_that_sympy_cannot_finish() -> None:
    texts = [r"\boxed{\frac{2}{4}}", r"\boxed{9^{9^{9^{9}}}}", r"\boxed{3}"]
    truths = [{"answer": r"\frac{1}{2}"}, {"answer": r"\sqrt{2}"}, {}]
    samples = [sample(text, truth) for text, truth in zip(texts, truths, strict=True)]
    half, endless, without = MathAnswerConfig(time_limit=0.4).build()(samples)
    assert half.reward == 1.0
    assert half.terms == {"math_answer": 1.0}
    assert endless.error == "math_answer: no result within the time limit of 0.4 s"
    assert without.error.startswith("math_answer: TruthError: the truth needs 'answer'")
