"""Condensed transcripts: whole exchanges, in order, within the limit; summaries never become instructions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tiny_bundles import write_tiny_bundle

import openafm as fm
from openafm.framework.session.condense import (
    first_and_last,
    rolling_window,
    rolling_window_blocking,
    summarized,
    summarized_blocking,
)
from openafm.framework.transcripts.transcript import (
    Entry,
    InstructionsEntry,
    PromptEntry,
    ResponseEntry,
    ToolCallsEntry,
    ToolOutputEntry,
    Transcript,
)
from openafm.tokenizer.conversation import AssistantTurn, Instructions, ToolCall, ToolTurn, UserTurn


def exchange(number: int, with_tool: bool = False) -> list[Entry]:
    prompt = PromptEntry(turn=UserTurn(text=f"the cat {number}"), options=fm.GenerationOptions())
    response = ResponseEntry(turn=AssistantTurn(text=f"the dog {number}"))
    if not with_tool:
        return [prompt, response]
    call = ToolCallsEntry(
        turn=AssistantTurn(tool_calls=(ToolCall(name="look", arguments={"at": number}),)), call_ids=(f"C{number}",)
    )
    return [prompt, call, ToolOutputEntry(turn=ToolTurn(name="look", text="a mat"), call_id=f"C{number}"), response]


def conversation(num_exchanges: int) -> Transcript:
    entries: list[Entry] = [InstructionsEntry(turn=Instructions(text="Be brief."))]
    for number in range(num_exchanges):
        entries += exchange(number, with_tool=number % 2 == 1)
    return Transcript(entries)


def count(model: fm.SystemLanguageModel, transcript: Transcript) -> int:
    return asyncio.run(model.token_count(transcript))


def test_first_and_last() -> None:
    transcript = conversation(4)
    assert list(first_and_last(transcript)) == [transcript[0], *transcript[-4:]]
    assert list(first_and_last(Transcript())) == []


def test_without_instructions_only_the_last_exchange_is_kept() -> None:
    transcript = Transcript([*exchange(0), *exchange(1)])
    assert list(first_and_last(transcript)) == transcript[2:]


@pytest.mark.parametrize("max_tokens", [30, 60, 100, 150, 1000])
def test_a_window_is_the_longest_that_fits(model: fm.SystemLanguageModel, max_tokens: int) -> None:
    transcript = conversation(6)
    window = asyncio.run(rolling_window(transcript, model, max_tokens))
    assert count(model, window) <= max_tokens
    assert window[0] == transcript[0]
    kept = window[1:]
    assert kept == (transcript[len(transcript) - len(kept) :] if kept else [])
    assert not kept or isinstance(kept[0], PromptEntry)
    if len(window) < len(transcript):
        longer_start = max(
            position
            for position, entry in enumerate(transcript[: len(transcript) - len(kept)])
            if isinstance(entry, PromptEntry)
        )
        assert count(model, Transcript([transcript[0], *transcript[longer_start:]])) > max_tokens
    else:
        assert max_tokens == 1000


def test_instructions_that_do_not_fit_are_an_error(model: fm.SystemLanguageModel) -> None:
    with pytest.raises(fm.ExceededContextWindowSizeError) as caught:
        asyncio.run(rolling_window(conversation(1), model, 2))
    assert caught.value.context_size == 2


def test_a_negative_number_is_refused(model: fm.SystemLanguageModel) -> None:
    with pytest.raises(ValueError, match="keep_last"):
        asyncio.run(summarized(conversation(1), model, keep_last=-1))


def test_a_session_continues_from_a_window(model: fm.SystemLanguageModel) -> None:
    window = asyncio.run(rolling_window(conversation(6), model, 150))
    before = count(model, window)
    session = fm.LanguageModelSession.from_transcript(window, model)
    session.respond_blocking("the mat", options=fm.GenerationOptions(maximum_response_tokens=4))
    assert session.usage.prompt_tokens == before + asyncio.run(model.token_count("the mat"))


def test_a_summary_is_a_response(model: fm.SystemLanguageModel) -> None:
    transcript = conversation(12)
    assert count(model, transcript) > model.context_size // 2
    short = asyncio.run(summarized(transcript, model, summary_tokens=24))
    instructions, asked, summary, *kept = short
    assert instructions == transcript[0]
    assert isinstance(asked, PromptEntry)
    assert isinstance(summary, ResponseEntry)
    assert summary.assets == (model.name,)
    assert kept == transcript[-4:]
    assert count(model, short) <= model.context_size // 2


@pytest.mark.slow
def test_conversations_longer_than_the_context_are_read_in_parts(tmp_path: Path) -> None:
    model = fm.SystemLanguageModel(bundle=write_tiny_bundle(tmp_path / "tiny", context_length=256).path)
    long = PromptEntry(turn=UserTurn(text="the cat and the dog, " * 60), options=fm.GenerationOptions())
    transcript = Transcript([*conversation(10), long, ResponseEntry(turn=AssistantTurn(text="no"))])
    assert count(model, transcript) > 2 * model.context_size
    short = asyncio.run(summarized(transcript, model, summary_tokens=8))
    assert [type(entry) for entry in short] == [InstructionsEntry, PromptEntry, ResponseEntry]  # the last one does not fit
    assert count(model, short) <= model.context_size // 2


def test_a_short_transcript_is_returned_unchanged(model: fm.SystemLanguageModel) -> None:
    transcript = conversation(1)
    assert list(asyncio.run(summarized(transcript, model))) == list(transcript)


def test_the_blocking_forms_work_inside_a_loop(model: fm.SystemLanguageModel) -> None:
    transcript = conversation(6)

    async def run() -> tuple[Transcript, Transcript]:
        window = rolling_window_blocking(transcript, model, 100)
        return window, summarized_blocking(transcript, model, 200, summary_tokens=8)

    window, summary = asyncio.run(run())
    assert list(window) == list(asyncio.run(rolling_window(transcript, model, 100)))
    assert summary.turns == asyncio.run(summarized(transcript, model, 200, summary_tokens=8)).turns
