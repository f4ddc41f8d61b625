"""Tools and forms: calls and answers that follow their schemas, short, and without overlap between the splits."""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from openafm.bundle.store import SHIPPED_HOME, SHIPPED_NAME
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.data.synthetic.schema_words import SchemaWords, schema_words
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.tokenizer.conversation import AssistantTurn, Conversation, Instructions, ToolTurn, UserTurn
from openafm.tokenizer.schema_text import compact_json
from openafm.tokenizer.tool_calls import tool_calls_schema

SPLITS = ("train", "held_out")


@functools.cache
def of(task: str, split: Any, count: int = 600) -> list[Conversation]:
    return list(generate(SyntheticConfig(seed=2, split=split, tasks={task: 1.0}), count))


def instructions_of(conversation: Conversation) -> Instructions:
    assert isinstance(conversation.turns[0], Instructions)
    return conversation.turns[0]


@pytest.mark.parametrize("split", SPLITS)
def test_calls_are_of_known_tools_with_valid_arguments(split: str) -> None:
    for conversation in of("tool", split):
        tools = instructions_of(conversation).tools
        assert 1 <= len(tools) <= 4
        assert len({tool.name for tool in tools}) == len(tools)
        calls_schema = jsonschema.Draft202012Validator(tool_calls_schema(tools))
        for turn in conversation.turns:
            if isinstance(turn, AssistantTurn) and turn.tool_calls:
                calls_schema.validate([{"name": call.name, "arguments": call.arguments} for call in turn.tool_calls])


@pytest.mark.parametrize("split", SPLITS)
def test_every_call_has_its_output_and_an_answer_follows(split: str) -> None:
    for conversation in of("tool", split):
        waiting: list[str] = []
        for turn in conversation.turns[1:]:
            match turn:
                case AssistantTurn():
                    assert not waiting
                    assert bool(turn.text) != bool(turn.tool_calls)
                    waiting = [call.name for call in turn.tool_calls]
                case ToolTurn():
                    assert turn.name == waiting.pop(0)
                    assert turn.text
                case UserTurn():
                    assert not waiting
        assert conversation.turns[-1] == AssistantTurn(text=conversation.turns[-1].text)


def test_text_arguments_are_copied_from_what_was_said() -> None:
    for conversation in of("tool", "train"):
        said = ""
        for turn in conversation.turns[1:]:
            if isinstance(turn, AssistantTurn):
                for text in (text for call in turn.tool_calls for text in texts_in(call.arguments)):
                    assert text in said, (text, said)
            said += turn.text + "\n"


def test_plain_outputs_are_said_again() -> None:
    for conversation in of("tool", "train"):
        for output, answer in zip(conversation.turns, conversation.turns[1:], strict=False):
            if (
                isinstance(output, ToolTurn)
                and isinstance(answer, AssistantTurn)
                and answer.text
                and output.text[0] not in "[{"
            ):
                assert all(line.rstrip(".") in answer.text for line in output.text.split("\n"))


def test_every_kind_of_conversation_occurs() -> None:
    firsts = [conversation.turns[2] for conversation in of("tool", "train")]
    num_calls = [len(turn.tool_calls) for turn in firsts if isinstance(turn, AssistantTurn)]
    assert 0.10 < num_calls.count(0) / len(num_calls) < 0.20
    assert 0.08 < num_calls.count(2) / len(num_calls) < 0.30
    serial = [c for c in of("tool", "train") if isinstance(c.turns[3 % len(c.turns)], ToolTurn) and calls_again(c)]
    assert len(serial) > 5
    assert any(not instructions_of(conversation).text for conversation in of("tool", "train"))


def calls_again(conversation: Conversation) -> bool:
    after = conversation.turns[4]
    return isinstance(after, AssistantTurn) and bool(after.tool_calls)


@pytest.mark.parametrize("split", SPLITS)
def test_forms_are_valid_and_short(split: str) -> None:
    for conversation in of("form", split):
        _, user, answer = conversation.turns
        assert isinstance(user, UserTurn)
        assert user.response_format is not None
        jsonschema.Draft202012Validator.check_schema(user.response_format)
        value = json.loads(answer.text)
        jsonschema.Draft202012Validator(user.response_format).validate(value)
        assert answer.text == compact_json(value)
        assert all(len(text.split()) <= 8 for text in texts_in(value))
        assert all(1 <= len(items) <= 5 for items in lists_in(value))


@pytest.mark.parametrize("task", ["tool", "form"])
def test_the_shipped_tokenizer_needs_few_tokens(task: str) -> None:
    tokenizer = Tokenizer.load(SHIPPED_HOME / SHIPPED_NAME / "tokenizer.json")
    lengths = [len(ChatTemplate().encode_conversation(tokenizer, c)) for c in of(task, "train")]
    assert max(lengths) < 1024
    assert statistics.quantiles(lengths, n=10)[7] < 450


def test_the_splits_share_no_words_and_no_frames() -> None:
    train, held_out = schema_words("train"), schema_words("held_out")
    for name in (*(f for f in FRAMES), "nouns"):
        assert set(getattr(train, name)).isdisjoint(getattr(held_out, name))
        assert getattr(train, name)
        assert getattr(held_out, name)
    for name in ("fields", "actions", "verbs"):
        assert phrasings(train, name).isdisjoint(phrasings(held_out, name))
    assert {talk.prompt for talk in train.small_talk}.isdisjoint(talk.prompt for talk in held_out.small_talk)
    for ours, theirs in zip(train.vocabularies, held_out.vocabularies, strict=True):
        assert ours.kind == theirs.kind
        assert set(ours.texts) - {t for t in ours.texts if "{" in t} <= set(ours.texts) - set(theirs.texts)


FRAMES = (
    *("instructions", "explicit", "wraps", "also", "then", "outputs", "errors", "answers", "again"),
    *("generate", "generate_with", "generate_stated", "extract"),
)


def phrasings(words: SchemaWords, name: str) -> set[str]:
    items = getattr(words, name)
    if name == "fields":
        return {field.label for field in items}
    return {text for action in items for text in (*action.names, *action.requests)}


def texts_in(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict() | list():
            for item in value.values() if isinstance(value, dict) else value:
                yield from texts_in(item)


def lists_in(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, list):
        yield value
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from lists_in(item)
