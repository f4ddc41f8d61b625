"""Sessions with images on local models: a real engine, a tiny random multimodal bundle."""

from __future__ import annotations

import base64
import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_bundles import computed_tokens, write_multimodal_bundle

import openafm as fm
from openafm.runtime.engines.torch_engine import TorchEngine

PIL_Image = pytest.importorskip("PIL.Image")
QUESTION = "the cat?"
GREEDY = fm.GenerationOptions(maximum_response_tokens=6)


def encoded(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def picture(seed: int) -> Any:
    pixels = np.random.default_rng(seed).integers(256, size=(20, 30, 3), dtype=np.uint8)
    return PIL_Image.fromarray(pixels)


RED, BLUE = encoded(picture(1)), encoded(picture(2))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_multimodal_bundle(tmp_path_factory.mktemp("bundles") / "seeing").path


@pytest.fixture
def model(path: Path) -> fm.SystemLanguageModel:
    return fm.SystemLanguageModel(bundle=path)


def answer(model: fm.SystemLanguageModel, *parts: Any, **keywords: Any) -> str:
    return fm.LanguageModelSession("the log", model).respond_blocking(fm.Prompt(*parts), options=GREEDY, **keywords)


def test_answers_depend_on_the_image(model: fm.SystemLanguageModel) -> None:
    assert fm.Capability.VISION in model.capabilities
    red, blue = answer(model, QUESTION, fm.Image(RED)), answer(model, QUESTION, fm.Image(BLUE))
    assert red != blue
    assert [answer(model, QUESTION, fm.Image(data)) for data in (RED, BLUE)] == [red, blue]  # from the prefix cache


def test_every_source_of_an_image_is_the_same_to_the_model(model: fm.SystemLanguageModel, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(RED)
    url = f"data:image/png;base64,{base64.b64encode(RED).decode()}"
    sources = (tmp_path / "a.png", RED, url, picture(1), np.asarray(picture(1)))
    assert len({answer(model, QUESTION, fm.Image(source)) for source in sources}) == 1


def test_counts_are_exact_and_told_before_the_request(model: fm.SystemLanguageModel) -> None:
    details = ("high", "balanced", "rapid")
    prompt = fm.Prompt(QUESTION, fm.Image(RED))
    counts = [model.token_count_blocking(prompt, image_detail=detail) for detail in details]
    text = model.token_count_blocking(QUESTION)
    assert counts == [text + 20 + 2, text + 4 + 2, text + 1 + 2]  # an image stands between two tokens
    assert model.token_count_blocking(prompt) == counts[1]
    for detail, count in zip(details, counts, strict=True):
        session = fm.LanguageModelSession(model=model)
        options = fm.GenerationOptions(maximum_response_tokens=2, image_detail=detail)
        session.respond_blocking(prompt, options=options)
        assert session.usage.prompt_tokens == count + model.token_count_blocking(instructions="")
        assert session.transcript[0].to_dict()["options"]["image_detail"] == detail


def test_an_image_is_prefilled_once_over_turns_and_sessions(
    model: fm.SystemLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = model.load().engine
    assert isinstance(engine, TorchEngine)
    views: list[Any] = []
    encode = engine.encode_views
    monkeypatch.setattr(engine, "encode_views", lambda *given: views.append(given) or encode(*given))
    computed = computed_tokens(engine, monkeypatch)
    third = encoded(picture(3))
    session = fm.LanguageModelSession("the log", model)
    session.respond_blocking(fm.Prompt(QUESTION, fm.Image(third)), options=GREEDY)
    computed.clear()
    session.respond_blocking("and the dog?", options=GREEDY)
    assert computed[0] < model.token_count_blocking("and the dog?") + 8
    session.respond_blocking(fm.Prompt("now?", fm.Image(third), fm.Image(RED)), options=GREEDY)
    assert len(views) <= 2
    assert len(session.transcript.images) == 2


def test_a_saved_session_continues_with_its_images(model: fm.SystemLanguageModel, tmp_path: Path) -> None:
    def begun() -> fm.LanguageModelSession:
        session = fm.LanguageModelSession("the log", model)
        session.respond_blocking(fm.Prompt(QUESTION, fm.Image(RED)), options=GREEDY)
        return session

    session = begun()
    session.save_blocking(tmp_path / "s")
    expected = session.respond_blocking("and?", options=GREEDY)
    assert fm.LanguageModelSession.load(tmp_path / "s", model).respond_blocking("and?", options=GREEDY) == expected
    values, images = begun().transcript.as_dict(), {hashlib.sha256(RED).hexdigest(): RED}
    continued = fm.LanguageModelSession.from_transcript(fm.Transcript.parse(values, images=images), model)
    continued.prewarm("and?")
    assert continued.respond_blocking("and?", options=GREEDY) == expected
    for wrong in ({}, {hashlib.sha256(RED).hexdigest(): BLUE}):
        model.load()._images._embeddings.clear()
        model.load().prefixes._stores["conversation"].__init__(1)
        bare = fm.LanguageModelSession.from_transcript(fm.Transcript.parse(values, images=wrong), model)
        with pytest.raises(fm.ImagePromptError, match="are missing; pass images="):
            bare.respond_blocking("and?", options=GREEDY)


def test_a_snapshot_with_another_image_is_not_continued_from(model: fm.SystemLanguageModel) -> None:
    """Fails if restored sequences are compared by tokens alone."""

    def begun(data: bytes) -> fm.LanguageModelSession:
        session = fm.LanguageModelSession(None, model)
        session.respond_blocking(
            fm.Prompt(fm.Image(data), QUESTION), options=fm.GenerationOptions(maximum_response_tokens=1)
        )
        return session

    red, blue = begun(RED), begun(BLUE)
    executor = model.restored_executor(blue.transcript.turns, red._responder.snapshot() or b"")
    assert executor._sequence.length < 6


def test_an_image_of_another_models_transcript_gets_this_models_tokens(model: fm.SystemLanguageModel) -> None:
    digest = hashlib.sha256(RED).hexdigest()
    turn = fm.UserTurn(content=[fm.ImagePart(digest=digest, num_tokens=256), fm.TextPart(text=QUESTION)])
    entry = fm.PromptEntry(turn=turn, options=fm.GenerationOptions(), images={digest: RED})
    session = fm.LanguageModelSession.from_transcript(fm.Transcript([entry]), model)
    session.respond_blocking("and?", options=GREEDY)
    assert session.usage.prompt_tokens < 60


def test_a_structured_answer_about_an_image(model: fm.SystemLanguageModel) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    session = fm.LanguageModelSession(model=model)
    content = session.respond_blocking(fm.Prompt(fm.Image(RED), QUESTION), json_schema=schema)
    assert content.to_json() in ('{"n":1}', '{"n":2}')


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (PIL_Image.new("RGB", (1, 1)), "too small"),
        (PIL_Image.new("RGB", (1, 4000)), "aspect ratio"),
    ],
)
def test_sizes_that_the_model_cannot_take_leave_the_session_unchanged(
    model: fm.SystemLanguageModel, image: Any, message: str
) -> None:
    session = fm.LanguageModelSession(model=model)
    with pytest.raises(fm.ImagePromptError, match=message):
        session.respond_blocking(fm.Prompt(fm.Image(image), QUESTION))
    assert len(session.transcript) == 0
    assert session.respond_blocking(QUESTION, options=GREEDY) == fm.LanguageModelSession(model=model).respond_blocking(
        QUESTION, options=GREEDY
    )


def test_too_many_images_name_the_tokens_needed(model: fm.SystemLanguageModel) -> None:
    prompt = fm.Prompt(QUESTION, *[fm.Image(RED)] * 40)
    needed = model.token_count_blocking(prompt, image_detail="high")
    session = fm.LanguageModelSession(model=model)
    with pytest.raises(fm.ExceededContextWindowSizeError, match=r"800 of them for 40 new images.*rapid 1") as caught:
        session.respond_blocking(prompt, options=fm.GenerationOptions(image_detail="high"))
    assert caught.value.token_count == needed
    session.respond_blocking(prompt, options=fm.GenerationOptions(image_detail="rapid", maximum_response_tokens=2))


def test_a_detail_that_the_model_is_not_trained_for(tmp_path: Path) -> None:
    model = fm.SystemLanguageModel(bundle=write_multimodal_bundle(tmp_path / "one", modes=()).path)
    prompt = fm.Prompt(fm.Image(RED), QUESTION)
    for call in (
        lambda: model.token_count_blocking(prompt, image_detail="high"),
        lambda: fm.LanguageModelSession(model=model).respond_blocking(
            prompt, options=fm.GenerationOptions(image_detail="high")
        ),
    ):
        with pytest.raises(fm.UnsupportedAttachmentError, match=r"one is not trained for image_detail 'high'.*balanced"):
            call()
    with pytest.raises(ValueError, match="image_detail"):
        fm.GenerationOptions(image_detail="best")


def test_images_in_tool_outputs(model: fm.SystemLanguageModel, tmp_path: Path) -> None:
    @fm.tool
    def photo(cat: bool) -> Any:
        """Take a photo."""
        return ["the cat:", fm.Image(RED)] if cat else fm.Prompt(fm.Image(BLUE))

    @fm.generable
    class Kind:
        n: bool

    def begun() -> fm.LanguageModelSession:
        session = fm.LanguageModelSession("the log", model, tools=[photo], tool_limits=fm.ToolLimits(rounds=1, calls=1))
        session.respond_blocking(
            "photo", Kind, options=fm.GenerationOptions(tool_calling_mode="required", image_detail="rapid")
        )
        return session

    session = begun()
    output = next(entry for entry in session.transcript if isinstance(entry, fm.ToolOutputEntry))
    assert [part.num_tokens for part in output.turn.images] == [1]
    assert set(session.transcript.images.values()) <= {RED, BLUE}
    session.save_blocking(tmp_path / "s")
    loaded = fm.LanguageModelSession.load(tmp_path / "s", model, tools=[photo])
    assert loaded.transcript.images == session.transcript.images
    assert loaded.transcript.as_dict() == session.transcript.as_dict()
    continued = fm.LanguageModelSession.from_transcript(loaded.transcript, model, tools=[photo])
    answers = [
        each.respond_blocking("and?", Kind, options=fm.GenerationOptions(tool_calling_mode="disallowed"))
        for each in (session, continued)
    ]
    assert answers[0] == answers[1]
