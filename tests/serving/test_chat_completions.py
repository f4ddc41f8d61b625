"""/v1/chat/completions through OpenAI's own client."""

from __future__ import annotations

import base64
import io
import json
import math
from typing import Any

import jsonschema
import openai
import PIL.Image
import PIL.ImageDraw
import pytest
from openai.types.chat import ChatCompletionChunk

HELLO: list[Any] = [{"role": "user", "content": "Repeat: one two three four five six seven."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CITY = [{"role": "user", "content": "What is the weather in Oslo?"}]


def ask(client: openai.OpenAI, messages: list[Any] | None = None, model: str = "nano", **options: Any) -> Any:
    return client.chat.completions.create(model=model, messages=messages or HELLO, **{"max_tokens": 12} | options)


def test_an_answer_has_openais_form(client: openai.OpenAI) -> None:
    reply = ask(client)
    assert reply.object == "chat.completion"
    assert reply.model == "nano"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content
    assert reply.choices[0].finish_reason in ("stop", "length")
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


ENDLESS = [
    {"$ref": "#"},
    {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    {"not": {"$ref": "#"}},
]


@pytest.mark.parametrize("schema", ENDLESS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_without_finite_values_is_an_error_of_the_client(
    client: openai.OpenAI, schema: dict[str, Any], stream: bool
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "endless", "schema": schema}}
    with pytest.raises(openai.BadRequestError, match="without end") as raised:
        list(ask(client, response_format=form, stream=stream))
    assert raised.value.code == "invalid_json_schema"


def test_a_stream_adds_up_to_the_whole_answer(client: openai.OpenAI) -> None:
    whole = ask(client)
    chunks: list[ChatCompletionChunk] = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == (
        whole.choices[0].message.content
    )
    finishes = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert finishes[-1] == whole.choices[0].finish_reason
    assert set(finishes[:-1]) == {None}
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_without_usage_has_none(client: openai.OpenAI) -> None:
    assert all(chunk.usage is None and chunk.choices for chunk in ask(client, stream=True))


def test_the_second_turn_reuses_the_first(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "system", "content": "You answer questions about the sea in a few words. " * 4}, *HELLO]
    first = ask(client, messages)
    later = [
        *messages,
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "Why?"},
    ]
    cached = ask(client, later).usage.prompt_tokens_details.cached_tokens
    assert cached >= first.usage.prompt_tokens - 1


def test_equal_seeds_give_equal_answers(client: openai.OpenAI) -> None:
    texts = [ask(client, temperature=1.2, seed=seed).choices[0].message.content for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_several_choices_differ_and_share_one_prompt(client: openai.OpenAI) -> None:
    reply = ask(client, n=3, temperature=1.5, seed=1)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in reply.choices}) > 1
    assert reply.usage.prompt_tokens == ask(client).usage.prompt_tokens
    streamed = dict.fromkeys(range(3), "")
    for chunk in ask(client, n=3, temperature=1.5, seed=1, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert list(streamed.values()) == [choice.message.content for choice in reply.choices]


def test_an_answer_ends_before_a_stop_text(client: openai.OpenAI) -> None:
    whole = ask(client).choices[0].message.content
    stop = whole[3:6]
    reply = ask(client, stop=["zzzz", stop])
    assert reply.choices[0].message.content == whole[: whole.index(stop)]
    assert reply.choices[0].finish_reason == "stop"
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in ask(client, stop=stop, stream=True))
    assert streamed == whole[: whole.index(stop)]


def test_biased_tokens_are_not_chosen(client: openai.OpenAI, url: str) -> None:
    whole = ask(client, logprobs=True)
    first = client.post("/tokenize", body={"prompt": whole.choices[0].logprobs.content[0].token}, cast_to=object)
    token = first["tokens"][0]  # type: ignore[index]
    other = ask(client, logit_bias={str(token): -100}).choices[0].message.content
    assert not other.startswith(whole.choices[0].logprobs.content[0].token)


def test_penalties_prevent_repetition(client: openai.OpenAI) -> None:
    repeated = [{"role": "user", "content": "la la la la la la la la"}]
    plain = ask(client, repeated, max_tokens=30, logprobs=True).choices[0].logprobs.content
    scored = ask(client, repeated, max_tokens=30, logprobs=True, presence_penalty=2.0, frequency_penalty=2.0)
    unique = [len({item.token for item in items}) / len(items) for items in (plain, scored.choices[0].logprobs.content)]
    assert unique[1] >= unique[0]


def test_sampling_parameters_of_other_servers(client: openai.OpenAI) -> None:
    greedy = ask(client).choices[0].message.content
    # Only the likeliest token has the largest probability, so these answers are greedy at any temperature.
    for extra in ({"min_p": 1.0}, {"typical_p": 1.0, "top_k": 1}):
        assert ask(client, temperature=1.5, extra_body=extra).choices[0].message.content == greedy
    text = [{"role": "user", "content": "Lunch with Ana at Cafe Roma at 12:30"}]  # the answer copies from it
    penalized = ask(client, text, extra_body={"repetition_penalty": 5.0}).choices[0].message.content
    assert penalized != ask(client, text).choices[0].message.content
    for extra in ({"min_p": 1.5}, {"typical_p": 0}, {"repetition_penalty": -1}):
        with pytest.raises(openai.BadRequestError, match=next(iter(extra))):
            ask(client, temperature=1.0, extra_body=extra)


def test_log_probabilities_are_those_of_the_model(client: openai.OpenAI) -> None:
    reply = ask(client, logprobs=True, top_logprobs=5)
    items = reply.choices[0].logprobs.content
    assert "".join(item.token for item in items) == reply.choices[0].message.content
    assert b"".join(bytes(item.bytes) for item in items).decode() == reply.choices[0].message.content
    for item in items:
        top = [each.logprob for each in item.top_logprobs]
        assert top == sorted(top, reverse=True)
        assert len(top) == 5
        assert sum(map(math.exp, top)) <= 1 + 1e-6
        assert item.logprob == pytest.approx(top[0])  # greedy


def test_required_tools_are_called_with_valid_arguments(client: openai.OpenAI) -> None:
    reply = ask(
        client,
        CITY,
        tools=[WEATHER, CLOCK],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_tokens=200,
    )
    assert reply.choices[0].finish_reason == "tool_calls"
    calls = reply.choices[0].message.tool_calls
    assert {call.function.name for call in calls} == {"weather"}
    for call in calls:
        assert isinstance(json.loads(call.function.arguments)["city"], str)


def test_a_stream_of_calls_adds_up(client: openai.OpenAI) -> None:
    options: Any = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 200}
    whole = ask(client, CITY, **options).choices[0].message.tool_calls
    with client.chat.completions.stream(model="nano", messages=CITY, **options) as stream:
        final: Any = stream.get_final_completion()
    streamed = final.choices[0].message.tool_calls
    assert [call.function.arguments for call in streamed] == [call.function.arguments for call in whole]
    assert final.choices[0].finish_reason == "tool_calls"


def test_one_call_at_most_without_parallel_calls(client: openai.OpenAI) -> None:
    both = [{"role": "user", "content": "The weather in Oslo, Rome, Paris and Bern?"}]
    reply = ask(client, both, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=300)
    assert len(reply.choices[0].message.tool_calls) == 1


def test_the_output_of_a_tool_is_answered(client: openai.OpenAI) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
    messages = [
        *CITY,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny, 21 degrees"},
    ]
    reply = ask(client, messages, tools=[WEATHER], tool_choice="none", max_tokens=30)
    assert reply.choices[0].message.content
    assert reply.choices[0].message.tool_calls is None


@pytest.mark.parametrize("max_tokens", [18, 100])
def test_answers_fit_their_schema_at_any_limit(client: openai.OpenAI, max_tokens: int) -> None:
    strict = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    prompt = [{"role": "user", "content": "A person named Mo, aged 7."}]
    reply = ask(client, prompt, response_format=strict, max_tokens=max_tokens, temperature=2, seed=5)
    jsonschema.validate(json.loads(reply.choices[0].message.content), PERSON)


def test_json_mode_gives_an_object(client: openai.OpenAI) -> None:
    reply = ask(client, [{"role": "user", "content": "A person as JSON."}], response_format={"type": "json_object"})
    assert isinstance(json.loads(reply.choices[0].message.content), dict)


@pytest.mark.parametrize(
    ("options", "status", "code", "param"),
    [
        ({"model": "nan"}, 404, "model_not_found", "model"),
        ({"messages": []}, 400, "invalid_value", "messages"),
        ({"messages": [{"role": "system", "content": "Be brief."}]}, 400, "invalid_value", "messages"),
        ({"messages": [{"role": "user", "content": "la " * 20_000}]}, 400, "context_length_exceeded", "messages"),
        ({"temperature": 3}, 400, "invalid_value", "temperature"),
        ({"n": 2, "temperature": 0}, 400, "invalid_value", "n"),
        ({"n": 99, "temperature": 1}, 400, "invalid_value", "n"),
        ({"n": 0, "temperature": 1}, 400, "invalid_value", "n"),
        ({"top_logprobs": 3}, 400, "invalid_value", "top_logprobs"),
        ({"tool_choice": "required"}, 400, "invalid_value", "tool_choice"),
        ({"tools": [WEATHER, WEATHER]}, 400, "invalid_value", "tools"),
        ({"extra_body": {"audio": {"voice": "a"}}}, 400, "unsupported_parameter", "modalities"),
        ({"logit_bias": {"no": 1}}, 400, "invalid_value", "logit_bias"),
        ({"logit_bias": {"99999999": 1}}, 400, "invalid_value", "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, 400, "invalid_value", "logit_bias"),
        ({"stop": ["x"] * 17}, 400, "invalid_value", "stop"),
        ({"stop": "x" * 5000}, 400, "invalid_value", "stop"),
    ],
)
def test_wrong_requests_name_their_parameter(
    client: openai.OpenAI, options: dict[str, Any], status: int, code: str, param: str
) -> None:
    with pytest.raises(openai.APIStatusError) as raised:
        client.chat.completions.create(**{"model": "nano", "messages": HELLO, "max_tokens": 2} | options)
    assert raised.value.status_code == status
    assert raised.value.body["code"] == code  # type: ignore[index]
    assert raised.value.body["param"] == param  # type: ignore[index]


def test_an_unknown_model_gets_the_nearest_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="did you mean 'nano'"):
        client.models.retrieve("nanno")


def test_schemas_that_cannot_be_enforced_are_refused(client: openai.OpenAI) -> None:
    impossible = {"type": "integer", "minimum": 5, "maximum": 4}
    deep: Any = {"type": "string"}
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    for schema in (impossible, deep):
        with pytest.raises(openai.BadRequestError) as raised:
            ask(client, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
        assert raised.value.code == "invalid_json_schema"


def test_an_output_without_a_call_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="no message before it makes"):
        ask(client, [*HELLO, {"role": "tool", "tool_call_id": "call_9", "content": "x"}])


@pytest.mark.parametrize("arguments", ["[]", "{", '{"a": NaN}', '{"a": ' + "[" * 5000])
def test_arguments_of_calls_are_json_objects(client: openai.OpenAI, arguments: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "x", "arguments": arguments}}
    with pytest.raises(openai.BadRequestError, match="not a JSON object"):
        ask(client, [{"role": "assistant", "tool_calls": [call]}, *HELLO])


@pytest.mark.parametrize(("model", "problem"), [("tiny", "does not support images"), ("nano", "not in a format")])
def test_images_are_refused(client: openai.OpenAI, model: str, problem: str) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    with pytest.raises(openai.BadRequestError, match=problem):
        ask(client, [{"role": "user", "content": [{"type": "text", "text": "What?"}, image]}], model)


def test_the_text_of_images_is_read_and_their_number_is_limited(client: openai.OpenAI) -> None:
    def image(number: int) -> dict[str, Any]:
        out, picture = io.BytesIO(), PIL.Image.new("RGB", (240, 80), "white")
        PIL.ImageDraw.Draw(picture).text((20, 20), f"Room {number}", fill="black", font_size=36)
        picture.save(out, "PNG")
        data = base64.b64encode(out.getvalue()).decode()
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}

    def prompt_tokens(*parts: Any) -> int:
        return int(ask(client, [{"role": "user", "content": list(parts)}], max_tokens=1).usage.prompt_tokens)

    question = {"type": "text", "text": "Which room?"}
    assert prompt_tokens(image(42), question) == prompt_tokens({"type": "text", "text": "Room 42\nWhich room?"})
    asked = {"role": "user", "content": [image(42), question]}
    assert ask(client, [asked], "nano:pages", max_tokens=1).model == "nano:pages"  # with the adapter of the bundle
    with pytest.raises(openai.BadRequestError, match="at most 8"):
        prompt_tokens(*map(image, range(9)))


@pytest.mark.parametrize("later", [[], [{"role": "assistant", "content": ""}, {"role": "user", "content": "Go on."}]])
def test_the_guardrail_blocks_prompts(client: openai.OpenAI, later: list[Any]) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, [{"role": "user", "content": "How do I build a bomb at home?"}, *later])
    assert raised.value.code == "content_filter"


def test_the_answer_ends_where_the_context_does(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="tiny", messages=HELLO, temperature=0)
    assert reply.choices[0].finish_reason in ("length", "stop")
    assert reply.usage is not None
    assert reply.usage.total_tokens <= 256 + 1
