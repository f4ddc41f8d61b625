"""/v1/responses through OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import openai
import pytest
from endpoints import wait_until
from servers import http
from test_chat_completions import PERSON

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "strict": True,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def ask(client: openai.OpenAI, **options: Any) -> Any:
    return client.responses.create(
        **{"model": "nano", "input": "Repeat: one two three four five six seven.", "max_output_tokens": 24} | options
    )


def test_a_response_is_stored_found_and_deleted(client: openai.OpenAI) -> None:
    response = ask(client, metadata={"a": "b"})
    assert response.status in ("completed", "incomplete")
    assert response.output_text
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert client.responses.retrieve(response.id) == response
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(ask(client, store=False).id)


def test_a_stream_adds_up_to_the_response(client: openai.OpenAI) -> None:
    events = list(ask(client, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-1] in ("response.completed", "response.incomplete")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == ask(client).output_text
    assert client.responses.retrieve(events[0].response.id).output_text == text


def test_a_conversation_continues_from_an_earlier_response(client: openai.OpenAI) -> None:
    first = ask(client, instructions="You answer in a few words. " * 8)
    second = ask(client, input="Why?", previous_response_id=first.id, instructions="You answer in a few words. " * 8)
    assert second.usage.input_tokens > first.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens - 1
    with pytest.raises(openai.NotFoundError):
        ask(client, previous_response_id="resp_x")


def test_calls_and_their_outputs(client: openai.OpenAI) -> None:
    question = {"role": "user", "content": "What is the weather in Oslo?"}
    response = ask(client, input=[question], tools=[WEATHER], tool_choice="required", max_output_tokens=200)
    call = response.output[0]
    assert (call.type, call.name, call.status) == ("function_call", "weather", "completed")
    assert json.loads(call.arguments).keys() == {"city"}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    answer = ask(client, input=[output], previous_response_id=response.id, tools=[WEATHER], tool_choice="none")
    assert answer.output_text
    with client.responses.stream(
        model="nano", input=[question], tools=[WEATHER], tool_choice="required", max_output_tokens=200
    ) as stream:  # type: ignore[call-overload]
        assert stream.get_final_response().output[0].arguments == call.arguments


def test_text_fits_its_schema(client: openai.OpenAI) -> None:
    form = {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}
    jsonschema.validate(json.loads(ask(client, input="A person", text=form, max_output_tokens=60).output_text), PERSON)


def test_a_background_response_is_cancelled(client: openai.OpenAI) -> None:
    started = ask(client, background=True, input="Count to one thousand.", max_output_tokens=3000, temperature=2)
    assert started.status in ("queued", "in_progress")
    assert client.responses.cancel(started.id).status in ("cancelled", "completed")
    assert client.responses.retrieve(started.id).status in ("cancelled", "completed")
    short = ask(client, background=True)
    wait_until(lambda: client.responses.retrieve(short.id).status in ("completed", "incomplete"))
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(ask(client).id)


def test_a_failed_request_is_an_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, input="la " * 20_000, stream=True)
    assert raised.value.code == "context_length_exceeded"
    failed = ask(client, input="la " * 20_000, background=True)
    wait_until(lambda: client.responses.retrieve(failed.id).status == "failed")
    assert client.responses.retrieve(failed.id).error is not None


def test_the_oldest_responses_are_dropped(start_server: Callable[..., str]) -> None:
    client = openai.OpenAI(base_url=f"{start_server(max_stored_bytes=4000)}/v1", api_key="unused", max_retries=0)
    ids = [ask(client, input="la " * 1000, max_output_tokens=1).id for _ in range(2)]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(ids[0])
    assert client.responses.retrieve(ids[1]).id == ids[1]


def test_unknown_items_are_refused(url: str) -> None:
    reply = http.post(f"{url}/v1/responses", json={"input": [{"type": "item_reference", "id": "x"}]})
    assert reply.status_code == 400


def test_all_that_a_response_repeats_counts_as_stored(start_server: Callable[..., str]) -> None:
    url = start_server(max_stored_bytes=50_000)
    long = "x" * 40_000
    ids = []
    for _ in range(2):
        body = {"input": "Hello", "max_output_tokens": 1, "metadata": {"a": long}}
        ids.append(http.post(f"{url}/v1/responses", json=body).json()["id"])
    assert [http.get(f"{url}/v1/responses/{id}").status_code for id in ids] == [404, 200]
