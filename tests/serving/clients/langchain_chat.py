"""LangChain: chat, streaming, structured output, tools."""

import sys

from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Event(BaseModel):
    """An event."""

    title: str
    time: str


def weather(city: str) -> str:
    """The weather in a city."""
    return city


model = ChatOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="unused", model="nano", max_tokens=100, temperature=0)
whole = model.invoke("Hello").content
assert whole
assert "".join(chunk.content for chunk in model.stream("Hello")) == whole
assert isinstance(model.with_structured_output(Event, method="json_schema").invoke("Lunch at 12:30"), Event)
called = model.bind_tools([weather], tool_choice="any").invoke("The weather in Oslo?")
assert called.tool_calls[0]["name"] == "weather"
