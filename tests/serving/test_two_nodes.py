"""The example of two servers behind a plain load balancer."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import openai
import pytest
from servers import http, running_server


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("two_nodes", Path(__file__).parents[2] / "examples" / "two_nodes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def num_requests(url: str) -> int:
    lines = http.get(f"{url}/metrics").text.splitlines()
    counts = [line for line in lines if line.startswith('openafm:http_replies_total{route="/v1/chat/completions"')]
    return sum(int(float(line.split()[-1])) for line in counts)


def chat(url: str) -> str:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, http_client=None)
    messages: list[Any] = [{"role": "user", "content": "Hello"}]
    stream = client.chat.completions.create(model="nano", messages=messages, max_tokens=6, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    client.close()
    return text


def test_both_nodes_answer_equally_and_one_is_enough(example: ModuleType) -> None:
    async def run(urls: list[str]) -> None:
        async with example.balancer([url.removeprefix("http://") for url in urls]) as balanced:
            answers = {await asyncio.to_thread(chat, balanced) for _ in range(4)}
            assert len(answers) == 1
            assert [num_requests(url) for url in urls] == [2, 2]
        async with example.balancer(["127.0.0.1:1", urls[0].removeprefix("http://")]) as balanced:
            assert {await asyncio.to_thread(chat, balanced) for _ in range(2)} == answers

    with contextlib.ExitStack() as stack:
        asyncio.run(run([stack.enter_context(running_server()) for _ in range(2)]))
