"""Sessions: typed answers, a cache of exactly the transcript, and atomic requests."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import threading
import weakref
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_bundles import SlowEngine, write_tiny_bundle

import openafm as fm
from openafm.runtime.decoding.generation import generate
from openafm.runtime.decoding.sampling import GreedyConfig
from openafm.runtime.engines.snapshot import read_snapshot
from openafm.safety.blocklist import Blocklist
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import opened

SHORT = fm.GenerationOptions(maximum_response_tokens=12)


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
    kinds: list[Kind] = fm.guide(count=2)
    toy: Toy | None = None


@fm.generable
class Long:
    numbers: list[int] = fm.guide(count=30, element=fm.GenerationGuide.range((10, 99)))


def nested(depth: int) -> dict[str, Any]:
    """Return a JSON Schema of nested arrays."""
    schema: dict[str, Any] = {"type": "boolean"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def random_options(seed: int | None, **limits: Any) -> fm.GenerationOptions:
    return fm.GenerationOptions(fm.SamplingMode.random(seed=seed, **limits), maximum_response_tokens=60)


def test_text_and_transcript(model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession("Be brief.", model)
    first = asyncio.run(session.respond("the cat", options=SHORT))
    second = asyncio.run(session.respond("the dog", options=SHORT))
    assert isinstance(first, str)
    texts = [entry.turn.text for entry in session.transcript]
    assert texts == ["Be brief.", "the cat", first, "the dog", second]
    assert not session.is_responding
    assert session.usage.generated_tokens == 12


def test_instance_content_and_partial_type(model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession(model=model)
    pet = session.respond_blocking("a pet", Pet, options=random_options(1))
    assert type(pet) is Pet
    assert 1 <= pet.age <= 30
    assert len(pet.kinds) == 2
    assert isinstance(pet.kinds[0], Kind)
    content = session.respond_blocking("a pet", schema=fm.GenerationSchema(Pet), options=random_options(2))
    assert isinstance(content, fm.GeneratedContent)
    assert content.value(Pet).name
    schema = {"type": "object", "properties": {"b": {"type": "boolean"}, "a": {"enum": [1]}}, "x-order": ["a", "b"]}
    as_json = session.respond_blocking("x", json_schema=schema | {"required": ["a", "b"], "additionalProperties": False})
    assert list(as_json.value()) == ["a", "b"]
    assert session.respond_blocking("n", list[bool], options=random_options(3)) is not None


def test_options_reach_guided_generation_and_seeds_are_honored(model: fm.SystemLanguageModel) -> None:
    def pet(options: fm.GenerationOptions) -> Pet:
        return fm.LanguageModelSession(model=model).respond_blocking("a pet", Pet, options=options)

    assert pet(random_options(7)) == pet(random_options(7))
    assert len({repr(pet(random_options(seed))) for seed in range(6)}) > 1
    greedy = fm.GenerationOptions(fm.SamplingMode.greedy(), maximum_response_tokens=60)
    assert pet(random_options(1, top=1)) == pet(greedy)
    assert pet(random_options(2, probability_threshold=0.0)) == pet(greedy)
    assert pet(fm.GenerationOptions(temperature=0, maximum_response_tokens=60)) == pet(greedy)
    assert len({repr(pet(fm.GenerationOptions(temperature=2, maximum_response_tokens=60))) for _ in range(6)}) > 1


def test_a_second_turn_prefills_new_tokens_only(model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession("Be brief.", model)
    session.respond_blocking("a pet", Pet, options=random_options(1))
    first = session.usage
    assert first.cached_tokens == 0
    so_far = asyncio.run(model.token_count(session.transcript))
    session.respond_blocking("the dog", options=SHORT)
    new = asyncio.run(model.token_count("the dog"))
    assert first.prompt_tokens < session.usage.cached_tokens <= so_far
    assert session.usage.prompt_tokens == so_far + new
    so_far = asyncio.run(model.token_count(session.transcript))
    session.respond_blocking("the mat", options=SHORT)
    assert session.usage.prompt_tokens == so_far + asyncio.run(model.token_count("the mat"))


@pytest.mark.parametrize("cut_off", [True, False])
def test_the_cache_holds_exactly_the_transcript(model: fm.SystemLanguageModel, cut_off: bool) -> None:
    session = fm.LanguageModelSession("Be brief.", model)
    if cut_off:
        session.respond_blocking("the cat", options=SHORT)
    else:
        session.respond_blocking("a pet", Pet)
    loaded = model.load()
    prefix = loaded.template.encode(loaded.tokenizer, opened(session.transcript.turns)).tokens
    answer = session.respond_blocking("the dog", options=SHORT)
    question = loaded.template.encode_turn(loaded.tokenizer, session.transcript[-2].turn).tokens
    prompt = [*prefix, *question, *loaded.template.generation_prompt(loaded.tokenizer)]
    from_scratch = generate(
        loaded.engine,
        loaded.engine.new_sequence(),
        prompt,
        sampling=GreedyConfig(),
        stop_tokens=loaded.template.stop_tokens(loaded.tokenizer),
        max_tokens=12,
        grammar=loaded.grammar(None),
    )
    assert loaded.tokenizer.decode([event.token for event in from_scratch]) == answer


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(st.tuples(st.sampled_from([None, Pet, str]), st.integers(0, 2**31), st.integers(1, 25)), max_size=3))
def test_the_cache_holds_the_transcript_for_any_sampling(
    model: fm.SystemLanguageModel, turns: list[tuple[Any, int, int]]
) -> None:
    session = fm.LanguageModelSession("Be brief.", model)
    for generating, seed, limit in turns:
        limit = 80 if generating is Pet else limit
        options = fm.GenerationOptions(fm.SamplingMode.random(seed=seed), maximum_response_tokens=limit)
        with contextlib.suppress(fm.DecodingFailureError):
            session.respond_blocking("the cat", generating, options=options)
        assert_cache_is_transcript(session, model)


def assert_cache_is_transcript(session: fm.LanguageModelSession, model: fm.SystemLanguageModel) -> None:
    """Check that cached and pending tokens are those of the transcript, and that the keys and values belong to them."""
    cache, loaded = session._responder._executor, model.load()
    assert cache is not None
    tokens = loaded.template.encode(loaded.tokenizer, opened(session.transcript.turns)).tokens
    assert asyncio.run(model.token_count(session.transcript)) == len(tokens) == cache._sequence.length + len(cache._pending)
    num_cached = cache._sequence.length
    assert cache._pending.tokens == tokens[num_cached:]
    if num_cached:
        afresh = loaded.engine.new_sequence()
        loaded.engine.step([(afresh, tokens[:num_cached])])
        expected = read_snapshot(loaded.engine.snapshot(afresh)).arrays
        for name, array in read_snapshot(loaded.engine.snapshot(cache._sequence)).arrays.items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-5)


def test_a_response_cut_inside_a_character_is_stored_as_shown(model: fm.SystemLanguageModel) -> None:
    seen = 0
    for seed in range(60):
        session = fm.LanguageModelSession(model=model)
        options = fm.GenerationOptions(fm.SamplingMode.random(seed=seed), maximum_response_tokens=1)
        snapshots = list(session.stream_blocking("the cat", options=options))
        text = session.transcript[-1].turn.text
        assert [snapshot.content for snapshot in snapshots[-1:]] == [text] * bool(text)
        seen += text == "\N{REPLACEMENT CHARACTER}"
        assert_cache_is_transcript(session, model)
    assert seen > 0


def test_text_streams_as_whole_snapshots(model: fm.SystemLanguageModel) -> None:
    async def run() -> tuple[list[str], str]:
        stream = fm.LanguageModelSession(model=model).stream_response("the cat", options=SHORT)
        return [snapshot.content async for snapshot in stream], (await stream.collect()).content

    snapshots, final = asyncio.run(run())
    assert len(snapshots) > 3
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(snapshots))
    assert snapshots[-1] == final == fm.LanguageModelSession(model=model).respond_blocking("the cat", options=SHORT)


def test_typed_streams_grow_and_keep_identities(model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession(model=model)
    snapshots = list(session.stream_blocking("a pet", Pet, options=random_options(5)))
    fields = ["name", "age", "kinds", "toy"]
    for snapshot in snapshots:
        seen = [name for name in fields if getattr(snapshot.content, name) is not None]
        assert seen == fields[: len(seen)]
        assert type(snapshot.content) is Pet.PartiallyGenerated  # type: ignore[attr-defined]
    assert len({snapshot.content.generation_id for snapshot in snapshots}) == 1
    assert len({len(snapshot.content.name or "") for snapshot in snapshots}) > 2
    pet = fm.LanguageModelSession(model=model).respond_blocking("a pet", Pet, options=random_options(5))
    assert snapshots[-1].raw_content.to_json() == pet.generated_content.to_json()  # type: ignore[attr-defined]
    assert session.transcript[-1].turn.text == snapshots[-1].raw_content.to_json()


def test_generation_does_not_block_the_event_loop(slow_model: fm.SystemLanguageModel) -> None:
    async def run() -> tuple[int, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticker = asyncio.create_task(tick())
        stream = fm.LanguageModelSession(model=slow_model).stream_response("the cat", options=SHORT)
        ticks_between = 0
        async for _ in stream:
            ticks_between += ticks > 0
            ticks = 0
        ticker.cancel()
        return ticks_between, slow_model.load().engine.num_steps  # type: ignore[attr-defined]

    ticks_between, num_steps = asyncio.run(run())
    assert num_steps >= 12
    assert ticks_between >= num_steps // 2


def unchanged_afterwards(session: fm.LanguageModelSession, model: fm.SystemLanguageModel, before: list[Any]) -> None:
    """Check that the session answers as if the failed request had not happened."""
    assert list(session.transcript) == before
    assert not session.is_responding
    assert session.respond_blocking("the dog", options=SHORT) == fm.LanguageModelSession(
        "Be brief.", model
    ).respond_blocking("the dog", options=SHORT)


def test_cancelling_the_task_undoes_the_request(slow_model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession("Be brief.", slow_model)
    before = list(session.transcript)
    engine = slow_model.load().engine
    assert isinstance(engine, SlowEngine)

    async def run() -> None:
        task = asyncio.create_task(session.respond("the cat"))
        while engine.num_steps < 3:
            await asyncio.sleep(0.005)
        assert session.is_responding
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not session.is_responding

    asyncio.run(run())
    unchanged_afterwards(session, slow_model, before)


def test_cancel_raises_a_generation_error(slow_model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession("Be brief.", slow_model)
    before = list(session.transcript)

    async def run() -> None:
        async for _ in session.stream_response("the cat"):
            session.cancel()

    with pytest.raises(fm.GenerationCancelledError):
        asyncio.run(run())
    unchanged_afterwards(session, slow_model, before)


def test_closing_a_stream_early_frees_the_session(slow_model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession("Be brief.", slow_model)
    before = list(session.transcript)

    async def run() -> str:
        async for _ in session.stream_response("the cat"):
            break
        assert list(session.transcript) == before
        return await session.respond("the dog", options=SHORT)

    answer = asyncio.run(run())
    assert answer == fm.LanguageModelSession("Be brief.", slow_model).respond_blocking("the dog", options=SHORT)
    for _ in session.stream_blocking("the cat"):
        break
    assert len(session.transcript) == 3


def test_a_truncated_structure_is_an_error_and_undone(model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession("Be brief.", model)
    before = list(session.transcript)
    with pytest.raises(fm.DecodingFailureError, match="cut off") as caught:
        session.respond_blocking("a pet", Pet, options=fm.GenerationOptions(maximum_response_tokens=5))
    assert caught.value.raw_content.startswith('{"na')
    unchanged_afterwards(session, model, before)


def test_a_class_that_rejects_its_values_undoes_the_request(model: fm.SystemLanguageModel) -> None:
    @fm.generable
    class Never:
        flag: bool

        def __post_init__(self) -> None:
            raise ValueError("never")

    session = fm.LanguageModelSession("Be brief.", model)
    before = list(session.transcript)
    with pytest.raises(fm.DecodingFailureError, match="never"):
        asyncio.run(session.respond("x", Never))
    unchanged_afterwards(session, model, before)


def test_one_request_at_a_time(slow_model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession(model=slow_model)

    async def run() -> list[Any]:
        first = asyncio.create_task(session.respond("the cat", options=SHORT))
        await asyncio.sleep(0.03)
        with pytest.raises(fm.ConcurrentRequestsError):
            session.respond_blocking("the dog")
        more = await asyncio.gather(session.respond("a"), session.respond("b"), return_exceptions=True)
        return [await first, *more]

    answer, *errors = asyncio.run(run())
    assert [type(error) for error in errors] == [fm.ConcurrentRequestsError] * 2
    assert [entry.turn.text for entry in session.transcript] == ["the cat", answer]


def test_sessions_share_one_engine(model: fm.SystemLanguageModel, bundle_path: Path) -> None:
    assert model.load() is fm.SystemLanguageModel(bundle=str(bundle_path)).load()
    prompts = ["the cat", "the dog", "a red log", "mat"]
    alone = [fm.LanguageModelSession(model=model).respond_blocking(prompt, options=SHORT) for prompt in prompts]

    async def together() -> list[str]:
        sessions = [fm.LanguageModelSession(model=model) for _ in prompts]
        return await asyncio.gather(
            *(session.respond(prompt, options=SHORT) for session, prompt in zip(sessions, prompts, strict=True))
        )

    assert asyncio.run(together()) == alone


def test_a_deleted_session_frees_its_cache(model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession(model=model)
    session.respond_blocking("the cat", options=SHORT)
    assert session._responder._executor is not None
    sequence = weakref.ref(session._responder._executor._sequence)
    del session
    gc.collect()
    assert sequence() is None


def test_a_prompt_far_beyond_the_window_is_rejected_before_it_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encoding five million tokens takes half a minute and gigabytes."""
    model = fm.SystemLanguageModel(bundle=write_tiny_bundle(tmp_path / "small", seed=71, context_length=64).path)
    session = fm.LanguageModelSession("Be brief.", model)
    session.prewarm()
    encoded: list[int] = []
    encode = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text: encoded.append(len(text)) or encode(self, text[:100]))
    with pytest.raises(fm.ExceededContextWindowSizeError):
        session.respond_blocking("x" * 1_000_000)
    assert max(encoded, default=0) < 1000


def test_a_prompt_of_megabytes_is_refused_by_its_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = write_tiny_bundle(tmp_path / "small", seed=72, context_length=64)
    session = fm.LanguageModelSession(model=fm.SystemLanguageModel(bundle=bundle.path))
    monkeypatch.setattr(Tokenizer, "encode", lambda *_: pytest.fail("was encoded"))
    with monkeypatch.context() as patch:
        patch.setattr(Blocklist, "check_input", lambda *_: pytest.fail("was checked"))
        with pytest.raises(fm.ExceededContextWindowSizeError) as caught:
            session.respond_blocking(" " * 3_000_000)
    assert caught.value.token_count > 64
    assert len(session.transcript) == 0
    wordy = fm.LanguageModelSession(" " * 3_000_000, fm.SystemLanguageModel(bundle=bundle.path))
    with pytest.raises(fm.ExceededContextWindowSizeError):
        wordy.respond_blocking("Hello")


def test_the_context_window_is_an_error_with_both_counts(tmp_path: Path) -> None:
    model = fm.SystemLanguageModel(bundle=write_tiny_bundle(tmp_path / "small", seed=1, context_length=64).path)
    assert model.context_size == 64
    session = fm.LanguageModelSession("Be brief.", model)
    before = list(session.transcript)
    with pytest.raises(fm.ExceededContextWindowSizeError) as caught:
        session.respond_blocking("the cat sat on the mat " * 40)
    assert caught.value.context_size == 64
    assert caught.value.token_count > 64
    with pytest.raises(fm.ExceededContextWindowSizeError):  # during the answer
        asyncio.run(session.respond("cat", Long))
    unchanged_afterwards(session, model, before)


def test_unsupported_schemas_fail_before_the_first_token(slow_model: fm.SystemLanguageModel) -> None:
    @fm.generable
    class Wrong:
        name: str = fm.guide(minimum=5)

    @fm.generable
    class Nothing:
        name: str = fm.guide(regex=r"[^\s\S]")

    session = fm.LanguageModelSession(model=slow_model)
    for type_class in (Wrong, Nothing):
        with pytest.raises(fm.UnsupportedGuideError):
            asyncio.run(session.respond("x", type_class))
    with pytest.raises(fm.UnsupportedGuideError):
        session.respond_blocking("x", json_schema={"type": "integer", "minimum": 5, "maximum": 3})
    assert slow_model.load().engine.num_steps == 0  # type: ignore[attr-defined]
    assert len(session.transcript) == 0


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"json_schema": "not JSON"}, fm.InvalidGenerationSchemaError, "format"),
        ({"json_schema": "[1]"}, fm.InvalidGenerationSchemaError, "format"),
        ({"json_schema": {"type": "thing"}}, fm.InvalidGenerationSchemaError, "format"),
        ({"json_schema": {"x": object()}}, fm.InvalidGenerationSchemaError, "serializable"),
        ({"json_schema": {"minimum": float("nan")}}, fm.InvalidGenerationSchemaError, "not JSON"),
        ({"json_schema": '{"minimum": NaN}'}, fm.InvalidGenerationSchemaError, "not JSON"),
        ({"json_schema": nested(150)}, fm.InvalidGenerationSchemaError, "nested deeper"),
        ({"json_schema": nested(100_000)}, fm.InvalidGenerationSchemaError, "recursion"),
        ({"json_schema": '{"items":' * 100_000}, fm.InvalidGenerationSchemaError, "recursion"),
        ({"generating": complex}, fm.InvalidGenerationSchemaError, "invalid type complex"),
        ({"generating": Pet, "json_schema": {}}, ValueError, "exclude each other"),
        ({"surprise": 1}, TypeError, "surprise"),
    ],
)
def test_wrong_calls_are_refused(
    model: fm.SystemLanguageModel, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    session = fm.LanguageModelSession(model=model)
    with pytest.raises(error, match=text):
        asyncio.run(session.respond("x", **arguments))
    assert len(session.transcript) == 0
    assert not session.is_responding


def test_a_session_is_free_after_a_failed_thread_start(
    model: fm.SystemLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    session = fm.LanguageModelSession("Be brief.", model)
    before = list(session.transcript)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(fm.GenerationError, match="thread"):
            asyncio.run(session.respond("the cat"))
        with pytest.raises(fm.GenerationError, match="thread"):
            session.prewarm()
    unchanged_afterwards(session, model, before)


def test_closing_a_stream_and_using_it_as_a_context(model: fm.SystemLanguageModel) -> None:
    async def run() -> None:
        session = fm.LanguageModelSession(model=model)
        async with session.stream_response("the cat") as stream:
            await anext(stream)
        assert not session.is_responding
        unused = session.stream_response("the cat")
        await unused.aclose()
        assert await session.stream_response("the cat", options=SHORT).collect()

    asyncio.run(run())


@pytest.mark.parametrize("generating", [None, Pet])
def test_cancelling_after_any_snapshot_leaves_the_session_unchanged(model: fm.SystemLanguageModel, generating: Any) -> None:
    session = fm.LanguageModelSession("Be brief.", model)
    session.respond_blocking("hello", options=SHORT)
    before = list(session.transcript)
    untouched = fm.LanguageModelSession("Be brief.", model)
    untouched.respond_blocking("hello", options=SHORT)
    for count in range(1, 9):
        with pytest.raises(fm.GenerationCancelledError):
            for number, _ in enumerate(session.stream_blocking("the cat", generating, options=random_options(4)), start=1):
                if number == count:
                    session.cancel()
        assert list(session.transcript) == before
    assert session.respond_blocking("the dog", options=SHORT) == untouched.respond_blocking("the dog", options=SHORT)
    assert session.usage.cached_tokens == untouched.usage.cached_tokens


def test_the_last_snapshot_of_every_type_is_complete(model: fm.SystemLanguageModel) -> None:
    for type_class in (bool, int, list[int], Kind):
        session = fm.LanguageModelSession(model=model)
        snapshots = list(session.stream_blocking("x", type_class, options=random_options(4)))
        assert snapshots[-1].raw_content.is_complete
        assert snapshots[-1].content == snapshots[-1].raw_content.value(type_class)
