"""Stages that verify responses: ground truth, execution, majority votes, a model's score, the language (report 5.1, 5.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from openafm.data.filtering.language import IdentifierConfig, LanguageIdentifier, Py3LangidConfig
from openafm.data.synthesis.base import (
    Draft,
    Dropped,
    Functions,
    Stage,
    SynthesisError,
    SynthesisStageConfig,
    needed_function,
)
from openafm.data.synthesis.writing import last_question
from openafm.sandbox import SandboxLimits, SandboxMissingError, sandbox_reason
from openafm.sandbox.python_answers import passes_tests, python_of
from openafm.tokenizer.conversation import AssistantTurn, Conversation


@dataclass(frozen=True, kw_only=True)
class GroundTruthConfig(SynthesisStageConfig):
    """Keep the responses whose answer is that of the prompt's truth."""

    REASONS: ClassVar[tuple[str, ...]] = ("wrong",)

    def build(self, functions: Functions) -> Stage:
        return _Filter(needed_function(functions.is_correct, "is_correct", "GroundTruthConfig"), "wrong")


@dataclass(frozen=True, kw_only=True)
class ExecutionConfig(SynthesisStageConfig):
    """Keep the responses whose Python code passes `truth["tests"]` in the sandbox."""

    REASONS: ClassVar[tuple[str, ...]] = ("failed_tests",)

    limits: SandboxLimits = field(default_factory=lambda: SandboxLimits(wall_seconds=10.0, cpu_seconds=5, memory_mb=1024))

    def build(self, functions: Functions) -> Stage:
        """Return the stage.

        Raises:
            SandboxMissingError: there is no sandbox on this machine.
        """
        if reason := sandbox_reason():
            raise SandboxMissingError(reason)

        def passes(response: str, truth: Mapping[str, Any]) -> bool:
            tests, code = truth.get("tests"), python_of(response)
            if not isinstance(tests, str) or not tests.strip():
                raise SynthesisError("the truth of a prompt needs 'tests', Python statements")
            return code is not None and passes_tests(code, tests, self.limits)

        return _Filter(passes, "failed_tests")


class _Filter(Stage):
    def __init__(self, is_kept: Callable[[str, Mapping[str, Any]], bool], reason: str) -> None:
        self._is_kept, self._reason = is_kept, reason

    def apply(self, draft: Draft) -> Draft | Dropped:
        kept = tuple(text for text in draft.responses if self._is_kept(text, draft.truth))
        return replace(draft, responses=kept) if kept else Dropped(reason=self._reason)


@dataclass(frozen=True, kw_only=True)
class MajorityVoteConfig(SynthesisStageConfig):
    """Keep the responses with the most frequent final answer, if at least `min_share` of `min_votes` responses have it."""

    REASONS: ClassVar[tuple[str, ...]] = ("few_votes", "no_majority")

    min_share: float = 0.5
    min_votes: int = 3

    def __post_init__(self) -> None:
        self.require(0 < self.min_share <= 1, f"min_share is above 0 up to 1, got {self.min_share}")
        self.require(self.min_votes > 0, f"min_votes must be at least 1, got {self.min_votes}")

    def build(self, functions: Functions) -> Stage:
        return _MajorityVote(self, needed_function(functions.final_answer, "final_answer", "MajorityVoteConfig"))


class _MajorityVote(Stage):
    def __init__(self, config: MajorityVoteConfig, final_answer: Callable[[str], str]) -> None:
        self._config, self._final_answer = config, final_answer

    def apply(self, draft: Draft) -> Draft | Dropped:
        answers = [self._final_answer(text) for text in draft.responses]
        votes = Counter(answer for answer in answers if answer)
        if votes.total() < self._config.min_votes:
            return Dropped(reason="few_votes", detail=f"{votes.total()} responses have an answer")
        (best, count), *others = votes.most_common(2)
        is_tie = bool(others) and others[0][1] == count
        if is_tie or count < self._config.min_share * len(answers):
            return Dropped(reason="no_majority", detail=f"{count} of {len(answers)} responses agree")
        kept = tuple(text for text, answer in zip(draft.responses, answers, strict=True) if answer == best)
        return replace(draft, responses=kept)


@dataclass(frozen=True, kw_only=True)
class ModelFilterConfig(SynthesisStageConfig):
    """Keep the responses that a model scores with `min_score` or more, the best `keep` of them, the best first."""

    REASONS: ClassVar[tuple[str, ...]] = ("low_score",)

    min_score: float
    keep: int = 1

    def __post_init__(self) -> None:
        self.require(self.keep > 0, f"keep must be at least 1, got {self.keep}")

    def build(self, functions: Functions) -> Stage:
        return _ModelFilter(self, needed_function(functions.score, "score", "ModelFilterConfig"))


class _ModelFilter(Stage):
    def __init__(self, config: ModelFilterConfig, score: Callable[[Conversation], float]) -> None:
        self._config, self._score = config, score

    def apply(self, draft: Draft) -> Draft | Dropped:
        scores = {text: self._score(with_response(draft, text)) for text in dict.fromkeys(draft.responses)}
        good = sorted((text for text in scores if scores[text] >= self._config.min_score), key=lambda text: -scores[text])
        if not good:
            return Dropped(reason="low_score", detail=f"the best score is {max(scores.values()):.3g}")
        return replace(draft, responses=tuple(good[: self._config.keep]))


@dataclass(frozen=True, kw_only=True)
class SameLanguageConfig(SynthesisStageConfig):
    """Drop the responses in another language than the prompt: its tag, else that of its last user turn, as identified.

    A response is in another language if that has a probability of `confidence` or more; short texts often show none.
    """

    REASONS: ClassVar[tuple[str, ...]] = ("other_language",)

    identifier: IdentifierConfig = field(default_factory=Py3LangidConfig)
    confidence: float = 0.5

    def build(self, functions: Functions) -> Stage:
        return _SameLanguage(self, self.identifier.build())


class _SameLanguage(Stage):
    def __init__(self, config: SameLanguageConfig, identifier: LanguageIdentifier) -> None:
        self._config, self._identifier = config, identifier

    def apply(self, draft: Draft) -> Draft | Dropped:
        found = self._identifier.probabilities(last_question(draft.prompt))
        wanted = draft.prompt.language or max(found, key=lambda tag: found[tag], default="")
        kept = tuple(text for text in draft.responses if self._is_in(text, wanted))
        return replace(draft, responses=kept) if kept else Dropped(reason="other_language", detail=wanted)

    def _is_in(self, text: str, wanted: str) -> bool:
        found: dict[str, float] = {}
        for tag, probability in self._identifier.probabilities(text).items():
            language = tag.partition("-")[0]
            found[language] = found.get(language, 0.0) + probability
        if not found or not wanted:
            return True
        best = max(found, key=lambda each: found[each])
        return best == wanted.partition("-")[0] or found[best] < self._config.confidence


def with_response(draft: Draft, response: str) -> Conversation:
    """Return the conversation of a draft with one of its responses."""
    return replace(draft.prompt, turns=(*draft.prompt.turns, AssistantTurn(text=response)))
