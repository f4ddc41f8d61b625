"""Conversations that are asked in one language and answered in another."""

from __future__ import annotations

import pytest

from openafm.core.config import ConfigError
from openafm.data.synthetic import LANGUAGES
from openafm.data.synthetic.tasks.mixed import MixedLanguagesConfig, mixed_conversations
from openafm.tokenizer.conversation import AssistantTurn, Instructions, ToolTurn, UserTurn


def test_the_instructions_name_the_language_of_the_answer() -> None:
    (first,) = mixed_conversations(MixedLanguagesConfig(languages=("en", "de"), seed=3), 1)
    instructions, question, call, result, answer = first.turns
    assert isinstance(instructions, Instructions)
    assert isinstance(question, UserTurn)
    assert isinstance(call, AssistantTurn)
    assert isinstance(result, ToolTurn)
    assert isinstance(answer, AssistantTurn)
    name = {"en": "English", "de": "German"}[first.language]
    assert name in instructions.text
    assert ("What is" in question.text) == (first.language == "de")
    assert ("ist" in answer.text.split()) == (first.language == "de")
    assert result.text in answer.text
    assert call.tool_calls[0].arguments


def test_every_language_asks_and_answers() -> None:
    conversations = list(mixed_conversations(MixedLanguagesConfig(), 400))
    assert {conversation.language for conversation in conversations} == set(LANGUAGES)
    assert conversations == list(mixed_conversations(MixedLanguagesConfig(), 400))
    assert conversations != list(mixed_conversations(MixedLanguagesConfig(seed=1), 400))


@pytest.mark.parametrize("languages", [("en",), ("en", "en"), ("en", "xx")])
def test_wrong_languages_are_refused(languages: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        MixedLanguagesConfig(languages=languages)
