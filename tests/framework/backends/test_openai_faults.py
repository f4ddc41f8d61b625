"""Endpoints that misbehave: invalid replies, errors, silence, floods."""

from __future__ import annotations

import asyncio
import gzip
import socket
import time
from typing import Any

import pytest
from endpoints import (
    DONE,
    Handler,
    Reply,
    Toy,
    Weather,
    broken,
    calls,
    delta,
    event,
    events,
    fails,
    flood,
    model_at,
    plain,
    says,
    serving,
    silent,
    wait_until,
)

import openafm as fm
from openafm.evaluation.harness.answerer import ANSWERED_WITH_FAILURE
from openafm.framework.backends import http_lines, openai_model
from openafm.framework.backends.http_lines import EndpointError, EndpointTimeoutError

pytestmark = pytest.mark.usefixtures("no_leaks")


TOO_LONG = "This model's maximum context length is 4096 tokens. However, your messages resulted in 5,123 tokens."


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (broken(), EndpointError, "closed the connection"),
        (broken(delta(content="Hel")), EndpointError, "closed the connection"),
        (events(delta(content="Hel")), EndpointError, "closed the connection"),
        (events(delta(content="Hel"), DONE), EndpointError, "closed the connection"),
        (events("data: {not JSON\n\n"), EndpointError, "not JSON"),
        (events("data: [1]\n\n"), EndpointError, "not a chat completion"),
        (events(event({"choices": 5})), EndpointError, "not a chat completion"),
        (events(event({"choices": [{"delta": {"content": ["x"]}}]})), EndpointError, "not a chat completion"),
        (events(delta(content="x"), event({"choices": [], "usage": "much"})), EndpointError, "not a chat completion"),
        (events(event({"choices": [{"delta": {"tool_calls": ["x"]}}]})), EndpointError, "not a chat completion"),
        (plain('{"choices":[{"message":{"content":"x"}}]}'), EndpointError, "does not stream"),
        (plain("<html>hello</html>"), EndpointError, "closed the connection"),
        (plain(""), EndpointError, "closed the connection"),
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
def test_invalid_replies_are_typed_errors_and_undone(
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
        assert session.respond_blocking("x", Toy) == Toy(True)  # the session is unchanged
    assert [len(request["messages"]) for request in endpoint.requests] == [2, 2]


def test_decoding_failures_hold_the_text() -> None:
    with serving(says('{"squeaks":', '"yes"}')) as endpoint:
        with pytest.raises(fm.DecodingFailureError) as caught:
            fm.LanguageModelSession(model=model_at(endpoint.url)).respond_blocking("x", Toy)
        assert caught.value.raw_content == '{"squeaks":"yes"}'


def test_a_rate_limit_has_the_time_to_wait() -> None:
    with serving(fails(429, {}, Retry_After="7"), fails(429, {})) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url))
        for seconds in (7.0, None):
            with pytest.raises(fm.RateLimitedError) as caught:
                session.respond_blocking("x")
            assert caught.value.retry_after_seconds == seconds


def test_refusals_have_an_explanation() -> None:
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


def test_a_missing_event_loop_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> asyncio.AbstractEventLoop:
        raise OSError(24, "Too many open files")

    session = fm.LanguageModelSession(model=model_at("http://127.0.0.1:9/v1"))
    monkeypatch.setattr(asyncio.events, "new_event_loop", refuse)
    with pytest.raises(fm.GenerationError, match="Too many open files"):
        session.respond_blocking("x")


def test_a_refused_connection() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    model = model_at(url)
    assert model.is_available() == (False, fm.SystemLanguageModelUnavailableReason.MODEL_NOT_READY)
    with pytest.raises(fm.AssetsUnavailableError, match="cannot be reached"):
        asyncio.run(fm.LanguageModelSession(model=model).respond("x"))


@pytest.mark.parametrize("reply", [silent(), silent(delta(content="Hel"))])
def test_a_silent_endpoint_times_out(reply: Reply) -> None:
    with serving(reply) as endpoint:
        session = fm.LanguageModelSession(model=model_at(endpoint.url, timeout_seconds=0.2))
        with pytest.raises(EndpointTimeoutError, match="sent nothing"):
            session.respond_blocking("x")
        wait_until(lambda: endpoint.num_left == 1)


@pytest.mark.parametrize("reply", [silent(), silent(delta(content="Hel"))])
def test_cancelling_closes_the_connection(reply: Reply) -> None:
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


def test_dropping_a_stream_closes_the_connection() -> None:
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


@pytest.mark.parametrize("text", [delta(content="x" * 50), ": keep-alive\n\n", "\n"])
def test_a_flood_ends_at_the_deadline(text: str) -> None:
    with serving(flood(text), flood(text)) as endpoint:
        limited = fm.LanguageModelSession(model=model_at(endpoint.url), tool_limits=fm.ToolLimits(request_seconds=0.3))
        started = time.monotonic()
        with pytest.raises(fm.RequestTimeoutError):
            limited.respond_blocking("x")
        with pytest.raises(EndpointTimeoutError, match=r"complete reply within 0\.3 s"):
            fm.LanguageModelSession(model=model_at(endpoint.url, total_seconds=0.3)).respond_blocking("x")
        assert time.monotonic() - started < 15


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x" * 65536, "a line of more than 4,194,304 bytes"),
        (delta(content="x" * 2**20), "more than 16,777,216 characters"),
        (delta(tool_calls=[{"function": {"arguments": "x" * 2**20}}]), "more than 16,777,216 characters"),
        (delta(tool_calls=[{"index": 0, "function": {"name": "x"}}]), "a tool whose name has more than 1,000 characters"),
    ],
)
def test_an_endless_line_or_reply_is_refused(text: str, words: str) -> None:
    with serving(flood(text)) as endpoint, pytest.raises(EndpointError, match=words) as raised:
        fm.LanguageModelSession(model=model_at(endpoint.url)).respond_blocking("x")
    # A reply that is too long fails one item of an evaluation; a broken line ends the run.
    assert isinstance(raised.value, ANSWERED_WITH_FAILURE) == ("characters" in words)


def test_an_unread_flood_is_not_buffered() -> None:
    with serving(flood(delta(content="x" * 100_000))) as endpoint:
        lines = http_lines.streamed_lines(raw_request(endpoint.url, total_seconds=30), lambda: False)
        next(lines)
        time.sleep(1)
        lines.close()
    assert endpoint.num_sent < 40 * 2**20  # the buffer of 8 MiB, and those of the sockets


def test_a_slow_reader_notices_the_deadline() -> None:
    with serving(flood(delta(content="x"))) as endpoint:
        lines = http_lines.streamed_lines(raw_request(endpoint.url, total_seconds=2), lambda: False)
        next(lines)
        time.sleep(0.5)  # thousands of lines arrive
        started = time.monotonic()
        with pytest.raises(EndpointTimeoutError):
            for _ in lines:
                time.sleep(0.02)
        assert time.monotonic() - started < 15


def raw_request(url: str, total_seconds: float) -> http_lines.HttpRequest:
    return http_lines.HttpRequest(url=url, headers={}, body={}, timeout_seconds=5, total_seconds=total_seconds)


def test_a_compressed_reply_is_refused() -> None:
    def reply(handler: Handler) -> None:
        handler.begin(Content_Type="text/event-stream", Content_Encoding="gzip")
        handler.wfile.write(gzip.compress(b"\n" * 10_000_000))

    with serving(reply) as endpoint, pytest.raises(EndpointError, match="compressed"):
        fm.LanguageModelSession(model=model_at(endpoint.url)).respond_blocking("x")
    assert endpoint.asked[0][1]["Accept-Encoding"] == "identity"


def test_availability_is_bounded_and_true_during_a_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_model, "_AVAILABILITY_SECONDS", 0.3)
    with serving(flood("x\n"), silent(), silent(delta(content="Hel"))) as endpoint:
        model = model_at(endpoint.url)
        started = time.monotonic()
        for _ in range(2):
            assert model.is_available() == (False, fm.SystemLanguageModelUnavailableReason.MODEL_NOT_READY)
        assert time.monotonic() - started < 15
        stream = fm.LanguageModelSession(model=model).stream_blocking("x")
        next(stream)
        assert model.is_available() == (True, None)  # without a request
        del stream
