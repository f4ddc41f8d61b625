"""Metrics in Prometheus' text format. Names follow vLLM's, so that dashboards adapt by their prefix."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from openafm.serving.admission import Admission
from openafm.serving.inference import Ended
from openafm.serving.models import ModelCatalog

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class Metrics:
    """Counters and times of one server process. They never hold text of requests or answers."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        labels = ("model_name",)
        self._running = Gauge("openafm:num_requests_running", "Requests with running answers", registry=registry)
        self._waiting = Gauge("openafm:num_requests_waiting", "Requests that wait for admission", registry=registry)
        self._kv = Gauge("openafm:kv_cache_usage_perc", "Share of the budget for keys and values", registry=registry)
        self._cached_bytes = Gauge(
            "openafm:cached_bytes", "Bytes of stored prefixes and embeddings of images", registry=registry
        )
        self._models = Gauge("openafm:num_models_loaded", "Models in memory", registry=registry)
        self._prompt = Counter("openafm:prompt_tokens", "Prompt tokens", labels, registry=registry)
        self._cached = Counter("openafm:prefix_cache_hits", "Prompt tokens from the cache", labels, registry=registry)
        self._generated = Counter("openafm:generation_tokens", "Tokens of answers", labels, registry=registry)
        self._finished = Counter(
            "openafm:request_success", "Finished answers", (*labels, "finished_reason"), registry=registry
        )
        self._replies = Counter("openafm:http_replies", "Replies by status", ("route", "status"), registry=registry)
        self._first = Histogram(
            "openafm:time_to_first_token_seconds", "Time to first token", labels, registry=registry, buckets=_SECONDS
        )
        self._between = Histogram(
            "openafm:inter_token_latency_seconds",
            "Mean time between tokens",
            labels,
            registry=registry,
            buckets=_TOKEN_SECONDS,
        )
        self._whole = Histogram(
            "openafm:e2e_request_latency_seconds", "Time of an answer", labels, registry=registry, buckets=_SECONDS
        )

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count a request as running."""
        with self._running.track_inprogress():
            yield

    def record(self, model: str, ended: Ended) -> None:
        """Record a finished answer."""
        self._prompt.labels(model).inc(ended.num_prompt)
        self._cached.labels(model).inc(ended.num_cached)
        self._generated.labels(model).inc(ended.num_generated)
        self._finished.labels(model, ended.finish).inc()
        self._first.labels(model).observe(ended.first_token_s)
        self._whole.labels(model).observe(ended.seconds)
        if ended.num_generated > 1:
            self._between.labels(model).observe((ended.seconds - ended.first_token_s) / (ended.num_generated - 1))

    def record_reply(self, route: str, status: int) -> None:
        """Count a reply. `route` is the template of the path, which holds no content."""
        self._replies.labels(route, str(status)).inc()

    def text(self, admission: Admission, models: ModelCatalog) -> bytes:
        """Return the metrics in Prometheus' text format."""
        self._waiting.set(admission.num_waiting)
        self._kv.set(admission.used_bytes / admission.kv_bytes)
        self._cached_bytes.set(models.cached_bytes)
        self._models.set(models.num_loaded)
        return generate_latest(self._registry)
