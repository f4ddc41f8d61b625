"""Mathematical answers, compared with a reference by rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openafm.evaluation.math_answers import is_correct, math_verify, verified
from openafm.rl.rewards.base import Reward, TruthError
from openafm.rl.rewards.rules import Rule, RuleConfig
from openafm.rl.trajectories import Sample


@dataclass(frozen=True, kw_only=True)
class MathAnswerConfig(RuleConfig):
    """1 if the final answer equals `truth["answer"]`, else 0.

    The answer is the last box of the text, else the text after the last "Answer:", else the last line. With
    `truth["choices"]`, the texts of the options by letter, the reference is a letter.
    """

    name: str = "math_answer"

    def build(self) -> Reward:
        math_verify()  # a missing library is an error here, not of each sample
        return super().build()

    def rule(self) -> Rule:
        verified("$1$", "$1$")  # import and warm up sympy before the time limit starts
        return _score


def _score(sample: Sample) -> float:
    gold, choices = sample.prompt.truth.get("answer"), sample.prompt.truth.get("choices")
    if not isinstance(gold, str | int | float) or not isinstance(choices, Mapping | None):
        raise TruthError("the truth needs 'answer', a string or number, and may have 'choices', an object of texts")
    language = sample.prompt.conversation.language
    return float(is_correct(sample.text, str(gold), language=language, choices=choices))
