"""Models behind an endpoint: requests, replies, retries, availability."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import time
from enum import Enum
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from endpoints import (
    Endpoint,
    Reply,
    Toy,
    Weather,
    broken,
    calls,
    delta,
    events,
    fails,
    model_at,
    says,
    serving,
)

import openafm as fm
from openafm.framework.backends.http_lines import EndpointError
from openafm.framework.backends.openai_messages import new_messages
from openafm.framework.backends.openai_model import OpenAICompatibleModel

pytestmark = pytest.mark.usefixtures("no_leaks")


class Kind(Enum):
    RED = "red"
    BLUE = "blue"


@fm.generable("A pet")
class Pet:
    name: str = fm.guide("Its name", regex="[a-z]{2,9}")
    age: int = fm.guide(range=(1, 30))
    kinds: list[Kind] = fm.guide(count=1)
    toy: Toy | None = None
    legs: int = 4


def test_text_streams_and_every_request_sends_the_conversation() -> None:
    with serving(says("Hel", "lo", "\u2028."), says("Fine.")) as endpoint:
        model = model_at(endpoint.url, api_key="s3cret")
        session = fm.LanguageModelSession("Be brief.", model)
        snapshots = [snapshot.content for snapshot in session.stream_blocking("Hi")]
        assert snapshots == ["Hel", "Hello", "Hello\u2028."]
        options = fm.GenerationOptions(
            fm.SamplingMode.random(probability_threshold=0.9, seed=7), temperature=0.5, maximum_response_tokens=9
        )
        response = asyncio.run(session.respond_full("How are you?", options=options))
    assert response.content == "Fine."
    first, second = endpoint.requests
    assert first == {
        "model": "a-model",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "user"]
    assert second["messages"][2]["content"] == "Hello\u2028."
    assert {key: second[key] for key in ("temperature", "top_p", "seed", "max_tokens")} == {
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 7,
        "max_tokens": 9,
    }
    assert (response.usage.prompt_tokens, response.usage.cached_tokens, response.usage.generated_tokens) == (20, 8, 5)
    assert response.usage.ttft_ms > 0
    path, headers = endpoint.asked[0]
    assert (path, headers["Authorization"]) == ("/v1/chat/completions", "Bearer s3cret")
    assert "s3cret" not in repr(model)
    assert session.transcript[-1].to_dict()["assets"] == ["a-model"]


def test_greedy_is_temperature_zero_and_unset_options_are_left_out() -> None:
    with serving(says("x"), says("x")) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url))
        session.respond_blocking("x", options=fm.GenerationOptions(fm.SamplingMode.greedy()))
        session.respond_blocking("x", options=fm.GenerationOptions(fm.SamplingMode.random(top=5)))
    assert endpoint.requests[0]["temperature"] == 0
    assert endpoint.requests[1]["top_k"] == 5
    assert "temperature" not in endpoint.requests[1]


def test_typed_answers() -> None:
    pieces = ['{ "name": "mo', '", "age": 3,', ' "kinds": ["red"], "toy": null, ', '"legs": null}']
    with serving(says(*pieces)) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url))
        stream = list(session.stream_blocking("A pet", Pet))
        last = stream[-1].content
    assert (last.name, last.age, last.kinds, last.toy) == ("mo", 3, [Kind.RED], None)
    assert [snapshot.content.name for snapshot in stream][:2] == ["mo", "mo"]
    assert session.transcript[-1].turn.text == '{"name":"mo","age":3,"kinds":["red"]}'
    body = endpoint.requests[0]
    sent = body["response_format"]["json_schema"]
    assert (body["response_format"]["type"], sent["strict"]) == ("json_schema", True)
    schema = sent["schema"]
    assert schema["required"] == list(schema["properties"]) == ["name", "age", "kinds", "toy", "legs"]
    assert schema["properties"]["legs"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert schema["properties"]["toy"] == {"anyOf": [{"$ref": "#/$defs/Toy"}, {"type": "null"}]}
    assert "x-order" not in json.dumps(body)
    assert '"legs"' in body["messages"][0]["content"]


def test_the_schema_can_be_left_out_of_the_prompt() -> None:
    with serving(says('{"squeaks":true}')) as endpoint:
        toy = fm.LanguageModelSession(model=model_at(endpoint.url)).respond_blocking(
            "A toy", Toy, include_schema_in_prompt=False
        )
    assert toy == Toy(True)
    assert endpoint.requests[0]["messages"] == [{"role": "user", "content": "A toy"}]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (list[int], '{"value": [1, 2]}', [1, 2]),
        (Kind, '{"value":"blue"}', Kind.BLUE),
        (Toy | bool, '{"value":{"Toy":{"squeaks":false}}}', Toy(False)),
    ],
)
def test_other_types_are_wrapped_in_an_object(kind: Any, text: str, value: Any) -> None:
    with serving(says(text[:4], text[4:]), says(text)) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url))
        assert [snapshot.raw_content.value(kind) for snapshot in session.stream_blocking("x", kind)][-1:] == [value]
        assert session.respond_blocking("x", kind) == value
        assert session.transcript[-1].turn.text == json.dumps(json.loads(text)["value"], separators=(",", ":"))
    sent = endpoint.requests[0]["response_format"]["json_schema"]["schema"]
    assert (sent["type"], sent["required"]) == ("object", ["value"])


def test_references_to_the_root_work_in_the_wrapper() -> None:
    schema = {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}}]}
    with serving(says('{"value":[null,[null]]}'), says('{"value":[1]}')) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url))
        assert session.respond_blocking("x", json_schema=schema).value() == [None, [None]]
        with pytest.raises(fm.DecodingFailureError, match="does not match"):
            session.respond_blocking("x", json_schema=schema)
    sent = endpoint.requests[0]["response_format"]["json_schema"]["schema"]
    assert sent["properties"]["value"]["anyOf"][1]["items"] == {"$ref": "#/properties/value"}


def test_schemas_without_a_strict_form_are_sent_unchanged() -> None:
    with serving(says('{"a": 1}')) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url))
        assert session.respond_blocking("x", dict[str, int]) == {"a": 1}
    sent = endpoint.requests[0]["response_format"]["json_schema"]
    assert sent == {
        "name": "response",
        "strict": False,
        "schema": {"type": "object", "additionalProperties": {"type": "integer"}},
    }


def test_invalid_schemas_fail_before_the_request() -> None:
    with serving() as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url))
        for schema, error in (
            ({"type": "object", "properties": {"a": {"$ref": "#/$defs/No"}}}, fm.InvalidGenerationSchemaError),
            ({"type": "object", "properties": {"a": {"type": "thing"}}}, fm.InvalidGenerationSchemaError),
            ({"type": "string", "pattern": r"\p{L}"}, fm.UnsupportedGuideError),
            ({"type": "string", "pattern": "a{99999999999}"}, fm.UnsupportedGuideError),
        ):
            with pytest.raises(error):
                session.respond_blocking("x", json_schema=schema, include_schema_in_prompt=False)
    assert endpoint.requests == []


def test_tools_are_called_and_their_outputs_sent() -> None:
    with serving(
        calls(("weather", '{"city": "Oslo", "country": null}'), ("weather", '{"city":"Rome"}'), text="I look it up."),
        says("Sunny in both."),
        says("Bye."),
    ) as endpoint:
        session = fm.LanguageModelSession("Help.", model_at(endpoint.url), [Weather()])
        snapshots = [snapshot.content for snapshot in session.stream_blocking("Weather?")]
        session.respond_blocking("Bye", options=fm.GenerationOptions(tool_calling_mode=fm.ToolCallingMode.DISALLOWED))
    assert snapshots == ["I look it up.", "Sunny in both."]
    first, second, third = endpoint.requests
    function = first["tools"][0]["function"]
    assert (first["tool_choice"], function["name"], function["strict"]) == ("auto", "weather", True)
    assert function["parameters"]["required"] == ["city", "country"]
    called, *outputs = second["messages"][2:]
    assert called["content"] == "I look it up."
    assert [call["function"]["arguments"] for call in called["tool_calls"]] == ['{"city":"Oslo"}', '{"city":"Rome"}']
    ids = [call["id"] for call in called["tool_calls"]]
    assert [(output["tool_call_id"], output["content"]) for output in outputs] == [
        (ids[0], "sunny in Oslo"),
        (ids[1], "sunny in Rome"),
    ]
    assert (third["tool_choice"], third["tools"]) == ("none", first["tools"])
    assert len(third["messages"]) == 7


def test_text_before_tool_calls_is_allowed_in_a_typed_answer() -> None:
    with serving(calls(("weather", '{"city":"Oslo"}'), text="I look it up."), says('{"squeaks":true}')) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url), tools=[Weather()])
        stream = list(session.stream_blocking("x", Toy))
    assert stream[-1].raw_content.value(Toy) == Toy(True)
    assert len(endpoint.requests) == 2


def test_calls_can_be_required_and_calls_without_index_are_read() -> None:
    unnumbered = events(
        delta(tool_calls=[{"id": "a", "function": {"name": "weather", "arguments": '{"city":'}}]),
        delta(tool_calls=[{"function": {"arguments": '"Oslo"}'}}]),
        delta(tool_calls=[{"id": "b", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}]),
        delta("tool_calls"),
    )
    with serving(unnumbered, says("ok"), says("No.")) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url), tools=[Weather()])
        options = fm.GenerationOptions(tool_calling_mode=fm.ToolCallingMode.REQUIRED)
        session.respond_blocking("x", options=options)
        with pytest.raises(fm.DecodingFailureError, match="tool call is required") as caught:
            session.respond_blocking("x", options=options)
    assert caught.value.raw_content == "No."
    assert [request["tool_choice"] for request in endpoint.requests] == ["required", "auto", "required"]
    assert [entry.turn.text for entry in session.transcript if hasattr(entry, "call_id")] == [
        "sunny in Oslo",
        "sunny in Rome",
    ]


def test_an_endpoint_continues_a_transcript() -> None:
    with serving(calls(("weather", '{"city":"Oslo"}')), says("Sunny."), says("Bye.")) as endpoint:
        session = fm.LanguageModelSession("Help.", model_at(endpoint.url), [Weather()])
        session.respond_blocking("Oslo?")
        restored = fm.Transcript.parse(session.transcript.as_dict())
        again = fm.LanguageModelSession.from_transcript(restored, model_at(endpoint.url), [Weather()])
        assert again.respond_blocking("Bye") == "Bye."
    assert endpoint.requests[2]["messages"][:4] == endpoint.requests[1]["messages"]


def test_an_output_without_a_call_is_refused() -> None:
    with serving(calls(("weather", '{"city":"Oslo"}')), says("Sunny.")) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url), tools=[Weather()])
        session.respond_blocking("Oslo?")
        cut = fm.Transcript(entry for entry in session.transcript if not hasattr(entry, "call_ids"))
        with pytest.raises(fm.GenerationError, match="no call before it"):
            fm.LanguageModelSession.from_transcript(cut, model_at(endpoint.url)).respond_blocking("x")


def test_json_in_a_code_block_is_read() -> None:
    with serving(
        says("```json\n", '{"squeaks":', "true}\n```"), says('Here it is:\n```\n{"squeaks":false}\n```\nBye.')
    ) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url))
        assert [snapshot.raw_content.value(Toy) for snapshot in session.stream_blocking("x", Toy)] == [Toy(True)]
        assert session.respond_blocking("x", Toy) == Toy(False)
        assert session.transcript[-1].turn.text == '{"squeaks":false}'


def test_an_invalid_reply_is_sent_back_once() -> None:
    with serving(says('{"squeaks":"yes"}'), says('{"squeaks":true}'), says("x"), says("y")) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url, asks_again=True))
        snapshots = [snapshot.raw_content.value(Toy) for snapshot in session.stream_blocking("A toy", Toy)]
        assert snapshots == [Toy(True)]
        assert session.usage.generated_tokens == 10  # both replies
        with pytest.raises(fm.DecodingFailureError, match="not JSON"):
            session.respond_blocking("Another", Toy)
    roles = [[message["role"] for message in request["messages"]] for request in endpoint.requests]
    assert roles == [
        ["user"],
        ["user", "assistant", "user"],
        ["user", "assistant", "user"],  # the correction is not part of the conversation
        ["user", "assistant", "user", "assistant", "user"],
    ]
    correction = endpoint.requests[1]["messages"][1:]
    assert correction[0]["content"] == '{"squeaks":"yes"}'
    assert "does not match the schema at $.squeaks" in correction[1]["content"]


def test_temporary_errors_are_retried() -> None:
    with serving(fails(503, "busy"), fails(429, {}, Retry_After="0"), says("Hello")) as endpoint:
        started = time.monotonic()
        session = fm.LanguageModelSession(model=model_at(endpoint.url, max_retries=2))
        assert session.respond_blocking("x") == "Hello"
        assert time.monotonic() - started >= 0.5  # back-off after 503; the 429 names no time
    assert [len(request["messages"]) for request in endpoint.requests] == [1, 1, 1]


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (fails(400, {"error": {"message": "no"}}), EndpointError),
        (fails(429, {}, Retry_After="3600"), fm.RateLimitedError),  # longer than a caller would wait
        (fails(500, {"error": {"code": "context_length_exceeded"}}), fm.ExceededContextWindowSizeError),
        (broken(delta(content="Hel")), EndpointError),
    ],
)
def test_other_errors_are_not_retried(reply: Reply, error: type[Exception]) -> None:
    with serving(reply) as endpoint, pytest.raises(error):
        fm.LanguageModelSession(model=model_at(endpoint.url, max_retries=2)).respond_blocking("x")
    assert len(endpoint.requests) == 1


def test_waiting_for_a_retry_can_be_cancelled() -> None:
    with serving(fails(429, {}, Retry_After="20")) as endpoint:
        limits = fm.ToolLimits(request_seconds=0.2)
        session = fm.LanguageModelSession(model=model_at(endpoint.url, max_retries=2), tool_limits=limits)
        started = time.monotonic()
        with pytest.raises(fm.RequestTimeoutError):
            session.respond_blocking("x")
        assert time.monotonic() - started < 15


def sent_images(endpoint: Endpoint, request: int) -> list[bytes]:
    """Return the bytes of the images in a request, in order."""
    contents = [message["content"] for message in endpoint.requests[request]["messages"]]
    urls = [part["image_url"]["url"] for parts in contents if isinstance(parts, list) for part in parts[1:2]]
    return [base64.b64decode(url.removeprefix("data:image/png;base64,"), validate=True) for url in urls]


def png(color: int) -> bytes:
    file = io.BytesIO()
    PIL.Image.new("L", (3, 2), color).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(("mode", "sent"), [("high", "high"), ("balanced", "auto"), ("rapid", "low"), (None, None)])
def test_the_detail_of_images_is_sent(mode: Any, sent: str | None) -> None:
    with serving(says("x"), says("y")) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url, capabilities=list(fm.Capability)))
        session.respond_blocking(fm.Prompt("What?", fm.Image(png(1))), options=fm.GenerationOptions(image_detail=mode))
        session.respond_blocking("And?")
        details = [request["messages"][0]["content"][1]["image_url"].get("detail") for request in endpoint.requests]
    assert details == [sent, sent]  # a later request repeats the message, for the endpoint's prefix cache


def test_images_are_sent_as_data_urls(tmp_path: Path) -> None:
    (tmp_path / "swift.png").write_bytes(png(1))
    prompt = fm.Prompt("What is", "this?", fm.Image(tmp_path / "swift.png", "photo"), "Be brief.")
    with serving(says('{"squeaks":true}'), says("Bye."), says("x")) as endpoint:
        model = model_at(endpoint.url, capabilities=list(fm.Capability))
        session = fm.LanguageModelSession(model=model)
        session.respond_blocking(prompt, Toy)
        session.respond_blocking("Bye")
        parts = endpoint.requests[0]["messages"][0]["content"]
        assert [part["type"] for part in parts] == ["text", "image_url", "text", "text"]
        assert parts[0]["text"] == "What is\nthis?\nphoto:"
        assert sent_images(endpoint, 0) == [png(1)]
        assert parts[2]["text"] == "Be brief."
        assert parts[3]["text"].startswith("\n\nRespond with JSON")
        assert endpoint.requests[1]["messages"][0]["content"] == parts
    assert len(endpoint.requests) == 2


def test_a_transcript_with_images_is_continued_with_their_bytes() -> None:
    with serving(says("A."), says("B."), says("C.")) as endpoint:
        model = model_at(endpoint.url, capabilities=list(fm.Capability))
        session = fm.LanguageModelSession(model=model)
        session.respond_blocking(fm.Prompt("What is this?", fm.Image(png(1))))
        written = json.loads(json.dumps(session.transcript.as_dict()))
        bare = fm.LanguageModelSession.from_transcript(fm.Transcript.parse(written), model)
        with pytest.raises(fm.UnsupportedCapabilityError, match="pass images= to"):
            bare.respond_blocking("x")
        restored = fm.Transcript.parse(written, images=session.transcript.images)
        again = fm.LanguageModelSession.from_transcript(restored, model)
        again.respond_blocking(fm.Prompt("And this?", fm.Image(png(2))))
        again.respond_blocking("Compare them.")
        assert [sent_images(endpoint, request) for request in range(3)] == [[png(1)]] + [[png(1), png(2)]] * 2
        text_model = model_at(endpoint.url)
        with pytest.raises(fm.UnsupportedAttachmentError, match="needs vision"):
            fm.LanguageModelSession.from_transcript(restored, text_model).respond_blocking("x")


def test_a_failed_request_sends_the_images_again() -> None:
    with serving(says("A."), fails(400, {"error": {"message": "no"}}), says("B.")) as endpoint:
        model = model_at(endpoint.url, capabilities=list(fm.Capability))
        first = fm.LanguageModelSession(model=model)
        first.respond_blocking(fm.Prompt("What is this?", fm.Image(png(1))))
        session = fm.LanguageModelSession.from_transcript(first.transcript, model)
        with pytest.raises(fm.GenerationError):
            session.respond_blocking("x")
        session.respond_blocking("x")
        assert sent_images(endpoint, 2) == [png(1)]


def test_a_saved_session_stores_its_images_beside_it(tmp_path: Path) -> None:
    path, folder = tmp_path / "chat", tmp_path / "chat.images"
    digest = hashlib.sha256(png(1)).hexdigest()
    with serving(says("A."), says("B.")) as endpoint:
        model = model_at(endpoint.url, capabilities=list(fm.Capability))
        session = fm.LanguageModelSession(model=model)
        session.respond_blocking(fm.Prompt("What is this?", fm.Image(png(1))))
        session.save_blocking(path)
        assert [(each.name, each.read_bytes()) for each in folder.iterdir()] == [(digest, png(1))]
        assert png(1) not in path.read_bytes()
        loaded = fm.LanguageModelSession.load(path, model)
        loaded.respond_blocking("And now?")
        assert sent_images(endpoint, 1) == [png(1)]
        (folder / digest).write_bytes(png(2))
        assert fm.LanguageModelSession.load(path, model).transcript.images == {}
        fm.LanguageModelSession(model=model).save_blocking(path)
        assert list(folder.iterdir()) == []


def test_a_stated_context_size_stops_long_prompts() -> None:
    with serving(says("x")) as endpoint:
        with pytest.raises(fm.ExceededContextWindowSizeError) as caught:
            fm.LanguageModelSession(model=model_at(endpoint.url, context_size=100)).respond_blocking("word " * 200)
        assert caught.value.token_count > caught.value.context_size == 100
        assert endpoint.requests == []
        unknown = fm.LanguageModelSession(model=model_at(endpoint.url))  # its window may be larger than the default
        assert unknown.respond_blocking("word " * 20_000) == "x"


def test_conversations_with_endpoints_are_condensed() -> None:
    with serving(*[says("Fine.")] * 4, says("We greeted.")) as endpoint:
        model = model_at(endpoint.url, context_size=400)
        session = fm.LanguageModelSession("Be brief.", model)
        for _ in range(4):
            session.respond_blocking("How are you? " * 8)
        window = fm.rolling_window_blocking(session.transcript, model, max_tokens=80)
        assert 1 < len(window) < 9
        assert model.token_count_blocking(window) <= 80
        summary = fm.summarized_blocking(session.transcript, model)
    assert [entry.turn.text for entry in summary][2] == "We greeted."


def test_the_finish_reason_is_that_of_the_endpoint() -> None:
    with serving(says("Hel", finish="length"), says("Hello")) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url))
        reasons = [session.respond_full_blocking("x").finish_reason for _ in range(2)]
    assert reasons == [fm.FinishReason.LENGTH, fm.FinishReason.STOP]


def test_availability() -> None:
    listed = fails(200, {"data": [{"id": "a-model"}]})
    with serving(listed, fails(200, {"data": [{"id": "b"}]}), fails(401, {}), fails(404, "x"), fails(200, "no")) as endpoint:
        model = model_at(endpoint.url + "/", api_key="k")
        reasons = fm.SystemLanguageModelUnavailableReason
        assert model.is_available() == (True, None)
        assert model.is_available() == (False, reasons.MODEL_NOT_INSTALLED)
        assert model.is_available() == (False, reasons.DEVICE_NOT_ELIGIBLE)
        assert model.is_available() == (True, None)
        assert model.is_available() == (True, None)
    assert endpoint.asked[0][0] == "/v1/models"
    assert endpoint.asked[0][1]["Authorization"] == "Bearer k"


def test_wrong_arguments_and_capabilities() -> None:
    for arguments in ({"base_url": "localhost:8000"}, {"context_size": 0}, {"timeout_seconds": 0}):
        with pytest.raises(ValueError, match="must"):
            OpenAICompatibleModel(**({"base_url": "http://x", "model": "m"} | arguments))
    for key in ("k\n", "schl\u00fcssel"):
        with pytest.raises(ValueError, match="'api_key' must") as caught:
            OpenAICompatibleModel("http://x", "m", key)
        assert key not in str(caught.value)
    plain_model = OpenAICompatibleModel("http://127.0.0.1:9", "m", capabilities=())
    with pytest.raises(fm.UnsupportedCapabilityError):
        fm.LanguageModelSession(model=plain_model).respond_blocking("x", Toy)
    assert plain_model.context_size == 8192


def test_many_sessions_at_once() -> None:
    async def run(model: OpenAICompatibleModel) -> list[str]:
        sessions = [fm.LanguageModelSession(model=model) for _ in range(20)]
        return await asyncio.gather(*(session.respond("x") for session in sessions))

    with serving(*[says("Hel", "lo", pause_s=0.01)] * 20) as endpoint:
        assert asyncio.run(run(model_at(endpoint.url))) == ["Hello"] * 20


def test_images_of_tool_outputs_follow_in_a_user_message() -> None:
    data = b"\x89PNG data"
    picture = fm.ImagePart(digest="a", num_tokens=9)
    turns = [
        fm.AssistantTurn(tool_calls=tuple(fm.ToolCall(name=name, arguments={}) for name in ("one", "two"))),
        fm.ToolTurn(name="one", content=[fm.TextPart(text="see"), picture]),
        fm.ToolTurn(name="two", text="no image"),
        fm.UserTurn(text="and?"),
    ]
    messages = new_messages([], turns, {"a": data})
    assert [message["role"] for message in messages] == ["assistant", "tool", "tool", "user", "user"]
    assert messages[1]["content"] == "see"
    assert [part["type"] for part in messages[3]["content"]] == ["text", "image_url"]
    assert new_messages([], turns[:2], {"a": data})[-1]["content"][1]["type"] == "image_url"
