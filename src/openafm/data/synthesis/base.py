"""Stages of synthesis: a prompt becomes a draft with responses; each stage keeps the draft or drops it with a reason."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from openafm.core.config import Config
from openafm.core.errors import OpenAFMError
from openafm.tokenizer.conversation import Conversation

Ask: TypeAlias = Callable[[Conversation, int], str]
"""Returns the text of a model's answer to a conversation that ends with a prompt. The number varies the sampling."""


class SynthesisError(OpenAFMError):
    """A stage needs a function that the caller did not pass, or a prompt lacks what the stage reads."""


@dataclass(frozen=True, kw_only=True)
class Functions:
    """What stages call. Recipes pass sessions, reward models and graders; `data` imports none of them.

    Attributes:
        ask: the model that writes.
        is_correct: whether a response has the answer of a truth, such as `evaluation.math_answers.is_correct`.
        final_answer: the part of a response that votes compare, in one notation.
        score: the quality of a conversation with its response, such as a reward model's.
    """

    ask: Ask | None = None
    is_correct: Callable[[str, Mapping[str, Any]], bool] | None = None
    final_answer: Callable[[str], str] | None = None
    score: Callable[[Conversation], float] | None = None


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A prompt, what a right response is compared with, and the responses that are left."""

    prompt: Conversation
    truth: Mapping[str, Any] = field(default_factory=dict)
    responses: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """Why a draft was dropped: a reason of the stage, and a detail for a reader."""

    reason: str
    detail: str = ""


class Stage(ABC):
    """A step of synthesis. Several threads call it."""

    @abstractmethod
    def apply(self, draft: Draft) -> Draft | Dropped:
        """Return the draft with more, other or fewer responses, or why it is dropped."""


@dataclass(frozen=True, kw_only=True)
class SynthesisStageConfig(Config, ABC):
    """Base of the stages; a kind of the registry.

    `REASONS` are the reasons of its drops.
    """

    REASONS: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def build(self, functions: Functions) -> Stage:
        """Return the stage.

        Raises:
            SynthesisError: a function is missing.
            OpenAFMError: something else is missing, such as the sandbox.
        """


def needed_function(function: Any, name: str, stage: str) -> Any:
    """Return a function of the caller.

    Raises:
        SynthesisError: it was not passed.
    """
    if function is None:
        raise SynthesisError(f"the stage {stage} needs the function '{name}'; pass it in Functions")
    return function
