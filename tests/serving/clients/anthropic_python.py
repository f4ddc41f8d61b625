"""Anthropic's Python client: messages, streaming, tools, token counts."""

import sys

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="unused")
messages = [{"role": "user", "content": "Hello"}]
whole = client.messages.create(model="nano", messages=messages, max_tokens=8)
with client.messages.stream(model="nano", messages=messages, max_tokens=8) as stream:
    assert "".join(stream.text_stream) == whole.content[0].text
tool = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
called = client.messages.create(model="nano", messages=messages, max_tokens=100, tools=[tool], tool_choice={"type": "any"})
assert called.stop_reason == "tool_use"
assert called.content[0].name == "weather"
assert client.messages.count_tokens(model="nano", messages=messages).input_tokens > 0
