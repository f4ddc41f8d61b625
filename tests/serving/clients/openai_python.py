"""OpenAI's Python client: chat, structured outputs with pydantic, responses."""

import sys

import openai
from pydantic import BaseModel


class Event(BaseModel):
    title: str
    time: str


client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="unused")
parsed = client.chat.completions.parse(
    model="nano", messages=[{"role": "user", "content": "Lunch with Ana at 12:30"}], response_format=Event, max_tokens=60
)
assert isinstance(parsed.choices[0].message.parsed, Event)
assert client.responses.create(model="nano", input="Hello", max_output_tokens=5).output_text
