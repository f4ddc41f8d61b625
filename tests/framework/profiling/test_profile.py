"""Profiles of sessions: what is recorded, from where, and what is not."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from endpoints import model_at, says, serving
from scripted_models import ScriptedModel, calls

import openafm as fm
from openafm.framework.profiling.recorder import NOT_RECORDED, begin_request
from openafm.framework.profiling.spans import Flag, SpanKind

SECRET = "canary-4711"


@fm.tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@fm.tool
def failing(city: str) -> str:
    """A tool that fails."""
    raise RuntimeError(SECRET)


def kinds(span: fm.Span) -> list[str]:
    return [f"{child.kind} {child.name}" for child in span.children]


def test_a_request_is_recorded_with_its_parts(model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession("Be brief.", model)
    options = fm.GenerationOptions(maximum_response_tokens=6, temperature=0.5)
    with fm.profile() as profile:
        session.respond_blocking("one", options=options)
        session.respond_blocking("two", options=options)
    (recorded,) = profile.trace.sessions
    first, second = recorded.children
    assert kinds(first) == ["check prompt", f"load {model.name}", f"inference {model.name}"]
    assert kinds(second) == ["check prompt", f"inference {model.name}"]  # the model is loaded once
    inference = second.children[1]
    assert kinds(inference) == ["grammar compile", "prefill prompt", "decode answer"]
    usage = session.usage
    assert inference.attributes["generated_tokens"] == usage.generated_tokens
    assert inference.attributes["cached_tokens"] == usage.cached_tokens > 0
    assert inference.attributes["kv_bytes"] > 0
    assert inference.attributes["temperature"] == 0.5
    for span in recorded.walk():  # parts lie within the span around them
        assert all(span.start <= child.start <= child.stop <= span.stop for child in span.children)
    prefill, decode = inference.children[1:]
    assert prefill.stop == pytest.approx(decode.start, abs=1e-3)
    assert prefill.seconds == pytest.approx(usage.ttft_ms / 1000, abs=0.05)
    assert profile.trace.totals()["generated_tokens"] == session.total_usage.generated_tokens


def test_nothing_is_recorded_without_a_profile(model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession(model=model)
    with fm.profile() as profile:
        pass
    session.respond_blocking("one", options=fm.GenerationOptions(maximum_response_tokens=2))
    assert profile.trace.sessions == ()
    assert begin_request(None, "respond") is NOT_RECORDED
    assert NOT_RECORDED.child(SpanKind.TOOL, "tool") is NOT_RECORDED
    tokens = [1, 2]
    assert NOT_RECORDED.tokens(tokens) is tokens  # no generator around the tokens


def test_tools_rounds_and_errors(recwarn: pytest.WarningsRecorder) -> None:
    script = ScriptedModel(calls(("weather", {"city": "Rome"}), ("weather", {"city": "Oslo"})), "fine")
    with fm.profile() as profile:
        fm.LanguageModelSession(model=script, tools=[weather]).respond_blocking("How is it?")
        script.script = [calls(("failing", {"city": "Rome"}))]
        with pytest.raises(fm.ToolCallError):
            fm.LanguageModelSession(model=script, tools=[failing]).respond_blocking(SECRET)
    good, bad = (session.children[0] for session in profile.trace.sessions)
    assert [child.kind for child in good.children] == ["check", "load", "inference", "tool", "tool", "inference"]
    assert good.children[2].attributes["finish_reason"] == "tool_calls"
    tool = bad.children[-1]
    assert (tool.error, bad.error) == ("RuntimeError", "ToolCallError")
    assert tool.flags == (Flag.ERROR,)
    assert profile.trace.totals()["errors"] == 1
    assert SECRET not in profile.to_json() + str(profile)
    assert not recwarn.list


def test_content_is_recorded_only_when_asked(tmp_path: Path) -> None:
    def ask() -> None:
        script = ScriptedModel(calls(("weather", {"city": SECRET})), "fine")
        fm.LanguageModelSession(model=script, tools=[weather]).respond_blocking(f"prompt {SECRET}")

    with pytest.warns(fm.ContentWarning, match="contain"):
        full = fm.profile(content=True)
    with full, fm.profile() as plain:
        ask()
    plain.save_page(tmp_path / "page.html")
    plain.save_chrome_trace(tmp_path / "chrome.json")
    for text in (plain.to_json(), str(plain), *(path.read_text() for path in tmp_path.iterdir())):
        assert SECRET not in text
    request = full.trace.sessions[0].children[0]
    assert request.content["prompt"] == f"prompt {SECRET}"
    assert request.children[3].content == {"arguments": f'{{"city":"{SECRET}"}}', "output": f"sunny in {SECRET}"}
    assert SECRET in str(full)
    assert full.trace.has_content
    assert not plain.trace.has_content


def test_threads_and_event_loops_are_recorded_alike() -> None:
    async def ask() -> None:
        async for _ in fm.LanguageModelSession(model=ScriptedModel("hello")).stream_response("streamed"):
            pass

    with fm.profile() as profile:
        threads = [threading.Thread(target=asyncio.run, args=(ask(),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        asyncio.run(ask())
    assert len(profile.trace.sessions) == 5
    assert {len(session.children) for session in profile.trace.sessions} == {1}


def test_an_early_end_is_recorded_as_cancelled() -> None:
    session = fm.LanguageModelSession(model=ScriptedModel("hello world"))
    with fm.profile() as profile:
        snapshots = session.stream_blocking("one")
        next(snapshots)
        running = profile.trace.sessions[0].children[0]
        assert running.error is None  # the trace can be read while a request runs
        snapshots.close()
    assert profile.trace.sessions[0].children[0].error == "Cancelled"


def test_prewarming_is_recorded(model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession("Be brief.", model)
    with fm.profile() as profile:
        session.prewarm("Dinner")
        session.respond_blocking("Dinner at 7", options=fm.GenerationOptions(maximum_response_tokens=2))
    assert [span.name for span in profile.trace.sessions[0].children] == ["prewarm", "respond"]


def test_profiles_that_overlap_record_the_same_requests() -> None:
    session = fm.LanguageModelSession(model=ScriptedModel("a", "b", "c"))
    with fm.profile() as outer:
        session.respond_blocking("1")
        with fm.profile() as inner:
            session.respond_blocking("2")
        session.respond_blocking("3")
    assert [len(each.trace.spans(SpanKind.REQUEST)) for each in (outer, inner)] == [3, 1]


def test_an_endpoint_is_recorded(no_leaks: None) -> None:
    with serving(says("hello", " there")) as endpoint, fm.profile() as profile:
        fm.LanguageModelSession(model=model_at(endpoint.url)).respond_blocking("hi")
    (inference,) = profile.trace.spans(SpanKind.INFERENCE)
    assert kinds(inference) == ["prefill prompt", "decode answer"]


def test_flags() -> None:
    span = fm.Span(
        kind=SpanKind.INFERENCE, name="m", start=0, stop=6, attributes={"prompt_tokens": 2000, "generated_tokens": 60}
    )
    assert span.flags == (Flag.LONG, Flag.MANY_TOKENS)
    assert fm.Span(kind=SpanKind.SESSION, name="s", start=0, stop=60).flags == ()


def test_the_chrome_trace_has_disjoint_slices_in_each_row(tmp_path: Path) -> None:
    pair = calls(("weather", {"city": "Rome"}), ("weather", {"city": "Oslo"}))
    with fm.profile() as profile:
        fm.LanguageModelSession(model=ScriptedModel(pair, "fine"), tools=[weather]).respond_blocking("How is it?")
    profile.save_chrome_trace(tmp_path / "trace.json")
    events: list[dict[str, Any]] = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["name"] for event in slices} >= {"respond", "weather", "scripted"}
    for tid in {event["tid"] for event in slices}:
        row = sorted((event["ts"], event["ts"] + event["dur"]) for event in slices if event["tid"] == tid)
        assert all(end <= start + 1 for (_, end), (start, _) in itertools.pairwise(row))


def test_spans_reach_the_users_exporter_under_the_conventions() -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    script = ScriptedModel(calls(("failing", {"city": "Rome"})))
    with fm.profile() as profile, pytest.raises(fm.ToolCallError):
        fm.LanguageModelSession(model=script, tools=[failing]).respond_blocking(SECRET)
    assert exporter.get_finished_spans() == ()  # nothing is exported unasked
    profile.export(provider)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    chat, tool, request = spans["chat scripted"], spans["execute_tool failing"], spans["openafm.request"]
    assert chat.attributes is not None
    assert tool.attributes is not None
    assert chat.parent is not None
    assert chat.parent.span_id == request.context.span_id
    assert dict(chat.attributes) | {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "scripted",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.response.finish_reasons": ("tool_calls",),
    } == dict(chat.attributes)
    assert tool.attributes["error.type"] == "RuntimeError"
    assert chat.start_time is not None
    assert abs(chat.start_time / 1e9 - profile.trace.started_at) < 60
    assert all(SECRET not in span.to_json() for span in spans.values())
