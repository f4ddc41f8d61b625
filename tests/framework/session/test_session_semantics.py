"""Sessions: order of requests, prewarming, restoring, guardrails, capabilities."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from scripted_models import ScriptedModel
from tiny_bundles import SlowEngine, write_tiny_bundle

import openafm as fm
from openafm.framework.transcripts.transcript import InstructionsEntry, PromptEntry, ResponseEntry
from openafm.runtime.decoding.draft_length import DraftLengthConfig
from openafm.runtime.decoding.speculation import Drafter
from openafm.safety.guardrail import Allowed, Refused, Verdict, Violation
from openafm.tokenizer.conversation import AssistantTurn, Instructions, UserTurn

SHORT = fm.GenerationOptions(maximum_response_tokens=12)


def wait_until_idle(session: fm.LanguageModelSession) -> None:
    last = session._queue._last
    assert last is not None
    last.finished.result(60)


def test_waiting_requests_run_in_order() -> None:
    async def run() -> None:
        session = fm.LanguageModelSession(model=ScriptedModel("a" * 9, "b" * 9, "c" * 9, pause_s=0.002), when_busy="wait")
        answers = await asyncio.gather(*(session.respond(prompt) for prompt in "123"))
        assert answers == ["a" * 9, "b" * 9, "c" * 9]
        prompts = [entry.turn.text for entry in session.transcript if isinstance(entry, PromptEntry)]
        assert prompts == ["1", "2", "3"]

    asyncio.run(run())


def test_cancelling_a_waiting_request_keeps_the_next_one() -> None:
    async def run() -> None:
        session = fm.LanguageModelSession(model=ScriptedModel("a" * 30, "c", pause_s=0.005), when_busy="wait")
        first, second, third = (asyncio.create_task(session.respond(prompt)) for prompt in "123")
        await asyncio.sleep(0.03)
        second.cancel()
        assert await first == "a" * 30
        assert await third == "c"
        with pytest.raises(asyncio.CancelledError):
            await second

    asyncio.run(run())


def test_threads_wait_too() -> None:
    session = fm.LanguageModelSession(model=ScriptedModel(*"abcdefgh", pause_s=0.002), when_busy="wait")
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(session.respond_blocking("x"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(answers) == list("abcdefgh")


def test_busy_sessions_refuse_by_default() -> None:
    async def run() -> None:
        session = fm.LanguageModelSession(model=ScriptedModel("a" * 30, pause_s=0.005))
        first = asyncio.create_task(session.respond("1"))
        await asyncio.sleep(0.02)
        with pytest.raises(fm.ConcurrentRequestsError):
            await session.respond("2")
        assert await first == "a" * 30

    asyncio.run(run())
    with pytest.raises(ValueError, match="when_busy"):
        fm.LanguageModelSession(model=ScriptedModel(), when_busy="perhaps")  # type: ignore[arg-type]


def test_prewarming_fills_the_cache_only(model: fm.SystemLanguageModel) -> None:
    plain = fm.LanguageModelSession("Be brief.", model)
    expected = plain.respond_blocking("the cat sat on the mat", options=SHORT)
    assert plain.usage.cached_tokens == 0
    session = fm.LanguageModelSession("Be brief.", model)
    session.prewarm("the cat sat")
    assert not session.is_responding
    wait_until_idle(session)
    assert len(session.transcript) == 1
    assert session.respond_blocking("the cat sat on the mat", options=SHORT) == expected
    instructions = asyncio.run(model.token_count(instructions="Be brief."))
    assert session.usage.cached_tokens > instructions
    assert session.usage.prompt_tokens == plain.usage.prompt_tokens


def test_an_unused_prewarmed_prefix_is_rolled_back(model: fm.SystemLanguageModel) -> None:
    expected = fm.LanguageModelSession("Be brief.", model).respond_blocking("a dog", options=SHORT)
    session = fm.LanguageModelSession("Be brief.", model)
    for prefix in ("the cat", "no dog", ""):
        session.prewarm(prefix)
        wait_until_idle(session)
    session.prewarm("the log")  # the request waits for it
    assert session.respond_blocking("a dog", options=SHORT) == expected
    with pytest.raises(fm.ExceededContextWindowSizeError):
        session.respond_blocking("the cat " * 600)
    session.prewarm("the cat")
    wait_until_idle(session)
    with pytest.raises(fm.ExceededContextWindowSizeError):
        session.respond_blocking("the cat " * 600)
    again = session.respond_blocking("a dog", options=SHORT)
    fresh = fm.LanguageModelSession.from_transcript(fm.Transcript(session.transcript[:3]), model)
    assert again == fresh.respond_blocking("a dog", options=SHORT)


def test_prewarming_never_blocks_the_loop() -> None:
    async def run() -> None:
        session = fm.LanguageModelSession(model=ScriptedModel("a" * 40, "b", pause_s=0.005), when_busy="wait")
        first = asyncio.create_task(session.respond("1"))
        await asyncio.sleep(0.02)
        session.prewarm()
        assert not first.done()
        assert await session.respond("2") == "b"
        assert first.done()

    asyncio.run(run())


def test_prewarming_raises_immediately_without_a_model(tmp_path: Path) -> None:
    session = fm.LanguageModelSession(model=fm.SystemLanguageModel(bundle=f"{tmp_path}/none"))
    with pytest.raises(fm.AssetsUnavailableError):
        session.prewarm()


def test_a_restored_session_continues_identically(model: fm.SystemLanguageModel) -> None:
    first = fm.LanguageModelSession("Be brief.", model)
    first.respond_blocking("the cat", options=SHORT)
    saved = asyncio.run(first.transcript.to_dict())
    transcript = asyncio.run(fm.Transcript.from_dict(saved))
    restored = fm.LanguageModelSession.from_transcript(transcript, model)
    expected = first.respond_blocking("the dog", options=SHORT)
    assert restored.respond_blocking("the dog", options=SHORT) == expected
    assert restored.usage.prompt_tokens == first.usage.prompt_tokens
    assert restored.transcript is transcript
    assert len(transcript) == 5
    with pytest.raises(TypeError, match="Transcript"):
        fm.LanguageModelSession.from_transcript(saved, model)  # type: ignore[arg-type]


def test_two_sessions_on_one_transcript_each_see_all_of_it() -> None:
    model = ScriptedModel("one", "two")
    first = fm.LanguageModelSession("Help.", model)
    second = fm.LanguageModelSession.from_transcript(first.transcript, model)
    first.respond_blocking("1")
    second.respond_blocking("2")
    assert [turn.text for turn in model.openings[1]] == ["Help.", "1", "one"]
    assert len(first.transcript) == 5


def test_a_transcript_that_changes_during_a_request_is_an_error() -> None:
    session = fm.LanguageModelSession("Help.", ScriptedModel("abc", "d"))
    stream = session.stream_blocking("x")
    next(stream)
    session.transcript._append(ResponseEntry(turn=AssistantTurn(text="interfering")))
    with pytest.raises(fm.TranscriptMutationError):
        list(stream)
    assert len(session.transcript) == 2


def test_text_snapshots_are_strings_and_snapshots(model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession(model=ScriptedModel("hello"))
    snapshots = list(session.stream_blocking("x"))
    assert snapshots == ["h", "he", "hel", "hell", "hello"]
    assert all(isinstance(snapshot, str) and isinstance(snapshot, fm.Snapshot) for snapshot in snapshots)
    assert snapshots[1].content == "he"
    assert not snapshots[1].raw_content.is_complete

    async def run() -> list[str]:
        session = fm.LanguageModelSession(model=ScriptedModel("hi"))
        return [snapshot async for snapshot in session.stream_response("x", fm.GenerationOptions(temperature=0.5))]

    assert asyncio.run(run()) == ["h", "hi"]


def test_a_response_has_everything() -> None:
    session = fm.LanguageModelSession("Help.", ScriptedModel("[1,2]", "3"))
    response = asyncio.run(session.respond_full("x", list[int]))
    assert response.content == [1, 2]
    assert response.raw_content.to_json() == "[1,2]"
    assert [type(entry) for entry in response.transcript_entries] == [PromptEntry, ResponseEntry]
    assert response.usage.generated_tokens == 5
    assert session.respond_full_blocking("x", int).content == 3
    assert session.total_usage.generated_tokens == 6


def test_missing_capabilities_are_refused_before_generation(tmp_path: Path) -> None:
    model = ScriptedModel("x")
    model.capabilities = frozenset()
    with pytest.raises(fm.UnsupportedCapabilityError, match="guided generation"):
        fm.LanguageModelSession(model=model).respond_blocking("x", int)
    image = f"{tmp_path}/image.png"
    with open(image, "wb") as file:  # noqa: PTH123
        file.write(b"\x89PNG")
    session = fm.LanguageModelSession(model=model)
    with pytest.raises(fm.UnsupportedCapabilityError, match="vision"):
        session.respond_blocking(["what is this?", fm.ImageAttachment(image)])
    with pytest.raises(fm.UnsupportedAttachmentError, match="vision"):
        session.respond_blocking(fm.Prompt("what is this?", fm.Image(image)))
    assert model.requests == []
    assert session.respond_blocking(["two", "parts"]) == "x"
    assert model.requests[0].turns == (UserTurn(text="two\nparts"),)


class Guard:
    """Block text with `bad`, refuse text with `no`."""

    def check_input(self, text: str) -> Verdict:
        if "no" in text:
            return Refused(reason="not that")
        return self.check_output(text)

    def check_output(self, window: str) -> Verdict:
        return Violation(category="badness", reason="it says bad") if "bad" in window else Allowed()


def test_guardrails_block_prompts_and_responses() -> None:
    model = ScriptedModel("fine", "this is ba" + "d" + "." * 100, "fine", guard=Guard())
    session = fm.LanguageModelSession("Help.", model)
    with pytest.raises(fm.GuardrailViolationError, match=r"prompt .*badness"):
        session.respond_blocking("bad thing")
    assert model.requests == []
    assert session.respond_blocking("good") == "fine"
    with pytest.raises(fm.GuardrailViolationError, match=r"response .*badness"):
        session.respond_blocking("good")
    assert len(session.transcript) == 3
    model.script = [AssistantTurn(text="ok")]
    assert session.respond_blocking("good") == "ok"


def test_the_model_explains_a_refusal() -> None:
    model = ScriptedModel("I will not, for it is late.", guard=Guard())
    session = fm.LanguageModelSession("Help.", model)
    with pytest.raises(fm.RefusalError, match="not that") as caught:
        session.respond_blocking("no")
    assert model.requests == []
    assert asyncio.run(caught.value.explanation()) == "I will not, for it is late."
    assert [turn.text for turn in model.openings[-1]] == ["Help.", "no"]
    assert len(session.transcript) == 1
    model.script = [AssistantTurn(text="fine"), AssistantTurn(text="It is still late.")]
    assert session.respond_blocking("good") == "fine"
    assert caught.value.explanation_blocking() == "It is still late."
    assert [turn.text for turn in model.openings[-1]] == ["Help.", "no"]  # the transcript up to the refusal


def test_permissive_guardrails_apply_to_plain_text_only(model: fm.SystemLanguageModel) -> None:
    permissive = fm.SystemLanguageModel(
        guardrails=fm.SystemLanguageModelGuardrails.PERMISSIVE_CONTENT_TRANSFORMATIONS, bundle=model.described().path
    )
    assert permissive.guardrail(is_guided=False) is None
    assert permissive.guardrail(is_guided=True) is not None
    assert model.guardrail(is_guided=False) is not None
    own = Guard()
    assert fm.SystemLanguageModel(guardrails=own, bundle=model.described().path).guardrail(is_guided=True) is own


def test_wrong_arguments_raise_immediately(model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession(model=model)
    wrong: list[tuple[type[Exception], str, Any]] = [
        (TypeError, "'model' must", lambda: fm.LanguageModelSession("x", "nano")),
        (TypeError, "must be text", lambda: fm.LanguageModelSession(["x"])),
        (TypeError, "tools must be a list", lambda: fm.LanguageModelSession(tools=fm.tool(lambda: 1))),
        (TypeError, "'options' must", lambda: session.respond_blocking("x", options={"temperature": 1})),
        (TypeError, "json_schema", lambda: session.respond_blocking("x", schema={"type": "string"})),
        (TypeError, "'guardrails' must", lambda: fm.SystemLanguageModel(guardrails="strict")),
        (
            ValueError,
            "no tools",
            lambda: session.respond_blocking("x", options=fm.GenerationOptions(tool_calling_mode="required")),
        ),
    ]
    for error, text, call in wrong:
        with pytest.raises(error, match=text):
            call()


def test_a_missing_draft_or_adapter_makes_the_model_unavailable(model: fm.SystemLanguageModel) -> None:
    reason = fm.SystemLanguageModelUnavailableReason.MODEL_NOT_INSTALLED
    bundle = model.described().path
    assert fm.SystemLanguageModel(bundle=bundle, draft="none").is_available() == (False, reason)
    assert fm.SystemLanguageModel(bundle=bundle, adapter="none").is_available() == (False, reason)


def test_locales() -> None:
    model = fm.SystemLanguageModel()
    supported = ["en_GB", "de-CH", "zh_TW", "zh-Hant-HK", "no", "nb_NO", "C", "pt_BR.UTF-8", None]
    assert all(model.supports_locale(locale) for locale in supported)
    assert not any(model.supports_locale(locale) for locale in ("ar", "he_IL", "xx"))


def test_a_use_case_adds_instructions(model: fm.SystemLanguageModel) -> None:
    tagging = fm.SystemLanguageModel(fm.SystemLanguageModelUseCase.CONTENT_TAGGING, bundle=model.described().path)
    counts = [asyncio.run(each.token_count(instructions="Be brief.")) for each in (model, tagging)]
    assert counts[1] > counts[0]
    session = fm.LanguageModelSession("Be brief.", tagging)
    session.respond_blocking("the cat", options=SHORT)
    assert session.usage.prompt_tokens == counts[1] + asyncio.run(model.token_count("the cat"))
    assert session.transcript[0] == InstructionsEntry(turn=Instructions(text="Be brief."), id=session.transcript[0].id)


def test_cancelling_a_slow_stream_frees_the_session(slow_model: fm.SystemLanguageModel) -> None:
    async def run() -> None:
        session = fm.LanguageModelSession(model=slow_model)
        stream = session.stream_response("the cat")
        await anext(stream)
        await stream.aclose()
        assert slow_model.load().engine.num_steps < 100  # type: ignore[attr-defined]
        assert not session.is_responding
        assert len(session.transcript) == 0
        with pytest.raises(fm.GenerationCancelledError):
            await stream.collect()

    assert isinstance(slow_model.load().engine, SlowEngine)
    asyncio.run(run())


@pytest.mark.long
def test_a_draft_model_changes_steps_but_not_answers(model: fm.SystemLanguageModel, tmp_path: Path) -> None:
    other = write_tiny_bundle(tmp_path / "draft", seed=1)
    drafts = [model.described().path, other.path]
    drafted = [fm.SystemLanguageModel(bundle=model.described().path, draft=draft) for draft in drafts]

    def answers(each: fm.SystemLanguageModel) -> tuple[list[object], int]:
        session = fm.LanguageModelSession("Be brief.", each)
        seeded = fm.GenerationOptions(fm.SamplingMode.random(seed=3), maximum_response_tokens=40)
        given: list[object] = [session.respond_blocking("the cat", options=options) for options in (seeded, SHORT)]
        given.append(session.respond_blocking("numbers", schema=fm.GenerationSchema(list[bool]), options=seeded))
        return given, session.total_usage.model_steps

    # The adaptive draft length would be 0 for the first hundreds of tokens.
    for loaded in (kept := [each.load() for each in drafted]):
        assert loaded.drafter is not None
        loaded.drafter = Drafter(loaded.drafter.engine, length=DraftLengthConfig(cost=0.2))
    expected, steps = answers(model)
    same, fewer = answers(drafted[0])
    assert same == expected == answers(drafted[1])[0]
    assert fewer < steps
    assert kept


def test_a_draft_model_with_another_tokenizer_is_refused(model: fm.SystemLanguageModel) -> None:
    mismatched = fm.SystemLanguageModel(bundle=model.described().path, draft="nano")
    with pytest.raises(fm.AssetsUnavailableError, match="tokenizer"):
        fm.LanguageModelSession(model=mismatched).respond_blocking("x")
