"""How responses end: finish reasons, truncation messages, partial text, limits on tool calls and on the context window."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_overloads

import pytest
from scripted_models import ScriptedModel, calls
from tiny_bundles import write_tiny_bundle

import openafm as fm
from openafm.framework.backends.truncation import truncation_error
from openafm.runtime.decoding.matcher import IllegalTokenError
from openafm.tokenizer.conversation import AssistantTurn, Turn


@fm.generable
class Names:
    names: list[str]


@fm.tool
def look_up(word: str) -> str:
    """Look a word up."""
    return "a bird"


def test_the_finish_reason_is_the_limit_that_was_reached(tmp_path: Path) -> None:
    model = fm.SystemLanguageModel(bundle=write_tiny_bundle(tmp_path / "short", context_length=64).path)
    session = fm.LanguageModelSession(model=model)
    response = session.respond_full_blocking("the cat", options=fm.GenerationOptions(maximum_response_tokens=4))
    assert response.finish_reason is fm.FinishReason.LENGTH
    assert session.respond_full_blocking("x", bool).finish_reason is fm.FinishReason.STOP
    with pytest.raises(fm.ExceededContextWindowSizeError) as caught:
        fm.LanguageModelSession(model=model).respond_blocking("the cat")
    assert caught.value.context_size == 64
    assert len(caught.value.raw_content) > 8


def test_a_response_cut_off_names_the_path_and_the_limit(model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession(model=model)
    with pytest.raises(fm.DecodingFailureError, match=r"cut off at \$\.names.* by maximum_response_tokens=14; raise"):
        session.respond_blocking(
            "names", Names, options=fm.GenerationOptions(maximum_response_tokens=14, closes_at_limit=False)
        )


@pytest.mark.parametrize("max_tokens", [8, 14, 100, None])
def test_a_guided_response_is_closed_at_the_limit(model: fm.SystemLanguageModel, max_tokens: int | None) -> None:
    """Random weights extend strings and lists without end; the context window is a limit too."""
    session = fm.LanguageModelSession(model=model)
    options = fm.GenerationOptions(maximum_response_tokens=max_tokens)
    response = session.respond_full_blocking("names", generating=Names, options=options)
    assert response.finish_reason is fm.FinishReason.LENGTH
    assert all(isinstance(name, str) for name in response.content.names)
    assert max_tokens is None or response.usage.generated_tokens <= max_tokens + 1
    assert session.respond_full_blocking("x", bool).finish_reason is fm.FinishReason.STOP


def test_a_tool_call_is_not_closed_at_the_limit(model: fm.SystemLanguageModel) -> None:
    called = []

    @fm.tool
    def note(words: list[str]) -> str:
        """Take a note."""
        called.append(words)
        return "done"

    session = fm.LanguageModelSession(model=model, tools=[note])
    options = fm.GenerationOptions(maximum_response_tokens=60, tool_calling_mode=fm.ToolCallingMode.REQUIRED)
    with pytest.raises(fm.DecodingFailureError, match="a tool call was cut off"):
        session.respond_blocking("x", Names, options=options)
    assert called == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a":{"b c":["x","y', 'at $.a["b c"][1] by maximum_response_tokens=9; raise that limit, or bound the list'),
        ('{"a":[', "at $.a[0] by"),
        ('{"a":"x', "at $.a by maximum_response_tokens=9; raise that limit, or bound strings"),
        ("no JSON", "at $ by"),
    ],
)
def test_the_path_is_that_of_the_open_value(text: str, words: str) -> None:
    error = truncation_error(text, 9)
    assert words in str(error)
    assert error.raw_content == text


def test_a_cancelled_request_keeps_its_text() -> None:
    session = fm.LanguageModelSession(model=ScriptedModel("abcdef"))
    stream = session.stream_blocking("x")
    next(stream), next(stream)
    session.cancel()
    with pytest.raises(fm.GenerationCancelledError) as caught:
        next(stream)
    assert caught.value.raw_content == "ab"
    assert len(session.transcript) == 0


def test_a_request_that_takes_too_long_keeps_its_text() -> None:
    limits = fm.ToolLimits(request_seconds=0.1)
    session = fm.LanguageModelSession(model=ScriptedModel("a" * 1000, pause_s=0.01), tool_limits=limits)
    with pytest.raises(fm.RequestTimeoutError) as caught:
        asyncio.run(session.respond("x"))
    assert set(caught.value.raw_content) == {"a"}


def test_tool_calls_of_a_request_are_limited() -> None:
    two = calls(("look_up", {"word": "a"}), ("look_up", {"word": "b"}))
    model = ScriptedModel(two, two, "Birds.", two, two)
    session = fm.LanguageModelSession(model=model, tools=[look_up], tool_limits=fm.ToolLimits(calls=4))
    assert session.respond_blocking("x") == "Birds."
    assert [len(request.tools) for request in model.requests] == [1, 1, 0]
    assert [request.max_calls for request in model.requests][:2] == [4, 2]
    strict = fm.LanguageModelSession(model=model, tools=[look_up], tool_limits=fm.ToolLimits(calls=3))
    with pytest.raises(fm.DecodingFailureError, match=r"ToolLimits\.calls"):
        strict.respond_blocking("x")
    assert len(strict.transcript) == 1


def test_the_grammar_limits_the_calls_of_one_answer(model: fm.SystemLanguageModel) -> None:
    loaded = model.load()
    two = calls(("look_up", {"word": "a"}), ("look_up", {"word": "b"}))
    tokens = loaded.template.encode_turn(loaded.tokenizer, two).tokens
    tokens = tokens[len(loaded.template.generation_prompt(loaded.tokenizer)) :]
    for max_calls in (1, 2):
        matcher = loaded.grammar(None, (look_up.definition(),), must_call=True, max_calls=max_calls).matcher()
        with pytest.raises(IllegalTokenError) if max_calls == 1 else contextlib.nullcontext():
            matcher.accept(tokens)


class Small(ScriptedModel):
    context_size = 50


def test_models_without_a_tokenizer_estimate_tokens() -> None:
    model = Small("Fine.", "Fine.", "We greeted.")
    assert model.token_count_blocking("x" * 40) == 14
    assert model.token_count_blocking(instructions="x" * 40) == asyncio.run(model.token_count("x" * 40))
    assert model.token_count_blocking([look_up]) > 10
    with pytest.raises(ValueError, match="pass one of them"):
        model.token_count_blocking()
    session = fm.LanguageModelSession(model=model)
    with pytest.raises(fm.ExceededContextWindowSizeError) as caught:
        session.respond_blocking("word " * 100)
    assert (caught.value.token_count, caught.value.context_size) == (129, 50)
    for _ in range(2):
        session.respond_blocking("How are you?")
    assert len(fm.rolling_window_blocking(session.transcript, model, max_tokens=20)) == 2


def test_an_executor_with_an_async_answer_is_explained() -> None:
    class Wrong(ScriptedModel):
        def executor(self, turns: Sequence[Turn]) -> Any:
            executor: Any = super().executor(turns)

            async def answer(request: fm.AnswerRequest) -> fm.Answer:
                return fm.Answer(turn=AssistantTurn(text="x"), usage=fm.Usage())

            executor.answer = answer
            return executor

    with pytest.raises(TypeError, match="generator function"):
        fm.LanguageModelSession(model=Wrong("x")).respond_blocking("x")


def test_the_content_of_a_typed_stream_has_a_type() -> None:
    """A type checker reveals `snapshot.content` of `stream_response(..., generating=T)` as T."""
    for method in (fm.LanguageModelSession.stream_response, fm.LanguageModelSession.stream_blocking):
        returned = {
            overload.__annotations__.get("generating"): overload.__annotations__["return"]
            for overload in get_overloads(method)
        }
        assert re.search(r"\bT\b", returned["type[T]"])


def test_equal_snapshots_are_dropped() -> None:
    session = fm.LanguageModelSession(model=ScriptedModel('{"names":["a", "b"]}'))
    snapshots = [snapshot.content for snapshot in session.stream_blocking("x", Names)]
    assert all(one != other for one, other in itertools.pairwise(snapshots))
    assert [each.names for each in snapshots] == [None, [], [""], ["a"], ["a", ""], ["a", "b"]]
