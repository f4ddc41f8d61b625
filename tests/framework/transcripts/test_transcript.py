"""Transcripts: lossless JSON in Apple's format; invalid transcripts are refused."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import openafm as fm
from openafm.framework.options import ToolCallingMode
from openafm.framework.transcripts.transcript import (
    Entry,
    InstructionsEntry,
    PromptEntry,
    ResponseEntry,
    ToolCallsEntry,
    ToolOutputEntry,
    Transcript,
)
from openafm.framework.transcripts.wire import TranscriptError
from openafm.tokenizer.chat_template import opened
from openafm.tokenizer.conversation import AssistantTurn, Instructions, ToolCall, ToolDefinition, ToolTurn, UserTurn
from openafm.tokenizer.schema_text import compact_json

SCHEMA = {
    "title": "Trip",
    "type": "object",
    "properties": {"town": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["town", "days"],
    "additionalProperties": False,
    "x-order": ["town", "days"],
}
# A transcript of Apple's framework: keys in any order, segments with ids, keys unknown to openafm.
APPLE: dict[str, Any] = {
    "type": "FoundationModels.Transcript",
    "futureKey": [1],
    "version": 1,
    "transcript": {
        "another": {"x": None},
        "entries": [
            {
                "contents": [{"text": "Help with journeys.", "id": "S-1", "type": "text", "locale": "en"}],
                "role": "instructions",
                "id": "E-1",
                "tools": [
                    {
                        "function": {"parameters": SCHEMA, "description": "Finds trains.", "name": "trains", "strict": True},
                        "type": "function",
                    }
                ],
            },
            {
                "id": "E-2",
                "role": "user",
                "options": {"temperature": 0.5, "reasoning": {"light": {}}, "sampling": {"novel": 3}},
                "responseFormat": {"jsonSchema": {"schema": SCHEMA, "name": "Trip"}, "type": "jsonSchema"},
                "contents": [
                    {"id": "S-2", "type": "text", "text": "Where to?"},
                    {"id": "S-3", "type": "text", "text": "By train."},
                ],
            },
            {
                "id": "E-3",
                "role": "response",
                "toolCalls": [
                    {"arguments": '{ "days": 2, "town": "Bern" }', "name": "trains", "id": "C-1"},
                    {"arguments": '{"town":"Turin","days":1}', "name": "trains", "id": "C-2"},
                ],
            },
            {
                "id": "C-1",
                "role": "tool",
                "toolName": "trains",
                "toolCallID": "C-1",
                "contents": [{"id": "0", "type": "structure", "structure": {"source": "Train", "content": {"at": "9:02"}}}],
            },
            {
                "id": "C-2",
                "role": "tool",
                "toolName": "trains",
                "toolCallID": "C-2",
                "contents": [{"id": "0", "type": "text", "text": "none"}],
            },
            {
                "id": "E-4",
                "role": "response",
                "assets": ["model", "tokenizer"],
                "contents": [
                    {
                        "id": "0",
                        "type": "structure",
                        "structure": {"source": "Trip", "content": {"town": "Bern", "days": 2}},
                    }
                ],
            },
        ],
    },
}


def sorted_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def test_apples_json_is_written_back_unchanged() -> None:
    transcript = asyncio.run(Transcript.from_dict(APPLE))
    assert sorted_json(asyncio.run(transcript.to_dict())) == sorted_json(APPLE)
    instructions, prompt, calls, first, _, response = transcript
    assert instructions.turn == Instructions(
        text="Help with journeys.", tools=(ToolDefinition(name="trains", description="Finds trains.", parameters=SCHEMA),)
    )
    assert isinstance(prompt, PromptEntry)
    assert prompt.turn == UserTurn(text="Where to?\nBy train.", response_format=SCHEMA)
    assert prompt.options == fm.GenerationOptions(temperature=0.5)
    assert isinstance(calls, ToolCallsEntry)
    assert calls.call_ids == ("C-1", "C-2")
    assert calls.turn.tool_calls[0] == ToolCall(name="trains", arguments={"days": 2, "town": "Bern"})
    assert isinstance(first, ToolOutputEntry)
    assert (first.call_id, first.turn) == ("C-1", ToolTurn(name="trains", text='{"at":"9:02"}'))
    assert isinstance(response, ResponseEntry)
    assert (response.source, response.turn.text) == ("Trip", '{"town":"Bern","days":2}')
    assert response.assets == ("model", "tokenizer")


def test_a_session_appends_to_a_transcript_from_json() -> None:
    transcript = Transcript.parse(APPLE)
    added = PromptEntry(turn=UserTurn(text="Thanks"), options=fm.GenerationOptions())
    transcript._append(added)
    written = transcript.as_dict()
    assert written["transcript"]["entries"][-1] == added.to_dict()
    del written["transcript"]["entries"][-1]
    assert written == APPLE


def test_the_dictionary_is_a_copy() -> None:
    given_dict = copy.deepcopy(APPLE)
    transcript = Transcript.parse(given_dict)
    given_dict["transcript"]["entries"][1]["contents"][0]["text"] = "changed"
    transcript.as_dict()["transcript"]["entries"][0]["role"] = "changed"
    transcript.as_dict()["futureKey"].append(2)
    assert transcript.as_dict() == APPLE


def test_edited_entries_are_written_with_their_edits() -> None:
    entry = Transcript.parse(APPLE)[1]
    assert isinstance(entry, PromptEntry)
    changed = dataclasses.replace(entry, turn=UserTurn(text="Home?"))
    assert changed.to_dict()["contents"] == [{"id": "0", "type": "text", "text": "Home?"}]
    assert changed.id == entry.id


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('{"town":"Bern","days":2}', False),
        ('{"town":"B\\u00e9","days":2}', True),
        ('{"town":"Bern","days":2.50}', True),
        ('{"town":"\\ud83d","days":-0}', True),
    ],
)
def test_a_structure_keeps_its_exact_text(text: str, kept: bool) -> None:
    transcript = Transcript([ResponseEntry(turn=AssistantTurn(text=text), source="Trip")])
    written = json.loads(json.dumps(transcript.as_dict(), sort_keys=True))
    segment = written["transcript"]["entries"][0]["contents"][0]
    assert ("text" in segment) == kept
    if kept:
        assert Transcript.parse(written)[0].turn.text == text
        segment["structure"]["content"]["days"] = 7
        edited = Transcript.parse(written)[0].turn.text
        assert json.loads(edited)["days"] == 7


def test_a_prompt_records_whether_it_includes_the_schema() -> None:
    for shown in (SCHEMA, None):
        entry = PromptEntry(turn=UserTurn(text="x", response_format=shown), options=fm.GenerationOptions(), schema=SCHEMA)
        assert list(Transcript.parse(Transcript([entry]).as_dict())) == [entry]


def changed_entry(position: int, **changes: Any) -> dict[str, Any]:
    values = copy.deepcopy(APPLE)
    entry = values["transcript"]["entries"][position]
    for key, value in changes.items():
        if value is None:
            del entry[key]
        else:
            entry[key] = value
    return values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "'type' is missing"),
        ([], "a transcript must be an object"),
        ({"type": "Other", "version": 1}, "'type' must be"),
        ({"type": "FoundationModels.Transcript", "version": 2}, "'version' must be 1, got 2"),
        ({"type": "FoundationModels.Transcript", "version": 1}, "'transcript' is missing"),
        ({"type": "FoundationModels.Transcript", "version": 1, "transcript": {}}, "'entries' is missing"),
        ({"type": "FoundationModels.Transcript", "version": 1, "transcript": {"entries": {}}}, "'entries' must be a list"),
        ({"type": "FoundationModels.Transcript", "version": 1, "transcript": {"entries": ["x"]}}, "entry 0"),
        ({"x": float("nan")}, "a transcript must be JSON"),
        ({"x": {1, 2}}, "a transcript must be JSON"),
        (changed_entry(0, id=None), "entry 0 of the transcript: 'id' is missing"),
        (changed_entry(1, contents=None), "entry 1 of the transcript: 'contents' is missing"),
        (changed_entry(1, role="reasoning"), "unknown role 'reasoning'; known: instructions, user, response, tool"),
        (changed_entry(1, role=3), "'role' must be text"),
        (changed_entry(1, contents=[{"type": "video", "id": "0"}]), "unknown segment type 'video'"),
        (changed_entry(1, contents=[{"type": "image", "id": "0"}]), "'image' is missing"),
        (changed_entry(5, contents=[{"type": "image", "id": "0", "image": {}}]), "unknown segment type 'image'"),
        (changed_entry(1, contents=[{"type": "text", "id": "0"}]), "'text' is missing"),
        (changed_entry(1, contents=["x"]), "a segment must be an object"),
        (changed_entry(1, options=[]), "'options' must be an object"),
        (changed_entry(1, options={"temperature": "hot"}), "'temperature' must be a number"),
        (changed_entry(1, options={"sampling": {"mode": "random", "top_k": "3"}}), "'top' must be a positive integer"),
        (changed_entry(1, responseFormat={"type": "regex"}), "unknown response format 'regex'"),
        (changed_entry(1, responseFormat={"type": "jsonSchema", "jsonSchema": {"schema": 3}}), "'schema' must be an object"),
        (
            changed_entry(1, responseFormat={"type": "jsonSchema", "jsonSchema": {"schema": {"$ref": "#/$defs/x"}}}),
            "'schema' is not a valid schema",
        ),
        (changed_entry(0, tools=[{"type": "function"}]), "'function' is missing"),
        (
            changed_entry(2, toolCalls=[{"id": "1", "name": "x", "arguments": "{"}]),
            "'arguments' of a tool call are not JSON",
        ),
        (changed_entry(2, toolCalls=[{"id": "1", "name": "x", "arguments": "[]"}]), "'arguments' must be an object"),
        (changed_entry(2, toolCalls=[{"name": "x", "arguments": "{}"}]), "'id' is missing"),
        (changed_entry(2, toolCalls=[]), "'contents' is missing"),
        (changed_entry(3, toolCallID=None), "'toolCallID' is missing"),
        (changed_entry(5, assets=[1]), "an asset must be text"),
        (changed_entry(5, contents=[{"type": "structure", "structure": {}}]), "a structure needs 'content'"),
        (changed_entry(3, role="instructions"), "instructions must be the first entry"),
    ],
)
def test_invalid_transcripts_are_refused(values: Any, message: str) -> None:
    with pytest.raises(TranscriptError) as caught:
        Transcript.parse(values)
    assert message in str(caught.value)
    assert isinstance(caught.value, fm.GenerationError)


def test_deeply_nested_json_is_refused() -> None:
    for levels in (150, 400, 100_000):
        deep: Any = {"type": "string"}
        for _ in range(levels):
            deep = {"items": deep}
        with pytest.raises(TranscriptError):
            Transcript.parse(with_schema(deep))


def with_schema(schema: Any) -> dict[str, Any]:
    entry = {
        "id": "1",
        "role": "user",
        "contents": [],
        "responseFormat": {"type": "jsonSchema", "jsonSchema": {"schema": schema}},
    }
    return {"type": "FoundationModels.Transcript", "version": 1, "transcript": {"entries": [entry]}}


def test_tool_calls_need_one_id_each() -> None:
    with pytest.raises(ValueError, match="1 calls, 0 ids"):
        ToolCallsEntry(turn=AssistantTurn(tool_calls=(ToolCall(name="x", arguments={}),)), call_ids=())


texts = st.text(max_size=12) | st.just("unpaired: \ud83d")
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(texts, children, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, values, max_size=3)
schemas = st.sampled_from([SCHEMA, {"type": "string"}, {"title": "Any"}])
assets = st.lists(texts, max_size=2).map(tuple)
tools = st.builds(ToolDefinition, name=texts, description=texts, parameters=schemas)
samplings = st.just(fm.SamplingMode.greedy()) | st.builds(
    fm.SamplingMode.random, top=st.none() | st.integers(1, 50), seed=st.none() | st.integers()
)
options = st.builds(
    fm.GenerationOptions,
    sampling=st.none() | samplings,
    temperature=st.none() | st.floats(0, 2),
    maximum_response_tokens=st.none() | st.integers(1, 9),
    tool_calling_mode=st.none() | st.sampled_from(ToolCallingMode),
)


@st.composite
def prompts(draw: st.DrawFn) -> PromptEntry:
    schema = draw(st.none() | schemas)
    turn = UserTurn(text=draw(texts), response_format=draw(st.sampled_from([schema, None])))
    return PromptEntry(turn=turn, options=draw(options), schema=schema)


@st.composite
def tool_rounds(draw: st.DrawFn) -> list[Entry]:
    calls = draw(st.lists(st.builds(ToolCall, name=texts, arguments=objects), min_size=1, max_size=3))
    ids = tuple(f"C-{number}" for number in range(len(calls)))
    entry = ToolCallsEntry(turn=AssistantTurn(text=draw(texts), tool_calls=tuple(calls)), call_ids=ids, assets=draw(assets))
    outputs = [
        ToolOutputEntry(turn=ToolTurn(name=call.name, text=draw(texts)), call_id=call_id)
        for call, call_id in zip(calls, ids, strict=True)
    ]
    return [entry, *outputs]


@st.composite
def responses(draw: st.DrawFn) -> ResponseEntry:
    source = draw(st.none() | texts)
    written = st.builds(json.dumps, values, ensure_ascii=st.booleans(), indent=st.sampled_from([None, 1]))
    text = draw(texts if source is None else values.map(compact_json) | written)
    return ResponseEntry(turn=AssistantTurn(text=text), source=source, assets=draw(assets))


@st.composite
def transcripts(draw: st.DrawFn) -> Transcript:
    instructions = st.builds(Instructions, text=texts, tools=st.lists(tools, max_size=2).map(tuple))
    entries: list[Entry] = [InstructionsEntry(turn=draw(instructions))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 3))):
        entries.append(draw(prompts()))
        for tool_round in draw(st.lists(tool_rounds(), max_size=2)):
            entries.extend(tool_round)
        entries.append(draw(responses()))
    return Transcript(entries)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(transcripts())
def test_any_transcript_survives_a_file(transcript: Transcript) -> None:
    written = transcript.as_dict()
    assert transcript.as_dict() == written
    for sort_keys in (False, True):  # other programs may reorder keys
        loaded = Transcript.parse(json.loads(json.dumps(written, sort_keys=sort_keys)))
        assert sorted_json(loaded.as_dict()) == sorted_json(written)
        assert [entry.id for entry in loaded] == [entry.id for entry in transcript]
        if not sort_keys:
            assert list(loaded) == list(transcript)
            assert loaded.turns == transcript.turns


def test_a_transcript_from_json_prefills_the_same_tokens(model: fm.SystemLanguageModel) -> None:
    loaded = model.load()
    transcript = Transcript.parse(APPLE)
    again = Transcript.parse(json.loads(json.dumps(transcript.as_dict())))
    encoded = [loaded.template.encode(loaded.tokenizer, opened(one.turns)).tokens for one in (transcript, again)]
    assert encoded[0] == encoded[1]
    assert asyncio.run(model.token_count(again)) == len(encoded[0])
