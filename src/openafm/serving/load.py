"""A load generator for any OpenAI-compatible endpoint: streamed chats at a number of users or an arrival rate."""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from openafm.core.errors import UsageError
from openafm.core.libraries import needed

if TYPE_CHECKING:
    import httpx2

PROMPTS = (
    "Write a short note about a walk along the sea.",
    "List three things to pack for a weekend in the mountains.",
    "Explain why the sky is blue to a child.",
    "Plan dinner for two on a rainy evening.",
    "Describe a train station early in the morning.",
    "Suggest a name for a small bakery and say why.",
    "Give advice to a friend who starts to learn the piano.",
    "Summarize the story of a lost dog that finds its way home.",
)
_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, kw_only=True)
class LoadConfig:
    """Hold the settings of a run.

    Attributes:
        url: the base URL of the API, with /v1.
        num_users: chats at a time; with `rate`, the limit of open chats.
        rate: arrivals a second, as a Poisson process; None: a user sends the next request after the last answer.
        schema: JSON Schema of typed answers; None: text.
    """

    url: str
    model: str | None = None
    key: str = ""
    num_requests: int = 32
    num_users: int = 8
    rate: float | None = None
    max_tokens: int = 64
    prompts: Sequence[str] = PROMPTS
    schema: dict[str, Any] | None = None
    timeout_seconds: float = 300.0
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            is_url = self.url.startswith(("http://", "https://")) and urlsplit(self.url).port != 0
        except ValueError:  # a port that is no number
            is_url = False
        if not is_url:
            raise UsageError(f"'{self.url}' is not a URL; pass the base URL of the API, such as http://localhost:8000/v1")
        if min(self.num_requests, self.num_users, self.max_tokens) < 1 or (self.rate is not None and self.rate <= 0):
            raise UsageError("the numbers of requests, users and tokens, and the rate, must be positive")


@dataclass
class ChatTiming:
    """The times of one chat: start, events with text, end; its tokens; and its error if it failed."""

    started: float
    events: list[float] = field(default_factory=list)
    ended: float = 0.0
    num_tokens: int = 0
    error: str = ""
    has_reply: bool = False


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """Hold the figures of a run. Times are in milliseconds: to the first text, and between events with text."""

    num_requests: int
    num_failed: int
    errors: dict[str, int]
    seconds: float
    tokens: int
    tokens_per_second: float
    requests_per_second: float
    ttft_ms: dict[str, float]
    itl_ms: dict[str, float]
    latency_ms: dict[str, float]


async def run_load(config: LoadConfig) -> LoadReport:
    """Send the requests of a run and return its figures.

    Raises:
        MissingLibraryError: no HTTP client is installed.
    """
    with needed("the load generator", "httpx2", "serve"):
        import httpx2
    headers = {"Authorization": f"Bearer {config.key}"} if config.key else {}
    limits = httpx2.Limits(max_connections=config.num_users, max_keepalive_connections=config.num_users)
    places = asyncio.Semaphore(config.num_users)
    source = random.Random(0)
    started = due = time.perf_counter()
    async with httpx2.AsyncClient(headers=headers, timeout=config.timeout_seconds, limits=limits, trust_env=False) as client:
        chats = []
        for number in range(config.num_requests):
            if config.rate is not None:
                due += source.expovariate(config.rate)
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await places.acquire()
            # With a rate, a chat that waits for a place has already arrived: the wait is part of its times.
            begun = time.perf_counter() if config.rate is None else due
            chats.append(asyncio.ensure_future(_chat(client, config, number, begun)))
            chats[-1].add_done_callback(lambda _: places.release())
        timings = await asyncio.gather(*chats)
    return _report(timings, time.perf_counter() - started)


async def _chat(client: httpx2.AsyncClient, config: LoadConfig, number: int, started: float) -> ChatTiming:
    import httpx2

    timing = ChatTiming(started)
    try:
        try:
            await _ask(client, config, number, timing)
        except httpx2.RemoteProtocolError:
            if timing.has_reply:
                raise
            await _ask(client, config, number, timing)  # the server closed an idle connection
    except httpx2.HTTPError as error:
        timing.error = type(error).__name__
    timing.ended = time.perf_counter()
    return timing


async def _ask(client: httpx2.AsyncClient, config: LoadConfig, number: int, timing: ChatTiming) -> None:
    async with client.stream("POST", f"{config.url.rstrip('/')}/chat/completions", json=_body(config, number)) as reply:
        timing.has_reply = True
        if reply.status_code != 200:
            await reply.aread()
            timing.error = f"status {reply.status_code}"
            return
        async for line in reply.aiter_lines():
            _read(line, timing)


def _read(line: str, timing: ChatTiming) -> None:
    """Record a line of the stream."""
    if not line.startswith("data: ") or line == "data: [DONE]":
        return
    event = json.loads(line.removeprefix("data: "))
    if "error" in event:
        timing.error = "error in the stream"
        return
    if any(choice["delta"].get("content") or choice["delta"].get("tool_calls") for choice in event.get("choices", ())):
        timing.events.append(time.perf_counter())
    if event.get("usage"):
        timing.num_tokens = event["usage"]["completion_tokens"]


def _body(config: LoadConfig, number: int) -> dict[str, Any]:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": config.prompts[number % len(config.prompts)]}],
        "max_tokens": config.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }
    if config.model is not None:
        body["model"] = config.model
    if config.schema is not None:
        schema = {"name": "answer", "strict": True, "schema": config.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body | config.extra


def _report(timings: Sequence[ChatTiming], seconds: float) -> LoadReport:
    answered = [timing for timing in timings if not timing.error and timing.events]
    errors = [timing.error or "no text" for timing in timings if timing.error or not timing.events]
    tokens = sum(timing.num_tokens or len(timing.events) for timing in answered)
    gaps = [later - earlier for timing in answered for earlier, later in pairwise(timing.events)]
    return LoadReport(
        num_requests=len(timings),
        num_failed=len(errors),
        errors={error: errors.count(error) for error in sorted(set(errors))},
        seconds=round(seconds, 3),
        tokens=tokens,
        tokens_per_second=round(tokens / seconds, 1),
        requests_per_second=round(len(answered) / seconds, 2),
        ttft_ms=_percentiles([timing.events[0] - timing.started for timing in answered]),
        itl_ms=_percentiles(gaps),
        latency_ms=_percentiles([timing.ended - timing.started for timing in answered]),
    )


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the mean and percentiles in milliseconds; empty without values."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    values = {f"p{p}": ordered[math.ceil(len(ordered) * p / 100) - 1] for p in _PERCENTILES}
    return {name: round(1000 * value, 2) for name, value in ({"mean": statistics.fmean(ordered)} | values).items()}
