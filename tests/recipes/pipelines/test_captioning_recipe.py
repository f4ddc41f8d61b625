"""Captioners made of models of the framework: requests, limits, refusals."""

from __future__ import annotations

import io
from collections.abc import Generator

import PIL.Image
import pytest
from scripted_models import ScriptedModel

import openafm as fm
from openafm.data.captions.captioner import EndlessAnswerError, ImageRequest, RefusedAnswerError
from openafm.recipes.pipelines.captioning import SessionCaptioner
from openafm.safety.guardrail import Allowed, Refused, Verdict

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


class SeeingModel(ScriptedModel):
    capabilities = frozenset((fm.Capability.GUIDED_GENERATION, fm.Capability.VISION))


class Guard:
    def check_input(self, text: str) -> Verdict:
        return Refused(reason="not that") if "forbidden" in text else Allowed()

    def check_output(self, window: str) -> Verdict:
        return Allowed()


def png() -> bytes:
    file = io.BytesIO()
    PIL.Image.new("L", (4, 4)).save(file, "PNG")
    return file.getvalue()


def request(prompt: str = "Describe it.", *, seconds: float = 30.0, schema: dict[str, object] | None = None) -> ImageRequest:
    return ImageRequest(image=png(), prompt=prompt, max_tokens=12, seconds=seconds, schema=schema)


def test_each_request_is_a_session_with_image_prompt_and_limits() -> None:
    model = SeeingModel("one", "two")
    captioner = SessionCaptioner(model)
    assert [captioner(request()), captioner(request())] == ["one", "two"]
    assert model.openings == [(), ()]
    sent = model.requests[0]
    (turn,) = sent.turns
    assert isinstance(turn, fm.UserTurn)
    assert turn.text == "Describe it."
    assert [sent.images[image.digest] for image in turn.images] == [png()]
    assert sent.options.maximum_response_tokens == 12
    assert sent.options.sampling == fm.SamplingMode.greedy()
    assert (captioner.model, captioner.sampling) == ("scripted", "greedy")


def test_schemas_are_enforced_and_sampling_is_named() -> None:
    model = SeeingModel('{"n":3}')
    captioner = SessionCaptioner(model, temperature=0.5, seed=7)
    assert captioner(request(schema=SCHEMA)) == '{"n":3}'
    assert model.requests[0].schema is not None
    assert captioner.sampling == "random, temperature 0.5, seed 7"
    assert SessionCaptioner(model, seed=8).sampling != captioner.sampling


def test_refusals_and_slow_answers_are_typed() -> None:
    with pytest.raises(RefusedAnswerError, match="not that"):
        SessionCaptioner(SeeingModel("x", guard=Guard()))(request("forbidden"))
    with pytest.raises(EndlessAnswerError, match=r"no answer within 0\.1 s"):
        SessionCaptioner(SeeingModel("x" * 100, pause_s=0.02))(request(seconds=0.1))


def test_an_answer_at_the_token_limit_is_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    model = SeeingModel("x")

    class Executor(type(model.executor(()))):  # type: ignore[misc]
        def answer(self, request: fm.AnswerRequest) -> Generator[fm.TextPiece, None, fm.Answer]:
            yield fm.TextPiece("and so on")
            turn = fm.AssistantTurn(text="and so on")
            return fm.Answer(turn=turn, usage=fm.Usage(), finish_reason=fm.FinishReason.LENGTH)

    monkeypatch.setattr(model, "executor", lambda turns: Executor(model))
    with pytest.raises(EndlessAnswerError, match="within 12 tokens") as caught:
        SessionCaptioner(model)(request())
    assert caught.value.text == "and so on"


def test_models_without_vision_are_refused_before_any_request() -> None:
    with pytest.raises(fm.UnsupportedCapabilityError, match="does not support images; pass an endpoint"):
        SessionCaptioner(fm.SystemLanguageModel())
