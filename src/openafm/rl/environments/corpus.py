"""Prompts from the built-in corpus: extraction of events and forms, labels, and word problems with a calculator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from openafm.data.synthetic import SyntheticConfig
from openafm.data.synthetic.corpus import example
from openafm.evaluation.calculator import calculate
from openafm.rl.prompt_sources import Environment, PromptSource, PromptSourceConfig
from openafm.rl.prompts import RLPrompt
from openafm.tokenizer.conversation import AssistantTurn, Conversation, ToolCall, ToolTurn, Turn, UserTurn


def _events() -> SyntheticConfig:
    return SyntheticConfig(seed=1, tasks={"event": 1.0}, languages={"en": 1.0})


@dataclass(frozen=True, kw_only=True)
class CorpusPromptsConfig(PromptSourceConfig):
    """Prompts of the built-in corpus; the kind of a prompt is its task.

    The truth is `answer`, the text of the reference answer; `value`, its JSON value, for answers under a schema; and for
    arithmetic `state` and `contains`, the results that the answer must hold.

    Attributes:
        corpus: tasks, languages and split. A seed other than 0 gives other prompts than those of the SFT recipes.
        is_guided: answers are sampled under the grammar of their schema. Without it the policy must learn the format.
    """

    corpus: SyntheticConfig = field(default_factory=_events)
    is_guided: bool = True

    def build(self) -> PromptSource:
        return _CorpusPrompts(self)


class _CorpusPrompts(PromptSource):
    def __init__(self, config: CorpusPromptsConfig) -> None:
        self._config = config

    def prompt(self, number: int) -> RLPrompt:
        return corpus_prompt(example(self._config.corpus, number), is_guided=self._config.is_guided)

    def environment(self, prompt: RLPrompt) -> Environment | None:
        return CalculatorEnvironment() if prompt.kind == "arithmetic" else None


def corpus_prompt(conversation: Conversation, *, is_guided: bool = True) -> RLPrompt:
    """Return the turns up to the user's as a prompt, with the reference answer as its truth."""
    asked = next(index for index, turn in enumerate(conversation.turns) if isinstance(turn, UserTurn))
    turns, gold = conversation.turns[: asked + 1], conversation.turns[-1]
    assert isinstance(gold, AssistantTurn)
    truth: dict[str, Any] = {"answer": gold.text}
    last = turns[-1]
    assert isinstance(last, UserTurn)
    if last.response_format is not None:
        truth["value"] = json.loads(gold.text)
        turns = turns if is_guided else _shown_as_text(turns)
    if conversation.task == "arithmetic":
        results = [turn.text for turn in conversation.turns if isinstance(turn, ToolTurn)]
        truth |= {"state": {}, "contains": results}
    if conversation.task == "tool":
        calls = conversation.turns[asked + 1]
        assert isinstance(calls, AssistantTurn)
        truth["calls"] = [{"name": call.name, "arguments": call.arguments} for call in calls.tool_calls]
    return RLPrompt(conversation=replace(conversation, turns=turns), kind=conversation.task, truth=truth)


def _shown_as_text(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Return the turns with the schema as text of the prompt, so that no grammar applies."""
    last = turns[-1]
    assert isinstance(last, UserTurn)
    text = f"{last.text}\n{json.dumps(last.response_format, ensure_ascii=False)}"
    return (*turns[:-1], UserTurn(text=text))


class CalculatorEnvironment:
    """A calculator for one operation with two whole numbers."""

    def call(self, call: ToolCall) -> str:
        return calculate(str(call.arguments.get("expression", "")))

    @property
    def state(self) -> Mapping[str, object]:
        return {}
