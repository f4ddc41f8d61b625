"""Prompts read from chat JSONL."""

from __future__ import annotations

import json

import pytest

from openafm.rl.prompts import RLPrompt
from openafm.tokenizer.conversation import AssistantTurn, Conversation, ConversationError, Instructions, UserTurn

PROMPT = RLPrompt(
    conversation=Conversation(
        turns=(Instructions(text="Answer with a number."), UserTurn(text="2 + 2?", response_format={"type": "integer"})),
        language="en",
        extra={"source": "tests"},
    ),
    kind="math",
    truth={"answer": "4"},
)


def test_a_prompt_survives_its_line_of_json() -> None:
    again = RLPrompt.from_dict(json.loads(json.dumps(PROMPT.to_dict())))
    assert again == PROMPT
    assert again.digest == PROMPT.digest


def test_the_digest_depends_on_conversation_kind_and_truth() -> None:
    line = PROMPT.to_dict()
    changed = [line | {"kind": "other"}, line | {"truth": {"answer": "5"}}, line | {"messages": line["messages"][1:]}]
    digests = {RLPrompt.from_dict(values).digest for values in changed}
    assert len(digests | {PROMPT.digest}) == 4


@pytest.mark.parametrize("change", [{"kind": None}, {"kind": 3}, {"truth": "4"}, {"messages": []}])
def test_lines_that_are_no_prompts_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConversationError):
        RLPrompt.from_dict(PROMPT.to_dict() | change)
    for read in (RLPrompt.from_dict, Conversation.from_dict):
        with pytest.raises(ConversationError, match="is an object"):
            read(["not", "an", "object"])  # type: ignore[arg-type]


def test_a_prompt_ends_with_a_turn_that_can_be_answered() -> None:
    turns = (UserTurn(text="Hi"), AssistantTurn(text="Hello"))
    with pytest.raises(ConversationError, match="user or of a tool"):
        RLPrompt(conversation=Conversation(turns=turns), kind="chat")
