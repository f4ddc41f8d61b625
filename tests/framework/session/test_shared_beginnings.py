"""Prefix sharing: sessions of one process prefill a common prefix once, and answers do not change."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tiny_bundles import computed_tokens, write_tiny_bundle

import openafm as fm
from openafm.runtime.engines.prefix_cache import LEAST_TOKENS, LIMIT, PrefixCache
from openafm.runtime.native.engine import NativeEngine

SHORT = fm.GenerationOptions(maximum_response_tokens=12)
INSTRUCTIONS = "You know the cat, the dog, the mat and the log. Say what they sat on, and be brief about it."


@fm.tool
def look_up(name: str, age: int) -> str:
    """Look a pet up."""
    return f"{name} is {age}"


@pytest.fixture
def model(engine_path: Path, monkeypatch: pytest.MonkeyPatch) -> fm.SystemLanguageModel:
    """Return a model with an empty prefix cache."""
    described = fm.SystemLanguageModel(bundle=engine_path)
    loaded = described.load()
    assert isinstance(loaded.engine, NativeEngine) == (engine_path.name == "native")
    monkeypatch.setattr(loaded, "prefixes", PrefixCache(loaded.engine, 2**28))
    return described


def num_opening(model: fm.SystemLanguageModel, *tools: fm.Tool) -> int:
    return model.token_count_blocking(fm.LanguageModelSession(INSTRUCTIONS, model, tools).transcript)


def said(model: fm.SystemLanguageModel, *prompts: str) -> tuple[list[str], list[fm.Usage]]:
    """Return the answers of one session to prompts, and their usage."""
    session = fm.LanguageModelSession(INSTRUCTIONS, model)
    pairs = [(session.respond_blocking(prompt, options=SHORT), session.usage) for prompt in prompts]
    return [answer for answer, _ in pairs], [usage for _, usage in pairs]


def test_a_second_session_prefills_no_instructions_and_no_tools(
    model: fm.SystemLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_calls = fm.GenerationOptions(maximum_response_tokens=12, tool_calling_mode="disallowed")
    first, second = (fm.LanguageModelSession(INSTRUCTIONS, model, [look_up]) for _ in range(2))
    first.respond_blocking("the cat", options=no_calls)
    assert first.usage.cached_tokens == 0
    counts = computed_tokens(model.load().engine, monkeypatch)
    second.respond_blocking("the dog", options=no_calls)
    shared = num_opening(model, look_up)
    assert shared > LEAST_TOKENS
    assert second.usage.cached_tokens == shared
    assert second.usage.prompt_tokens == shared + model.token_count_blocking("the dog")
    assert sum(counts) <= model.token_count_blocking("the dog") + second.usage.generated_tokens


def test_answers_are_the_same_without_the_cache(model: fm.SystemLanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = ("the cat", "the dog", "the mat")
    expected, _ = said(model, *prompts)
    for _ in range(3):
        answers, usages = said(model, *prompts)
        assert answers == expected
        assert usages[0].cached_tokens == num_opening(model)
    loaded = model.load()
    monkeypatch.setattr(loaded, "prefixes", PrefixCache(loaded.engine, 0))
    answers, usages = said(model, *prompts)
    assert answers == expected
    assert usages[0].cached_tokens == 0


def test_the_common_prefix_is_shared(model: fm.SystemLanguageModel) -> None:
    said(model, "the cat")
    other = fm.LanguageModelSession(INSTRUCTIONS + " And be kind.", model)
    expected = fm.LanguageModelSession(INSTRUCTIONS + " And be kind.", model)
    answer = other.respond_blocking("the cat", options=SHORT)
    assert LEAST_TOKENS <= other.usage.cached_tokens < num_opening(model)
    assert expected.respond_blocking("the cat", options=SHORT) == answer


def test_prewarming_shares_too(model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession(INSTRUCTIONS, model)
    session._responder.prewarm("the c", lambda: False)
    second = fm.LanguageModelSession(INSTRUCTIONS, model)
    second.respond_blocking("the cat", options=SHORT)
    assert second.usage.cached_tokens == num_opening(model)
    session.respond_blocking("the cat", options=SHORT)
    assert session.usage.cached_tokens > num_opening(model)


def test_a_continued_transcript_is_not_prefilled_again(model: fm.SystemLanguageModel) -> None:
    first = fm.LanguageModelSession(INSTRUCTIONS, model)
    for prompt in ("the cat", "the dog"):
        first.respond_blocking(prompt, options=SHORT)
    transcript = first.transcript.as_dict()
    so_far = model.token_count_blocking(first.transcript)
    expected = first.respond_blocking("the log", options=SHORT)
    for number in range(2):
        again = fm.LanguageModelSession.from_transcript(fm.Transcript.parse(transcript), model)
        assert again.respond_blocking("the log", options=SHORT) == expected
        if isinstance(model.load().engine, NativeEngine):  # forks share memory: every conversation is kept
            assert so_far - 3 <= again.usage.cached_tokens <= so_far
        else:  # forks copy: only continued conversations are kept
            assert again.usage.cached_tokens == (so_far if number else num_opening(model))


def test_a_failed_request_leaves_a_session_unchanged(model: fm.SystemLanguageModel) -> None:
    said(model, "the cat")
    session = fm.LanguageModelSession(INSTRUCTIONS, model)
    with pytest.raises(fm.ExceededContextWindowSizeError):
        session.respond_blocking("the cat " * 600)
    stream = session.stream_blocking("the cat", options=SHORT)
    next(stream)
    stream.close()
    assert session.respond_blocking("the cat", options=SHORT) == said(model, "the cat")[0][0]
    assert session.usage.cached_tokens == num_opening(model)


def test_what_was_never_prefilled_is_not_shared(model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession(INSTRUCTIONS, model)
    with pytest.raises(fm.ExceededContextWindowSizeError):
        session.respond_blocking("the cat " * 600)
    assert model.load().prefixes.num_bytes == 0


def test_concurrent_sessions_prefill_a_shared_prefix_once(
    model: fm.SystemLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = computed_tokens(model.load().engine, monkeypatch)
    usages: list[fm.Usage] = []
    start = threading.Barrier(6)

    def work() -> None:
        start.wait()
        usages.append(said(model, "the cat")[1][0])

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    opening, prompt = num_opening(model), model.token_count_blocking("the cat")
    assert sorted(usage.cached_tokens for usage in usages) == [0] + 5 * [opening]
    assert {usage.prompt_tokens for usage in usages} == {opening + prompt}
    assert sum(counts) == opening + 6 * prompt + sum(usage.generated_tokens for usage in usages)


def test_a_waiter_computes_the_prefix_if_its_owner_fails(
    model: fm.SystemLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = said(model, "the cat")[0]
    loaded = model.load()
    loaded.prefixes = PrefixCache(loaded.engine, 2**28)
    first, second = (fm.LanguageModelSession(INSTRUCTIONS, model) for _ in range(2))
    answers: list[str] = []
    waiting = threading.Thread(target=lambda: answers.append(second.respond_blocking("the cat", options=SHORT)))
    step = loaded.engine.step

    def failing(*arguments: Any, **keywords: Any) -> Any:
        monkeypatch.setattr(loaded.engine, "step", step)
        waiting.start()
        raise MemoryError("no memory for a step")

    monkeypatch.setattr(loaded.engine, "step", failing)
    with pytest.raises(MemoryError):
        first.respond_blocking("the cat", options=SHORT)
    waiting.join(60)
    assert answers == expected
    assert first.respond_blocking("the cat", options=SHORT) == expected[0]
    assert first.usage.cached_tokens == num_opening(model)


def test_waiting_for_a_prefix_can_be_cancelled(model: fm.SystemLanguageModel) -> None:
    loaded = model.load()
    opening = fm.LanguageModelSession(INSTRUCTIONS, model)
    tokens = loaded.template.encode(loaded.tokenizer, opening.transcript.turns).tokens
    errors: list[type] = []
    session = fm.LanguageModelSession(INSTRUCTIONS, model)

    def work() -> None:
        try:
            session.respond_blocking("the cat", options=SHORT)
        except fm.GenerationCancelledError as error:
            errors.append(type(error))

    with loaded.prefixes.alone(tokens, lambda: False):
        waiting = threading.Thread(target=work)
        waiting.start()
        while not session.is_responding:
            pass
        session.cancel()
        waiting.join(60)
    assert errors == [fm.GenerationCancelledError]
    assert session.respond_blocking("the cat", options=SHORT) == said(model, "the cat")[0][0]


def test_prefixes_are_shared_from_the_first_token(model: fm.SystemLanguageModel) -> None:
    expected = said(model, "the cat")[0][0]
    loaded = model.load()
    loaded.prefixes = PrefixCache(loaded.engine, 2**28)
    stream = fm.LanguageModelSession(INSTRUCTIONS, model).stream_blocking("the cat", options=SHORT)
    snapshots = [next(stream), next(stream)]
    answers, usages = said(model, "the cat")
    assert usages[0].cached_tokens == num_opening(model)
    assert [*snapshots, *stream][-1] == answers[0] == expected


def test_sessions_in_many_threads_answer_as_a_single_one(model: fm.SystemLanguageModel) -> None:
    expected = [said(model, f"the cat {number}", "the dog")[0] for number in range(4)]
    loaded = model.load()
    loaded.prefixes = PrefixCache(loaded.engine, 2**28)
    answers: dict[int, list[str]] = {}

    def work(number: int) -> None:
        answers[number] = said(model, f"the cat {number % 4}", "the dog")[0]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [answers[number] for number in range(8)] == expected * 2


def test_memory_stays_within_the_limit(model: fm.SystemLanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    said(model, "the cat")
    loaded = model.load()
    limit = 6 * loaded.prefixes.num_bytes
    monkeypatch.setattr(loaded, "prefixes", PrefixCache(loaded.engine, limit))
    for number in range(6):
        session = fm.LanguageModelSession(f"{number}: {INSTRUCTIONS}", model)
        for prompt in ("the cat", "the dog"):
            session.respond_blocking(prompt, options=SHORT)
            assert loaded.prefixes.num_bytes <= limit
    assert loaded.prefixes.num_bytes > 0


def test_the_limit_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_bundle(tmp_path / "model", seed=9).path
    monkeypatch.setenv(LIMIT, "a lot")
    with pytest.raises(fm.AssetsUnavailableError, match=f"{LIMIT} is 'a lot'"):
        fm.SystemLanguageModel(bundle=path).load()
    monkeypatch.setenv(LIMIT, "0")
    model = fm.SystemLanguageModel(bundle=path)
    assert [said(model, "the cat")[1][0].cached_tokens for _ in range(2)] == [0, 0]
