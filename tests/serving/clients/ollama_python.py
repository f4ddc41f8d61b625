"""Ollama's Python client: chat, streaming, formats, models."""

import json
import sys

import ollama

client = ollama.Client(host=sys.argv[1])
messages = [{"role": "user", "content": "Hello"}]
whole = client.chat(model="nano", messages=messages, options={"num_predict": 8})
streamed = client.chat(model="nano", messages=messages, options={"num_predict": 8}, stream=True)
assert "".join(part.message.content for part in streamed) == whole.message.content
schema = {"type": "object", "properties": {"title": {"type": "string", "maxLength": 20}}, "required": ["title"]}
typed = client.generate(model="nano", prompt="A title", format=schema, options={"num_predict": 60})
assert json.loads(typed.response).keys() == {"title"}
assert client.list().models[0].model == "nano:latest"
assert client.show("nano").details.family == "openafm"
