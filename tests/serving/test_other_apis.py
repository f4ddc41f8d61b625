"""Ollama's and Anthropic's APIs, as their clients call them."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from servers import http
from test_chat_completions import PERSON

WEATHER = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
OLLAMA_WEATHER = {"type": "function", "function": {"name": "weather", "parameters": WEATHER["input_schema"]}}
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "Repeat: one two three four five six seven."}]}
CITY: dict[str, Any] = {"messages": [{"role": "user", "content": "What is the weather in Oslo?"}]}


def post(url: str, path: str, **body: Any) -> Any:
    reply = http.post(f"{url}{path}", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def lines(url: str, path: str, **body: Any) -> list[Any]:
    reply = http.post(
        f"{url}{path}", content=json.dumps(body), headers={"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert reply.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in reply.text.splitlines()]


def events(url: str, **body: Any) -> list[tuple[str, Any]]:
    reply = http.post(f"{url}/v1/messages", json={"max_tokens": 24, "stream": True, **body})
    blocks = [block.split("\n") for block in reply.text.strip().split("\n\n")]
    return [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in blocks]


def test_ollama_chat_streams_lines(url: str) -> None:
    streamed = lines(url, "/api/chat", **ASK, options={"num_predict": 12})
    whole = post(url, "/api/chat", **ASK, options={"num_predict": 12}, stream=False)
    assert "".join(line["message"]["content"] for line in streamed) == whole["message"]["content"]
    assert [line["done"] for line in streamed] == [False] * (len(streamed) - 1) + [True]
    assert streamed[-1]["eval_count"] == whole["eval_count"] > 0
    assert whole["done_reason"] in ("stop", "length")


def test_ollama_generate_with_schema_and_raw(url: str) -> None:
    reply = post(url, "/api/generate", prompt="A person", format=PERSON, stream=False, options={"num_predict": 60})
    jsonschema.validate(json.loads(reply["response"]), PERSON)
    assert post(url, "/api/generate", prompt="The sea", raw=True, stream=False, options={"num_predict": 4})["response"]


def test_ollama_tools_and_their_outputs(url: str) -> None:
    reply = post(url, "/api/chat", **CITY, tools=[OLLAMA_WEATHER], stream=False)
    for call in reply["message"].get("tool_calls", ()):
        assert isinstance(call["function"]["arguments"]["city"], str)
    call = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    messages = [
        *CITY["messages"],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "sunny"},
    ]
    assert post(url, "/api/chat", messages=messages, stream=False, options={"num_predict": 8})["message"]["content"]


def test_ollama_models(url: str) -> None:
    names = [model["name"] for model in http.get(f"{url}/api/tags").json()["models"]]
    assert names == ["nano:latest", "nano:pages:latest", "tiny:latest"]
    shown = post(url, "/api/show", model="nano:latest")
    assert "tools" in shown["capabilities"]
    assert "version" in http.get(f"{url}/api/version").json()
    unknown = http.post(f"{url}/api/chat", json={"model": "nanoo", **ASK})
    assert unknown.status_code == 404
    assert "did you mean 'nano'" in unknown.json()["error"]


def test_anthropic_message(url: str) -> None:
    reply = post(url, "/v1/messages", **ASK, max_tokens=12, system=[{"type": "text", "text": "Be brief."}])
    assert (reply["type"], reply["role"]) == ("message", "assistant")
    assert reply["content"][0]["text"]
    assert reply["stop_reason"] in ("end_turn", "max_tokens")
    counted = post(url, "/v1/messages/count_tokens", **ASK, system="Be brief.")
    assert counted["input_tokens"] == reply["usage"]["input_tokens"] + reply["usage"]["cache_read_input_tokens"]


def test_anthropic_stream_adds_up(url: str) -> None:
    streamed = events(url, **ASK)
    kinds = [kind for kind, _ in streamed]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(data["delta"]["text"] for kind, data in streamed if kind == "content_block_delta")
    assert text == post(url, "/v1/messages", **ASK, max_tokens=24)["content"][0]["text"]


def test_anthropic_tools(url: str) -> None:
    options = {**CITY, "max_tokens": 200, "tools": [WEATHER], "tool_choice": {"type": "tool", "name": "weather"}}
    reply = post(url, "/v1/messages", **options)
    assert reply["stop_reason"] == "tool_use"
    block = reply["content"][0]
    assert block["input"].keys() == {"city"}
    deltas = [data["delta"]["partial_json"] for kind, data in events(url, **options) if kind == "content_block_delta"]
    assert json.loads(deltas[0]) == block["input"]
    messages = [
        *CITY["messages"],
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block["id"], "content": "sunny"}]},
    ]
    assert post(url, "/v1/messages", messages=messages, max_tokens=8)["content"]


def test_anthropic_stop_sequence(url: str) -> None:
    text = post(url, "/v1/messages", **ASK, max_tokens=12)["content"][0]["text"]
    reply = post(url, "/v1/messages", **ASK, max_tokens=12, stop_sequences=[text[4:7]])
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", text[4:7])


@pytest.mark.parametrize("path", ["/api/chat", "/v1/messages"])
@pytest.mark.parametrize(("model", "problem"), [("tiny", "does not support images"), ("nano", "not in a format")])
def test_images_are_refused_in_the_form_of_the_api(url: str, path: str, model: str, problem: str) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    message = {"role": "user", "content": [image]} if path == "/v1/messages" else {"role": "user", "images": ["AA=="]}
    reply = http.post(f"{url}{path}", json={"model": model, "messages": [message], "max_tokens": 2})
    assert reply.status_code == 400
    assert problem in json.dumps(reply.json())


def test_stop_texts_are_limited_in_all_apis(url: str) -> None:
    stops, messages = ["x"] * 17, [{"role": "user", "content": "Hello"}]
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/api/chat", {"messages": messages, "options": {"stop": stops}}),
        ("/v1/messages", {"messages": messages, "max_tokens": 2, "stop_sequences": stops}),
        ("/v1/completions", {"prompt": "a", "stop": stops}),
    ]
    for path, body in requests:
        assert http.post(f"{url}{path}", json=body).status_code == 400
