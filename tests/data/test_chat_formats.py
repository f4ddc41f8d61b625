"""Conversations in the formats of other tools become the same turns; errors name the line and the value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openafm.data.documents import ChatDocument, DocumentFiles, NotADocumentError
from openafm.tokenizer.conversation import (
    AssistantTurn,
    Conversation,
    Instructions,
    ToolCall,
    ToolDefinition,
    ToolTurn,
    UserTurn,
)

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "weather", "description": "Weather of a city", "parameters": PARAMETERS}
CALLING = (
    Instructions(text="Be brief.", tools=(ToolDefinition(**TOOL),)),  # type: ignore[arg-type]
    UserTurn(text="Weather in Rome?"),
    AssistantTurn(tool_calls=(ToolCall(name="weather", arguments={"city": "Rome"}),)),
    ToolTurn(name="weather", text="sunny"),
    AssistantTurn(text="Sunny."),
)
PLAIN = (Instructions(text="Be brief."), UserTurn(text="Hi\n\nthere"), AssistantTurn(text="Hello."))


def read(folder: Path, *values: Any) -> list[Conversation]:
    file = folder / "chat.jsonl"
    file.write_text("\n".join(map(json.dumps, values)))
    return [document.conversation for document in DocumentFiles(file) if isinstance(document, ChatDocument)]


OPENAI_CALLING = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Weather in "}, {"type": "text", "text": "Rome?"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "assistant", "content": "Sunny."},
    ],
    "tools": [{"type": "function", "function": TOOL}],
    "parallel_tool_calls": False,
}
SHAREGPT_CALLING = {
    "system": "Be brief.",
    "tools": json.dumps([TOOL]),
    "conversations": [
        {"from": "human", "value": "Weather in Rome?"},
        {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Rome"}}'},
        {"from": "observation", "value": "sunny"},
        {"from": "gpt", "value": "Sunny."},
    ],
}


@pytest.mark.parametrize(
    ("values", "turns"),
    [
        (OPENAI_CALLING, CALLING),
        (SHAREGPT_CALLING, CALLING),
        (
            {
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "Hi\n\nthere"},
                    {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]},
                ]
            },
            PLAIN,
        ),
        (
            {
                "conversations": [
                    {"from": "system", "value": "Be brief."},
                    {"from": "human", "value": "Hi\n\nthere"},
                    {"from": "gpt", "value": "Hello."},
                ]
            },
            PLAIN,
        ),
        ({"system": "Be brief.", "instruction": "Hi", "input": "there", "output": "Hello."}, PLAIN),
        ({"prompt": "Hi\n\nthere", "completion": "Hello."}, PLAIN[1:]),
        (
            {
                "prompt": [{"role": "user", "content": "Hi\n\nthere"}],
                "completion": [{"role": "assistant", "content": "Hello."}],
            },
            PLAIN[1:],
        ),
    ],
)
def test_formats_give_the_same_turns(tmp_path: Path, values: dict[str, Any], turns: tuple[object, ...]) -> None:
    assert read(tmp_path, values)[0].turns == turns


def test_a_response_format_is_the_schema_of_the_prompts(tmp_path: Path) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": PARAMETERS}}
    chat = {
        "messages": [{"role": "user", "content": "Rome"}, {"role": "assistant", "content": "{}"}],
        "response_format": schema,
    }
    assert read(tmp_path, chat)[0].turns[0] == UserTurn(text="Rome", response_format=PARAMETERS)


def test_own_format_and_its_tags_are_unchanged(tmp_path: Path) -> None:
    conversation = Conversation(turns=CALLING, task="tool", language="en")
    assert read(tmp_path, conversation.to_dict()) == [conversation]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"messages": [{"role": "assistant", "function_call": {"name": "f", "arguments": "{"}}]}, "not JSON"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}, "message 1.*come first"),
        ({"messages": [{"role": "tool", "tool_call_id": "x", "content": "b"}]}, "tool_call_id"),
        ({"messages": [{"role": "assistant", "content": "a", "weight": 0}]}, "weight"),
        ({"messages": [{"role": "narrator", "content": "a"}]}, "narrator"),
        ({"messages": []}, "non-empty"),
        ({"conversations": [{"from": "alien", "value": "a"}]}, "'alien'; known: system"),
        ({"conversations": [{"from": "human"}]}, "'value'"),
        ({"prompt": 3, "completion": "a"}, "texts or lists"),
        ({"question": "a"}, "ShareGPT"),
    ],
)  # fmt: skip
def test_errors_name_the_line(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(NotADocumentError, match=rf"chat\.jsonl:2.*{message}"):
        read(tmp_path, {"text": "fine"}, values)


def test_a_json_file_is_read_by_path_only(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_text(json.dumps([OPENAI_CALLING, {"text": "a"}]))
    (tmp_path / "a.txt").write_text("text")
    assert len(list(DocumentFiles(file))) == 2
    assert [path.name for path in DocumentFiles(tmp_path).files] == ["a.txt"]
    file.write_text(json.dumps([OPENAI_CALLING, {"none": 1}]))
    with pytest.raises(NotADocumentError, match=r"chat\.json \(item 2\)"):
        list(DocumentFiles(file))
