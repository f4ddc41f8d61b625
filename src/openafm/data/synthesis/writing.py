"""Stages that write: responses, chains of thought, and prompts that ask for what is not there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from openafm.data.synthesis.base import Ask, Draft, Dropped, Functions, Stage, SynthesisStageConfig, needed_function
from openafm.tokenizer.conversation import Conversation, Turn, UserTurn

REFUSALS = {
    "en": "The text does not say that.",
    "da": "Det står ikke i teksten.",
    "de": "Das steht nicht im Text.",
    "es": "El texto no lo dice.",
    "fr": "Le texte ne le dit pas.",
    "it": "Il testo non lo dice.",
    "ja": "その情報は本文にありません。",
    "ko": "본문에는 그 내용이 없습니다.",
    "nb": "Det står ikke i teksten.",
    "nl": "Dat staat niet in de tekst.",
    "pt": "O texto não diz isso.",
    "sv": "Det står inte i texten.",
    "tr": "Metinde bu bilgi yok.",
    "vi": "Văn bản không nói điều đó.",
    "zh-Hans": "文中没有提到这一点。",
    "zh-Hant": "文中沒有提到這一點。",
}
"""Answers to questions about what is not in the prompt, by language."""


@dataclass(frozen=True, kw_only=True)
class RespondConfig(SynthesisStageConfig):
    """Ask the model for `count` responses to each prompt. Equal and empty responses are kept once, or not at all."""

    REASONS: ClassVar[tuple[str, ...]] = ("no_response",)

    count: int = 4

    def __post_init__(self) -> None:
        self.require(self.count > 0, f"count must be at least 1, got {self.count}")

    def build(self, functions: Functions) -> Stage:
        return _Respond(self, needed_function(functions.ask, "ask", "RespondConfig"))


class _Respond(Stage):
    def __init__(self, config: RespondConfig, ask: Ask) -> None:
        self._count, self._ask = config.count, ask

    def apply(self, draft: Draft) -> Draft | Dropped:
        asked = (self._ask(draft.prompt, number).strip() for number in range(self._count))
        responses = tuple(text for text in asked if text)  # equal ones count in a vote
        return replace(draft, responses=responses) if responses else Dropped(reason="no_response")


@dataclass(frozen=True, kw_only=True)
class ChainOfThoughtConfig(SynthesisStageConfig):
    """Expand each response by the reasoning that leads to it; keep it if it ends with the same final answer."""

    REASONS: ClassVar[tuple[str, ...]] = ("other_answer",)

    request: str = (
        "Question:\n{question}\n\nAnswer:\n{answer}\n\nExplain step by step, in the language of the question, how to get "
        "this answer. End with the answer, as it is given above."
    )

    def build(self, functions: Functions) -> Stage:
        ask = needed_function(functions.ask, "ask", "ChainOfThoughtConfig")
        return _ChainOfThought(self, ask, needed_function(functions.final_answer, "final_answer", "ChainOfThoughtConfig"))


class _ChainOfThought(Stage):
    def __init__(self, config: ChainOfThoughtConfig, ask: Ask, final_answer: Callable[[str], str]) -> None:
        self._request, self._ask, self._final_answer = config.request, ask, final_answer

    def apply(self, draft: Draft) -> Draft | Dropped:
        expanded = []
        for number, response in enumerate(draft.responses):
            answer = self._final_answer(response)
            text = self._request.format(question=last_question(draft.prompt), answer=answer)
            written = self._ask(Conversation(turns=(UserTurn(text=text),)), number).strip()
            if self._final_answer(written) == answer and len(written) > len(response):
                expanded.append(written)
        return replace(draft, responses=tuple(expanded)) if expanded else Dropped(reason="other_answer")


@dataclass(frozen=True, kw_only=True)
class UnanswerableConfig(SynthesisStageConfig):
    """Replace the question by one about something that the prompt does not contain, and refuse to answer (report 5.1).

    The model writes the question. A second request checks that the text has no answer to it; questions with one are dropped.
    """

    REASONS: ClassVar[tuple[str, ...]] = ("no_question", "answerable", "language")

    request: str = (
        "Text:\n{question}\n\nWrite one question, in the language of the text, that sounds natural but that this text does "
        "not answer. Write only the question."
    )
    check: str = "Text:\n{question}\n\nQuestion: {asked}\n\nDoes the text answer the question? Reply with yes or no."

    def build(self, functions: Functions) -> Stage:
        return _Unanswerable(self, needed_function(functions.ask, "ask", "UnanswerableConfig"))


class _Unanswerable(Stage):
    def __init__(self, config: UnanswerableConfig, ask: Ask) -> None:
        self._config, self._ask = config, ask

    def apply(self, draft: Draft) -> Draft | Dropped:
        refusal = REFUSALS.get(draft.prompt.language or "en")
        if refusal is None:
            return Dropped(reason="language", detail=draft.prompt.language)
        text = last_question(draft.prompt)
        asked = self._reply(self._config.request.format(question=text))
        if not asked:
            return Dropped(reason="no_question")
        reply = self._reply(self._config.check.format(question=text, asked=asked))
        if not reply.casefold().startswith("no"):
            return Dropped(reason="answerable", detail=asked)
        turns: tuple[Turn, ...] = (*draft.prompt.turns[:-1], UserTurn(text=f"{text}\n\n{asked}"))
        return replace(draft, prompt=replace(draft.prompt, turns=turns), truth={}, responses=(refusal,))

    def _reply(self, text: str) -> str:
        return self._ask(Conversation(turns=(UserTurn(text=text),)), 0).strip()


def last_question(prompt: Conversation) -> str:
    """Return the text of the last turn of the user."""
    texts = [turn.text for turn in prompt.turns if isinstance(turn, UserTurn)]
    return texts[-1] if texts else ""
