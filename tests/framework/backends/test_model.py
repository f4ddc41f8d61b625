"""System models: choice, availability, exact token counts."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
from scripted_models import ScriptedModel
from tiny_bundles import tiny_recovery, write_tiny_bundle

import openafm as fm
from openafm.bundle import choose_model
from openafm.bundle.store import shipped_bundle

Reason = fm.SystemLanguageModelUnavailableReason


@fm.generable("A thing")
class Thing:
    size: int = fm.guide("How large", range=(1, 9))
    parts: list[Thing] = fm.guide(max_items=1)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home of a user without bundles, in an installation without the shipped model."""
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("openafm.bundle.store.SHIPPED_HOME", tmp_path / "stripped")
    return tmp_path / "home"


def test_without_a_model_nothing_is_available_and_requests_fail(home: Path) -> None:
    model = fm.SystemLanguageModel()
    assert model.is_available() == (False, Reason.MODEL_NOT_INSTALLED)
    assert fm.SystemLanguageModel(bundle="nothing").is_available() == (False, Reason.MODEL_NOT_INSTALLED)
    session = fm.LanguageModelSession()
    with pytest.raises(fm.AssetsUnavailableError, match="openafm quickstart") as caught:
        asyncio.run(session.respond("hello"))
    assert caught.value.exit_code == 2
    assert not session.is_responding
    with pytest.raises(fm.AssetsUnavailableError):
        _ = model.context_size
    write_tiny_bundle(home / "bundles" / "first")
    assert model.is_available() == (True, None)
    assert session.respond_blocking("hello", options=fm.GenerationOptions(maximum_response_tokens=2)) is not None


def test_the_chosen_bundle_is_the_default(home: Path, tmp_path: Path) -> None:
    write_tiny_bundle(home / "bundles" / "local", context_length=100)
    chosen = write_tiny_bundle(tmp_path / "chosen", context_length=200)
    assert fm.SystemLanguageModel().context_size == 100
    choose_model(chosen.path)
    assert fm.SystemLanguageModel().context_size == 200
    assert fm.SystemLanguageModel(bundle="local").context_size == 100


def test_damaged_bundles_are_not_available(tmp_path: Path) -> None:
    path = write_tiny_bundle(tmp_path / "damaged", seed=9).path
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    model = fm.SystemLanguageModel(bundle=path)
    assert model.is_available() == (False, Reason.MODEL_DAMAGED)
    with pytest.raises(fm.AssetsUnavailableError, match=r"model\.safetensors"):
        fm.LanguageModelSession(model=model).respond_blocking("hello")
    weights.unlink()
    assert fm.SystemLanguageModel(bundle=path).is_available() == (False, Reason.MODEL_DAMAGED)
    config = path / "config.json"
    config.write_text(config.read_text().replace('"version": 2', '"version": 99'))
    assert fm.SystemLanguageModel(bundle=path).is_available() == (False, Reason.MODEL_VERSION_UNSUPPORTED)


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.json"])
@pytest.mark.parametrize("content", [b'{"version": 99}', b"not JSON", b"\xff", b"[" * 100_000, None])
def test_a_broken_tokenizer_or_template_is_reported_as_damage(tmp_path: Path, name: str, content: bytes | None) -> None:
    path = write_tiny_bundle(tmp_path / "damaged", seed=9).path
    if content is None:
        (path / name).unlink()
    else:
        (path / name).write_bytes(content)
    model = fm.SystemLanguageModel(bundle=path)
    assert model.is_available() == (False, Reason.MODEL_DAMAGED)
    with pytest.raises(fm.AssetsUnavailableError, match=name) as caught:
        asyncio.run(model.token_count("hello"))
    assert caught.value.exit_code == 1
    with pytest.raises(fm.AssetsUnavailableError, match=name):
        fm.LanguageModelSession(model=model).respond_blocking("hello")


def test_counts_of_parts_add_up_to_the_prefilled_tokens(model: fm.SystemLanguageModel) -> None:
    async def run() -> None:
        instructions = await model.token_count(instructions="Be brief.")
        prompt = await model.token_count("the cat, 猫")
        schema = await model.token_count(fm.GenerationSchema(Thing))
        options = fm.GenerationOptions(fm.SamplingMode.random(seed=1))
        shown, hidden = fm.LanguageModelSession("Be brief.", model), fm.LanguageModelSession("Be brief.", model)
        await shown.respond("the cat, 猫", Thing, options=options)
        await hidden.respond("the cat, 猫", Thing, options=options, include_schema_in_prompt=False)
        assert shown.usage.prompt_tokens == instructions + prompt + schema
        assert hidden.usage.prompt_tokens == instructions + prompt
        for session in (shown, hidden):
            total = session.usage.prompt_tokens + session.usage.generated_tokens
            assert await model.token_count(session.transcript) == total
            assert session.usage.forced_tokens > 5

    asyncio.run(run())


def test_token_count_takes_exactly_one_value(model: fm.SystemLanguageModel) -> None:
    for arguments in ({}, {"value": "a", "instructions": "b"}):
        with pytest.raises(ValueError, match="pass one of them"):
            asyncio.run(model.token_count(**arguments))


def test_empty_instructions_count_like_none(model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession(model=model)
    session.respond_blocking("a", options=fm.GenerationOptions(maximum_response_tokens=1))
    opening = asyncio.run(model.token_count(instructions=""))
    assert session.usage.prompt_tokens == opening + asyncio.run(model.token_count("a"))


def test_sixteen_languages(model: fm.SystemLanguageModel) -> None:
    assert len(model.supported_languages) == 16
    assert {"en", "ja", "vi", "zh-Hant"} < model.supported_languages


def test_the_wire_form_of_a_transcript(model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession("Be brief.", model)
    sampling = fm.SamplingMode.random(top=3, seed=5)
    thing = session.respond_blocking("a thing", Thing, options=fm.GenerationOptions(sampling, temperature=0.5))
    session.respond_blocking("more", options=fm.GenerationOptions(maximum_response_tokens=3))
    wire = asyncio.run(session.transcript.to_dict())
    assert (wire["version"], wire["type"]) == (1, "FoundationModels.Transcript")
    entries = wire["transcript"]["entries"]
    assert [entry["role"] for entry in entries] == ["instructions", "user", "response", "user", "response"]
    assert len({entry["id"] for entry in entries}) == 5
    assert entries[0]["contents"] == [{"id": "0", "type": "text", "text": "Be brief."}]
    assert entries[1]["options"] == {"sampling": {"mode": "random", "top_k": 3, "seed": 5}, "temperature": 0.5}
    schema = fm.GenerationSchema(Thing).to_dict()
    assert entries[1]["responseFormat"] == {"type": "jsonSchema", "jsonSchema": {"name": "Thing", "schema": schema}}
    structure = {"source": "Thing", "content": thing.generated_content.value()}  # type: ignore[attr-defined]
    assert entries[2]["contents"] == [{"id": "0", "type": "structure", "structure": structure}]
    assert entries[2]["assets"] == ["tiny"]
    assert entries[3]["options"] == {"maximum_response_tokens": 3}
    assert wire == asyncio.run(session.transcript.to_dict())


def test_a_recovery_adapter_changes_the_identity(tmp_path: Path) -> None:
    base = write_tiny_bundle(tmp_path / "base")
    recovered = write_tiny_bundle(tmp_path / "recovered", recovery=tiny_recovery())
    assert recovered.signature == base.signature
    plain, adapted = (fm.SystemLanguageModel(bundle=bundle.path).load() for bundle in (base, recovered))
    logits = [model.engine.step([(model.engine.new_sequence(), [1, 2, 3])])[0] for model in (plain, adapted)]
    assert not np.allclose(*logits)
    assert fm.SystemLanguageModel(bundle=recovered.path).load() is adapted


def test_a_copy_without_the_reader_of_pages_is_another_model(tmp_path: Path) -> None:
    shipped = shipped_bundle()
    assert shipped is not None
    copied = shutil.copytree(shipped, tmp_path / "text", ignore=shutil.ignore_patterns("reader"))
    text_model, reading_model = (fm.SystemLanguageModel(bundle=path) for path in (copied, shipped))
    loaded = text_model.load()
    assert loaded.bundle.signature == reading_model.load().bundle.signature
    assert reading_model.load() is not loaded
    assert reading_model.capabilities - text_model.capabilities == {fm.Capability.VISION}


def test_a_damaged_recovery_adapter_is_reported_as_damage(tmp_path: Path) -> None:
    path = write_tiny_bundle(tmp_path / "recovered", recovery=tiny_recovery()).path
    (path / "recovery.fmadapter" / "metadata.json").write_text("damaged")
    assert fm.SystemLanguageModel(bundle=path).is_available() == (False, Reason.MODEL_DAMAGED)
    with pytest.raises(fm.AssetsUnavailableError, match=r"metadata\.json"):
        fm.SystemLanguageModel(bundle=path).load()


def flip_a_weight(path: Path) -> None:
    weights = path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)


def test_a_changed_weight_makes_a_bundle_unavailable(tmp_path: Path) -> None:
    path = write_tiny_bundle(tmp_path / "changed", seed=9).path
    model = fm.SystemLanguageModel(bundle=path)
    assert model.is_available() == (True, None)
    flip_a_weight(path)  # a changed file is verified again
    assert model.is_available() == (False, Reason.MODEL_DAMAGED)
    draft = fm.SystemLanguageModel(bundle=write_tiny_bundle(tmp_path / "good").path, draft=path)
    assert draft.is_available() == (False, Reason.MODEL_DAMAGED)


def test_a_model_is_available_while_it_answers(model: fm.SystemLanguageModel) -> None:
    session = fm.LanguageModelSession(model=model)
    options = fm.GenerationOptions(maximum_response_tokens=5)
    seen = [model.is_available() for _ in session.stream_blocking("x", options=options)]
    assert len(seen) > 1
    assert set(seen) == {(True, None)}


def test_a_changed_copy_does_not_share_the_loaded_model(tmp_path: Path) -> None:
    path = write_tiny_bundle(tmp_path / "good", seed=9).path
    shutil.copytree(path, tmp_path / "copy")
    good, copy = fm.SystemLanguageModel(bundle=path), fm.SystemLanguageModel(bundle=tmp_path / "copy")
    assert copy.load() is good.load()
    flip_a_weight(tmp_path / "copy")
    with pytest.raises(fm.AssetsUnavailableError, match="differs from the signed one"):
        copy.load()


def test_an_empty_answer_is_not_an_error() -> None:
    response = fm.LanguageModelSession(model=ScriptedModel("")).respond_full_blocking("x")
    assert (response.content, response.finish_reason) == ("", fm.FinishReason.STOP)
