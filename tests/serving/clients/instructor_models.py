"""Instructor: a pydantic model from a chat, by tools and by JSON Schema."""

import sys

import instructor
import openai
from pydantic import BaseModel


class Event(BaseModel):
    title: str
    time: str


for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="unused"), mode=mode)
    messages = [{"role": "user", "content": "Lunch with Ana at 12:30"}]
    event = client.chat.completions.create(
        model="nano", messages=messages, response_model=Event, max_tokens=100, max_retries=0, temperature=0
    )
    assert isinstance(event, Event)
