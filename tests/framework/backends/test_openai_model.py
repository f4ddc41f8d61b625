"""Models behind an endpoint: what is sent, what is made of the answers, and every way in which an endpoint misbehaves."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from endpoints import DONE, Handler, Reply, calls, delta, event, events, fails, says, serving

import openafm as fm
from openafm.framework.backends.http_lines import EndpointError, EndpointTimeoutError
from openafm.framework.backends.openai_model import OpenAICompatibleModel


class Kind(Enum):
    RED = "red"
    BLUE = "blue"


@fm.generable
class Toy:
    squeaks: bool


@fm.generable("A pet")
class Pet:
    name: str = fm.guide("Its name", regex="[a-z]{2,9}")
    age: int = fm.guide(range=(1, 30))
    kinds: list[Kind] = fm.guide(count=1)
    toy: Toy | None = None
    legs: int = 4


@fm.generable
class City:
    city: str
    country: str | None = None


class Weather(fm.Tool):
    name = "weather"
    description = "The weather of a city"

    @property
    def arguments_schema(self) -> fm.GenerationSchema:
        return City.generation_schema()  # type: ignore[attr-defined, no-any-return]

    async def call(self, args: fm.GeneratedContent) -> str:
        return "sunny in " + args.value(City).city


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    """Every test ends with the threads and sockets that it began with."""
    before = num_sockets(), threading.active_count()
    yield
    wait_until(lambda: num_sockets() <= before[0] and threading.active_count() <= before[1])


def num_sockets() -> int:
    if not Path("/proc/self/fd").exists():
        return 0
    links = []
    for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115
        except OSError:
            continue
    return sum(link.startswith("socket:") for link in links)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def model_at(url: str, **keywords: Any) -> OpenAICompatibleModel:
    return OpenAICompatibleModel(url, "a-model", **keywords)


def test_text_streams_and_the_conversation_is_told_again() -> None:
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


def test_the_schema_is_not_shown_where_it_shall_not_be() -> None:
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
def test_what_is_no_object_travels_in_one(kind: Any, text: str, value: Any) -> None:
    with serving(says(text[:4], text[4:]), says(text)) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url))
        assert [snapshot.raw_content.value(kind) for snapshot in session.stream_blocking("x", kind)][-1:] == [value]
        assert session.respond_blocking("x", kind) == value
        assert session.transcript[-1].turn.text == json.dumps(json.loads(text)["value"], separators=(",", ":"))
    sent = endpoint.requests[0]["response_format"]["json_schema"]["schema"]
    assert (sent["type"], sent["required"]) == ("object", ["value"])


def test_references_to_the_root_follow_it_into_the_wrapper() -> None:
    schema = {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}}]}
    with serving(says('{"value":[null,[null]]}'), says('{"value":[1]}')) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url))
        assert session.respond_blocking("x", json_schema=schema).value() == [None, [None]]
        with pytest.raises(fm.DecodingFailureError, match="does not match"):
            session.respond_blocking("x", json_schema=schema)
    sent = endpoint.requests[0]["response_format"]["json_schema"]["schema"]
    assert sent["properties"]["value"]["anyOf"][1]["items"] == {"$ref": "#/properties/value"}


def test_schemas_beyond_the_strict_form_are_sent_as_they_are() -> None:
    with serving(says('{"a": 1}')) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url))
        assert session.respond_blocking("x", dict[str, int]) == {"a": 1}
    sent = endpoint.requests[0]["response_format"]["json_schema"]
    assert sent == {
        "name": "response",
        "strict": False,
        "schema": {"type": "object", "additionalProperties": {"type": "integer"}},
    }


def test_schemas_that_cannot_be_checked_fail_before_anything_is_sent() -> None:
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


def test_tools_are_called_and_their_outputs_told() -> None:
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


def test_words_before_calls_do_not_disturb_a_typed_answer() -> None:
    with serving(calls(("weather", '{"city":"Oslo"}'), text="I look it up."), says('{"squeaks":true}')) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url), tools=[Weather()])
        stream = list(session.stream_blocking("x", Toy))
    assert stream[-1].raw_content.value(Toy) == Toy(True)
    assert len(endpoint.requests) == 2


def test_calls_can_be_required_and_calls_without_numbers_are_read() -> None:
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
        with pytest.raises(fm.DecodingFailureError, match="had to call") as caught:
            session.respond_blocking("x", options=options)
    assert caught.value.raw_content == "No."
    assert [request["tool_choice"] for request in endpoint.requests] == ["required", "auto", "required"]
    assert [entry.turn.text for entry in session.transcript if hasattr(entry, "call_id")] == [
        "sunny in Oslo",
        "sunny in Rome",
    ]


def test_a_transcript_goes_on_at_an_endpoint() -> None:
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


# Faults


def broken(*texts: str) -> Reply:
    """Some of an answer, then a connection that breaks."""

    def reply(handler: Handler) -> None:
        handler.begin(Content_Type="text/event-stream", Transfer_Encoding="chunked")
        for text in texts:
            handler.write(f"{len(text.encode()):x}\r\n{text}\r\n")
        handler.reset()

    return reply


def silent(after: str = "") -> Reply:
    def reply(handler: Handler) -> None:
        if after:
            handler.begin(Content_Type="text/event-stream")
            handler.write(after)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:  # until the client goes away
            handler.connection.settimeout(0.05)
            try:
                if not handler.connection.recv(1):
                    raise ConnectionError
            except TimeoutError:
                continue

    return reply


def plain(text: str) -> Reply:
    def reply(handler: Handler) -> None:
        handler.begin(Content_Type="text/plain")
        handler.write(text)

    return reply


TOO_LONG = "This model's maximum context length is 4096 tokens. However, your messages resulted in 5,123 tokens."


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (broken(), EndpointError, "broke off"),
        (broken(delta(content="Hel")), EndpointError, "broke off"),
        (events(delta(content="Hel")), EndpointError, "broke off"),
        (events(delta(content="Hel"), DONE), EndpointError, "broke off"),
        (events("data: {not JSON\n\n"), EndpointError, "not JSON"),
        (events("data: [1]\n\n"), EndpointError, "no chat completion"),
        (events(event({"choices": 5})), EndpointError, "no chat completion"),
        (events(event({"choices": [{"delta": {"content": ["x"]}}]})), EndpointError, "no chat completion"),
        (events(delta(content="x"), event({"choices": [], "usage": "much"})), EndpointError, "no chat completion"),
        (events(event({"choices": [{"delta": {"tool_calls": ["x"]}}]})), EndpointError, "no chat completion"),
        (plain('{"choices":[{"message":{"content":"x"}}]}'), EndpointError, "does not stream"),
        (plain("<html>hello</html>"), EndpointError, "broke off"),
        (plain(""), EndpointError, "broke off"),
        (events(delta(content="x"), event({"error": {"message": "out of memory"}})), EndpointError, "out of memory"),
        (fails(500, "oops"), EndpointError, "500"),
        (fails(302, "", Location="http://127.0.0.1:9/"), EndpointError, "302"),
        (fails(400, {"error": {"message": "no such parameter"}}), EndpointError, "no such parameter"),
        (fails(400, {"error": "wrong"}), EndpointError, "wrong"),
        (fails(401, {"error": {"message": "bad key"}}), fm.AssetsUnavailableError, "bad key"),
        (fails(403, ""), fm.AssetsUnavailableError, "403"),
        (fails(404, {"detail": "no model"}), fm.AssetsUnavailableError, "no reason|no model"),
        (fails(429, {"error": {"message": "slow down"}}), fm.RateLimitedError, "slow down"),
        (events(delta("content_filter")), fm.GuardrailViolationError, "filter"),
        (fails(400, {"error": {"code": "content_filter", "message": "no"}}), fm.GuardrailViolationError, "no"),
        (events(delta(refusal="I will "), delta("stop", refusal="not.")), fm.RefusalError, "I will not."),
        (says("[" * 100_000), fm.DecodingFailureError, "JSON|object"),
        (says("no JSON"), fm.DecodingFailureError, "not JSON"),
        (says('```json\n{"squeaks":true}\n```'), fm.DecodingFailureError, "not JSON"),
        (says('{"squeaks":NaN}'), fm.DecodingFailureError, "not JSON"),
        (says('{"squeaks":"yes"}'), fm.DecodingFailureError, "squeaks"),
        (says('{"squeaks":true,"more":1}'), fm.DecodingFailureError, "more"),
        (says('{"squeaks":', finish="length"), fm.DecodingFailureError, "cut off"),
        (calls(("erase", "{}")), fm.DecodingFailureError, "erase"),
        (calls(("weather", '{"city":5}')), fm.DecodingFailureError, "does not match"),
        (calls(("weather", "")), fm.DecodingFailureError, "does not match"),
        (calls(("weather", "{")), fm.DecodingFailureError, "not JSON"),
        (calls(("weather", "[]")), fm.DecodingFailureError, "does not match"),
    ],
)
@pytest.mark.parametrize("is_streamed", [True, False])
def test_what_an_endpoint_does_wrong_is_a_typed_error_and_undone(
    reply: Reply, error: type[Exception], words: str, is_streamed: bool
) -> None:
    with serving(reply, says('{"squeaks":true}')) as endpoint:
        session = fm.LanguageModelSession("Help.", model_at(endpoint.url), [Weather()])
        before = list(session.transcript)
        with pytest.raises(error, match=words):
            if is_streamed:
                list(session.stream_blocking("x", Toy))
            else:
                asyncio.run(session.respond("x", Toy))
        assert list(session.transcript) == before
        assert session.respond_blocking("x", Toy) == Toy(True)  # it goes on as if nothing had been
    assert [len(request["messages"]) for request in endpoint.requests] == [2, 2]


def test_decoding_failures_hold_what_came() -> None:
    with serving(says('{"squeaks":', '"yes"}')) as endpoint:
        with pytest.raises(fm.DecodingFailureError) as caught:
            fm.LanguageModelSession(model=model_at(endpoint.url)).respond_blocking("x", Toy)
        assert caught.value.raw_content == '{"squeaks":"yes"}'


def test_a_limit_on_the_rate_says_how_long_to_wait() -> None:
    with serving(fails(429, {}, Retry_After="7"), fails(429, {})) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url))
        for seconds in (7.0, None):
            with pytest.raises(fm.RateLimitedError) as caught:
                session.respond_blocking("x")
            assert caught.value.retry_after_seconds == seconds


def test_refusals_explain_themselves() -> None:
    with serving(events(delta("stop", refusal="I will not."))) as endpoint:
        with pytest.raises(fm.RefusalError) as caught:
            fm.LanguageModelSession(model=model_at(endpoint.url)).respond_blocking("x")
        assert caught.value.explanation_blocking() == "I will not."


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        ({"code": "context_length_exceeded", "message": TOO_LONG}, (5123, 4096)),
        ({"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 700, "n_ctx": 512}, (700, 512)),
        ({"message": "This model's maximum context length is 64 tokens. However, you requested 90 tokens."}, (90, 64)),
        ({"code": "context_length_exceeded", "message": "too long"}, (8193, 8192)),
    ],
)
def test_a_conversation_that_does_not_fit_has_both_counts(error: dict[str, Any], counts: tuple[int, int]) -> None:
    with serving(fails(400, {"error": error})) as endpoint:
        with pytest.raises(fm.ExceededContextWindowSizeError) as caught:
            fm.LanguageModelSession(model=model_at(endpoint.url)).respond_blocking("x")
        assert (caught.value.token_count, caught.value.context_size) == counts


def test_without_a_loop_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> asyncio.AbstractEventLoop:
        raise OSError(24, "Too many open files")

    session = fm.LanguageModelSession(model=model_at("http://127.0.0.1:9/v1"))
    monkeypatch.setattr(asyncio.events, "new_event_loop", refuse)
    with pytest.raises(fm.GenerationError, match="Too many open files"):
        session.respond_blocking("x")


def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    model = model_at(url)
    assert model.is_available() == (False, fm.SystemLanguageModelUnavailableReason.MODEL_NOT_READY)
    with pytest.raises(fm.AssetsUnavailableError, match="cannot be reached"):
        asyncio.run(fm.LanguageModelSession(model=model).respond("x"))


@pytest.mark.parametrize("reply", [silent(), silent(delta(content="Hel"))])
def test_an_endpoint_that_falls_silent_is_given_up(reply: Reply) -> None:
    with serving(reply) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url, timeout_seconds=0.2))
        with pytest.raises(EndpointTimeoutError, match="said nothing"):
            session.respond_blocking("x")
        wait_until(lambda: endpoint.num_left == 1)


@pytest.mark.parametrize("reply", [silent(), silent(delta(content="Hel"))])
def test_a_cancelled_request_hangs_up(reply: Reply) -> None:
    async def run(session: fm.LanguageModelSession, requests: list[Any]) -> None:
        task = asyncio.create_task(session.respond("x"))
        while not requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with serving(reply, says("Hello")) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url))
        asyncio.run(run(session, endpoint.requests))
        wait_until(lambda: endpoint.num_left == 1)
        assert len(session.transcript) == 0
        assert session.respond_blocking("x") == "Hello"


def test_a_stream_dropped_half_way_hangs_up() -> None:
    with serving(silent(delta(content="Hel")), silent(delta(content="Hel")), says("Hello")) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url))
        stream = session.stream_blocking("x")
        assert next(stream).content == "Hel"
        del stream
        wait_until(lambda: endpoint.num_left == 1)

        async def leave() -> None:
            async with session.stream_response("x") as snapshots:
                async for _ in snapshots:
                    break

        asyncio.run(leave())
        wait_until(lambda: endpoint.num_left == 2)
        assert session.respond_blocking("x") == "Hello"
    assert len(session.transcript) == 2


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
