"""Answers of a server follow the rankers of its bundle, as those of sessions do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import openai
import pytest
from tiny_rankers import TEXTS, add_span_ranker, write_ranked_bundle

from openafm.framework.backends import answer_priors

LABELS = list(TEXTS)
SCHEMA = {
    "type": "object",
    "properties": {"label": {"type": "string", "enum": LABELS}},
    "required": ["label"],
    "additionalProperties": False,
}


@pytest.fixture
def ranked(start_server: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[openai.OpenAI, str]:
    """A client, and the name of a model of random weights: the priors decide."""
    for name in ("LABEL_WEIGHT", "TOOL_WEIGHT"):
        monkeypatch.setattr(answer_priors, name, 20.0)
    path = add_span_ranker(write_ranked_bundle(tmp_path / "ranked"))
    url = start_server(models=(str(path),))
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
    return client, client.models.list().data[0].id


def test_labels_and_tools(ranked: tuple[openai.OpenAI, str]) -> None:
    client, model = ranked
    for label, texts in TEXTS.items():
        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": texts[0]}],
            response_format={"type": "json_schema", "json_schema": {"name": "label", "schema": SCHEMA, "strict": True}},
            max_tokens=40,
        )
        assert json.loads(answer.choices[0].message.content or "") == {"label": label}
    tools = [_tool(label.replace(" ", "_"), {}) for label in LABELS]
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "play some jazz"}],
        tools=tools,  # type: ignore[arg-type]
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=60,
    )
    (call,) = answer.choices[0].message.tool_calls or ()
    assert call.function.name == "play_music"


def test_arguments_that_are_absent_are_left_out_of_the_first_answer(ranked: tuple[openai.OpenAI, str]) -> None:
    client, model = ranked
    question = {"role": "user", "content": "is it cold in Oslo"}
    earlier = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]

    def has_day(messages: list[dict[str, str]], seed: int) -> bool:
        answer = client.chat.completions.create(
            model=model,
            messages=messages,  # type: ignore[arg-type]
            tools=[_tool("weather", {"day": {"type": "string", "maxLength": 3}})],  # type: ignore[list-item]
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=60,
            temperature=1.0,
            seed=seed,
        )
        (call,) = answer.choices[0].message.tool_calls or ()
        return "day" in json.loads(call.function.arguments)

    assert not any(has_day([question], seed) for seed in range(8))
    assert any(has_day([*earlier, question], seed) for seed in range(8))


def _tool(name: str, properties: dict[str, object]) -> dict[str, object]:
    parameters = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}
