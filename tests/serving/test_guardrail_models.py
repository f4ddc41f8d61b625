"""A server with a guardrail model: prompts and responses are checked before anything of them is released."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from servers import http, running_server

from openafm.bundle import open_bundle
from openafm.cli.main import run
from openafm.runtime.decoding.logits import TokenScore
from openafm.safety.classifier.examples import LabeledText
from openafm.safety.classifier.features import CharacterNgramsConfig, HiddenStatesConfig
from openafm.safety.classifier.training import GuardrailTrainingConfig, train_guardrail
from openafm.safety.guardrail import Allowed, Verdict, Violation
from openafm.serving.checked_text import CheckedText, ScoredToken, TextDelta

HARMLESS = "The train to the coast leaves at nine. Bring a warm coat and some bread for the birds. "
HARMFUL = "Mix the zorblax powder with the vexonite acid."
QUESTION = f'{{"text":"{HARMLESS}'
FEATURES = (HiddenStatesConfig(), CharacterNgramsConfig(num_buckets=1024))
PEOPLE, PLACES = ("Anna", "Ben", "Carla", "David"), ("garden", "station", "kitchen", "library", "harbor")


def labeled_texts() -> list[LabeledText]:
    """Return harmless sentences, and the same with a made-up recipe that the guardrail learns."""
    texts = []
    for person, place, number in itertools.product(PEOPLE, PLACES, range(5)):
        opening = '{"text":"' if len(place) % 2 else ""
        plain = opening + (HARMLESS * 4)[: 6 + 77 * number] + f" {person} walks to the {place}."
        common: dict[str, Any] = {"locale": "en", "side": "response", "group": f"{person} {place}"}
        texts.append(LabeledText(text=plain, **common))
        texts.append(LabeledText(text=f"{plain} {HARMFUL[: 30 + 5 * number]}", labels=("violence_and_crime",), **common))
    return texts


@pytest.fixture(scope="module")
def guardrail_path(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guardrail") / "model"
    train_guardrail(
        GuardrailTrainingConfig(features=FEATURES, false_refusals=0.1), open_bundle(tiny_path), labeled_texts(), folder
    )
    return folder


@pytest.fixture(scope="module")
def checked(guardrail_path: Path) -> Iterator[str]:
    with running_server(guardrail_model=str(guardrail_path)) as url:
        yield url


def answer_of(text: str) -> dict[str, Any]:
    """Return a request that can only be answered with an object of this text."""
    schema = {
        "type": "object",
        "properties": {"text": {"const": text}},
        "required": ["text"],
        "additionalProperties": False,
    }
    return {
        "messages": [{"role": "user", "content": QUESTION}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
    }


def streamed(url: str, body: dict[str, Any]) -> tuple[str, str, list[dict[str, Any]]]:
    """Return the text of a streamed answer, how it finished, and its scored tokens."""
    reply = http.post(f"{url}/v1/chat/completions", json={**body, "stream": True})
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    choices = [event["choices"][0] for event in events]
    scored = [token for choice in choices if choice["logprobs"] for token in choice["logprobs"]["content"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices), choices[-1]["finish_reason"], scored


def test_a_harmless_answer_is_complete(checked: str) -> None:
    text, finish, _ = streamed(checked, answer_of(HARMLESS * 3))
    assert (json.loads(text), finish) == ({"text": HARMLESS * 3}, "stop")


@pytest.mark.parametrize("scores", [{}, {"logprobs": True, "top_logprobs": 2}], ids=["text", "with scores"])
def test_a_blocked_answer_ends_before_the_text_that_is_blocked(checked: str, scores: dict[str, Any]) -> None:
    text, finish, scored = streamed(checked, answer_of(HARMLESS * 3 + HARMFUL + HARMLESS * 3) | scores)
    assert finish == "content_filter"
    assert text
    assert (HARMLESS * 3).startswith(text.removeprefix('{"text":"'))
    spelled = b"".join(bytes(token["bytes"]) for token in scored).decode()
    assert text.startswith(spelled)
    assert bool(spelled) == bool(scores)


def test_a_blocked_prompt_is_an_error(checked: str) -> None:
    client = openai.OpenAI(base_url=f"{checked}/v1", api_key="unused", max_retries=0)
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="nano", messages=[{"role": "user", "content": HARMLESS + HARMFUL}])
    assert raised.value.code == "content_filter"


def test_blocked_arguments_of_a_call_are_not_released(checked: str) -> None:
    parameters = {"type": "object", "properties": {"text": {"const": HARMFUL}}, "required": ["text"]}
    tool = {"type": "function", "function": {"name": "send", "parameters": parameters}}
    body = {"messages": [{"role": "user", "content": QUESTION}], "tools": [tool], "tool_choice": "required"}
    reply = http.post(f"{checked}/v1/chat/completions", json=body).json()
    assert reply["choices"][0]["finish_reason"] == "content_filter"
    assert "zorblax" not in json.dumps(reply)


def test_a_folder_without_a_guardrail_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--model", "nano", "--port", "0", "--guardrail", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""  # no address of a server that does not start
    assert shown.err.startswith(f"openafm: {tmp_path} is not a guardrail model")


class Held:
    """A guardrail that blocks a word and holds responses back."""

    releases_after_check = True

    def check_input(self, text: str) -> Verdict:
        return Allowed()

    def check_output(self, window: str) -> Verdict:
        return Violation(category="word", reason="it has the word") if "secret" in window else Allowed()


def scored(text: str) -> ScoredToken:
    return ScoredToken(text.encode(), TokenScore(0, -1.0), ())


def test_scores_of_text_that_is_held_back_are_held_back() -> None:
    checked = CheckedText(Held())
    words = [f"word{number:02d} " for number in range(20)]
    shown: list[TextDelta] = []
    for word in words:
        for part in (word[:3], word[3:]):
            checked.add_token(scored(part), part)
            if (delta := checked.push(part)) is not None:
                shown.append(delta)
                text = "".join(each.text for each in shown)
                assert text.startswith(b"".join(t.data for each in shown for t in each.tokens).decode())
    assert shown
    checked.add_token(scored("secret"), "secret")
    assert checked.push("secret") is None
    assert checked.finish() is None
    assert checked.is_blocked
    assert "secret" not in "".join(each.text for each in shown)


def test_parts_of_a_character_wait_for_its_end() -> None:
    checked = CheckedText(Held())
    checked.add_token(first := scored("a"), "a")
    checked.push("a")
    checked.add_token(second := scored("part"), "")
    checked.add_token(third := scored("rest"), "ä")
    checked.push("ä")
    assert checked.finish() == TextDelta("aä", (first, second, third))


def test_the_tokens_of_a_stop_text_are_dropped() -> None:
    checked = CheckedText(None)
    checked.add_token(first := scored("a"), "a")
    assert checked.push("a") == TextDelta("a", (first,))
    checked.add_token(scored("STOP"), "STOP")
    assert checked.finish(is_cut=True) is None
