"""Synthesis of fine-tuning data (report 5.1): named stages, and the functions that models and graders give them."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, cast

from openafm.core.config import nearest
from openafm.core.errors import UsageError
from openafm.data.synthesis.base import Ask, Functions
from openafm.data.synthesis.running import SynthesisConfig
from openafm.data.synthesis.verification import (
    ExecutionConfig,
    GroundTruthConfig,
    MajorityVoteConfig,
    ModelFilterConfig,
    SameLanguageConfig,
)
from openafm.data.synthesis.writing import ChainOfThoughtConfig, RespondConfig, UnanswerableConfig
from openafm.evaluation.math_answers import final_answer
from openafm.framework.backends.language_model import Answer, AnswerRequest, Event, LanguageModel
from openafm.framework.options import GenerationOptions, SamplingMode
from openafm.rl.prompts import RLPrompt
from openafm.rl.rewards.base import TruthError
from openafm.rl.rewards.math_answer import MathAnswerConfig
from openafm.rl.rewards.reward_model import LocalRewardModel
from openafm.rl.trajectories import Sample
from openafm.tokenizer.conversation import AssistantTurn, Conversation, UserTurn

SYNTHESES = {
    "math": SynthesisConfig(stages=(RespondConfig(count=8), GroundTruthConfig(), SameLanguageConfig())),
    "votes": SynthesisConfig(stages=(RespondConfig(count=8), MajorityVoteConfig(), SameLanguageConfig())),
    "reasoning": SynthesisConfig(stages=(GroundTruthConfig(), ChainOfThoughtConfig(), GroundTruthConfig())),
    "code": SynthesisConfig(stages=(RespondConfig(count=8), ExecutionConfig())),
    "general": SynthesisConfig(stages=(RespondConfig(count=4), SameLanguageConfig(), ModelFilterConfig(min_score=0.0))),
    "refusals": SynthesisConfig(stages=(UnanswerableConfig(),)),
}
"""Stages by name: answers checked with the truth, by votes, chains of thought, code, answers scored by a reward model, and
questions without an answer."""

_QUESTION = Conversation(turns=(UserTurn(text="?"),))


def synthesis(name: str) -> SynthesisConfig:
    """Return the stages of a name.

    Raises:
        UsageError: there are none of this name.
    """
    if name not in SYNTHESES:
        raise UsageError(f"unknown synthesis '{name}'{nearest(name, list(SYNTHESES))}")
    return SYNTHESES[name]


def functions_of(
    model: LanguageModel, reward_model: LocalRewardModel | None = None, *, temperature: float = 0.8, max_tokens: int = 1024
) -> Functions:
    """Return the functions of stages: `model` writes, rules compare answers, `reward_model` scores conversations."""
    return Functions(
        ask=asking(model, temperature=temperature, max_tokens=max_tokens),
        is_correct=is_correct,
        final_answer=lambda text: final_answer(text).casefold(),
        score=None if reward_model is None else lambda conversation: reward_model.rewards([conversation])[0],
    )


def asking(model: LanguageModel, *, temperature: float, max_tokens: int) -> Ask:
    """Return a function that answers a conversation, each time from its beginning. The number is the seed."""

    def ask(prompt: Conversation, number: int) -> str:
        *before, last = prompt.turns
        options = GenerationOptions(
            sampling=SamplingMode.random(seed=number), temperature=temperature, maximum_response_tokens=max_tokens
        )
        request = AnswerRequest(
            turns=(last,),
            schema=last.response_format if isinstance(last, UserTurn) else None,
            tools=(),
            must_call=False,
            options=options,
            cancelled=lambda: False,
        )
        return _finished(model.executor(tuple(before)).answer(request)).turn.text

    return ask


def _finished(answer: Generator[Event, None, Answer]) -> Answer:
    """Run a generation to its end."""
    while True:
        try:
            next(answer)
        except StopIteration as end:
            return cast("Answer", end.value)


def is_correct(response: str, truth: Mapping[str, Any]) -> bool:
    """Return whether a response has the answer `truth["answer"]`, compared in a worker process under a time limit.

    Raises:
        TruthError: the truth has no answer, or the comparison did not end.
    """
    sample = Sample(
        prompt=RLPrompt(conversation=_QUESTION, kind="math", truth=truth),
        turns=(AssistantTurn(text=response),),
        text=response,
        finish_reason="stop",
        num_tokens=0,
    )
    (score,) = MathAnswerConfig().build()([sample])
    if score.error:
        raise TruthError(score.error)
    return score.reward == 1
