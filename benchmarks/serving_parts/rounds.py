"""Rounds of load that alternate between servers, with the processor time of each server."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving_parts.processes import cpu_seconds

from openafm.serving.load import LoadConfig, LoadReport, run_load


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A server under load: its process, its URL with /v1, and what its requests have beside the prompt."""

    pid: int
    url: str
    schema: dict[str, Any] | None = None
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Round:
    """The load of one round on one server. `cpu_ms` and `client_ms` are milliseconds of processor time for each token."""

    report: LoadReport
    cpu_ms: float
    client_ms: float


def run_round(endpoint: Endpoint, *, num_users: int, per_user: int, max_tokens: int) -> Round:
    """Return the figures of one round."""
    config = LoadConfig(
        url=endpoint.url,
        num_requests=per_user * num_users,
        num_users=num_users,
        max_tokens=max_tokens,
        schema=endpoint.schema,
        extra=dict(endpoint.extra or {}),
    )
    server, client = cpu_seconds(endpoint.pid), time.process_time()
    report = asyncio.run(run_load(config))
    tokens = max(report.tokens, 1)
    return Round(
        report=report,
        cpu_ms=1000 * (cpu_seconds(endpoint.pid) - server) / tokens,
        client_ms=1000 * (time.process_time() - client) / tokens,
    )


def alternate(endpoints: Mapping[str, Endpoint], num_rounds: int, **load: int) -> dict[str, list[Round]]:
    """Return the rounds of each server. Their order is reversed from one round to the next."""
    rounds: dict[str, list[Round]] = {name: [] for name in endpoints}
    for number in range(num_rounds):
        for name in list(endpoints) if number % 2 == 0 else reversed(list(endpoints)):
            rounds[name].append(run_round(endpoints[name], **load))
    return rounds


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median, the lowest and the highest value."""
    return {
        "median": round(statistics.median(values), 4),
        "low": round(min(values), 4),
        "high": round(max(values), 4),
    }
