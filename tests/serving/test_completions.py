"""/v1/completions, models and tokens through OpenAI's own client."""

from __future__ import annotations

from typing import Any

import openai
import pytest


def complete(client: openai.OpenAI, prompt: Any = "The sea is", **options: Any) -> Any:
    return client.completions.create(model="nano", prompt=prompt, **{"max_tokens": 8} | options)


def test_text_and_its_tokens_have_equal_continuations(client: openai.OpenAI) -> None:
    text = complete(client)
    encoded: Any = client.post("/tokenize", body={"prompt": "The sea is"}, cast_to=object)
    bos: Any = client.post("/tokenize", body={"messages": [{"role": "user", "content": ""}]}, cast_to=object)
    tokens = complete(client, [bos["tokens"][0], *encoded["tokens"]])
    assert tokens.choices[0].text == text.choices[0].text
    assert tokens.usage.prompt_tokens == text.usage.prompt_tokens == len(encoded["tokens"]) + 1
    assert text.object == "text_completion"


def test_a_stream_adds_up(client: openai.OpenAI) -> None:
    whole = complete(client, logprobs=2)
    chunks = list(complete(client, logprobs=2, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    offsets = [
        o for chunk in chunks if chunk.choices and chunk.choices[0].logprobs for o in chunk.choices[0].logprobs.text_offset
    ]
    assert offsets == whole.choices[0].logprobs.text_offset
    assert all(len(top) == 2 for top in whole.choices[0].logprobs.top_logprobs)


def test_unsupported_parameters_are_refused(client: openai.OpenAI) -> None:
    for options in ({"echo": True}, {"suffix": "x"}, {"prompt": ["a", "b"]}, {"prompt": [10**9]}):
        with pytest.raises(openai.BadRequestError):
            complete(client, **options)


def test_detokenize_inverts_tokenize(client: openai.OpenAI) -> None:
    text = 'Grüße 🐚 {"a": 1}'
    tokens: Any = client.post("/tokenize", body={"prompt": text}, cast_to=object)
    assert tokens["count"] == len(tokens["tokens"])
    back: Any = client.post("/detokenize", body={"tokens": tokens["tokens"]}, cast_to=object)
    assert back["content"] == text


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["nano", "nano:pages", "tiny"]
    assert client.models.retrieve("nano:latest").id == "nano"
