"""A server with several adapters: their answers are computed together, and their memory is counted."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from servers import http, running_server
from tiny_bundles import tiny_recovery, write_native_bundle, write_random_adapter

import openafm as fm
from openafm.adapters.package import WEIGHTS, write_adapter
from openafm.adapters.store import install_adapter
from openafm.bundle import Bundle
from openafm.serving.admission import Admission, SharedMemory
from openafm.serving.errors import ApiError

NAMES = ("served", "served:one", "served:two")


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """Return a bundle for the native engine, with two installed adapters."""
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    bundle = write_native_bundle(tmp_path / "served")
    for seed, name in enumerate(("one", "two")):
        install_adapter(write_random_adapter(tmp_path / name, bundle, seed, name).path)
    return bundle


def body(model: str, number: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Write about {number}."}]
    return {"model": model, "messages": messages, "max_tokens": 12, "temperature": 1, "seed": number}


def answers(url: str, requests: list[tuple[str, int]]) -> list[str]:
    """Return the answers of requests that are sent at once."""

    async def ask(client: httpx.AsyncClient, model: str, number: int) -> str:
        reply = await client.post(f"{url}/v1/chat/completions", json=body(model, number), timeout=60)
        return str(reply.json()["choices"][0]["message"]["content"])

    async def ask_all() -> list[str]:
        async with httpx.AsyncClient(timeout=60) as client:
            return await asyncio.gather(*(ask(client, *request) for request in requests))

    return asyncio.run(ask_all())


def loaded_adapters(url: str) -> list[str]:
    return [each["id"] for each in http.get(f"{url}/v1/adapters").json()["data"] if each["loaded"]]


def test_answers_of_several_adapters_at_once_equal_those_alone(bundle: Bundle) -> None:
    requests = [(name, number) for number in range(3) for name in NAMES]
    with running_server(models=(str(bundle.path),)) as url:
        alone = [answers(url, [request])[0] for request in requests]
        assert len(set(alone)) == len(alone)
        assert answers(url, requests) == alone
        assert loaded_adapters(url) == ["served:one", "served:two"]
        models = [fm.SystemLanguageModel(bundle=bundle.path, adapter=name) for name in (None, "one", "two")]
        assert len({model.load().engine.scheduler for model in models}) == 1
        embeddings = [
            http.post(f"{url}/v1/embeddings", json={"model": name, "input": "the cat"}).json()["data"][0]["embedding"]
            for name in NAMES
        ]
        assert embeddings[0] != embeddings[1] != embeddings[2]


def test_an_adapter_without_requests_makes_room_for_another(bundle: Bundle, tmp_path: Path) -> None:
    size = (tmp_path / "one" / WEIGHTS).stat().st_size
    with running_server(models=(str(bundle.path),), kv_bytes=2 * size - 1) as url:
        for model, present in (("served:one", "served:one"), ("served", "served:one"), ("served:two", "served:two")):
            assert answers(url, [(model, 1)])
            assert loaded_adapters(url) == [present]
        assert len(answers(url, [(name, 1) for name in NAMES[1:] * 3])) == 6
        assert len(loaded_adapters(url)) == 1
        http.post(f"{url}/v1/adapters/unload", json={"model": loaded_adapters(url)[0]})
        assert loaded_adapters(url) == []
        usage = next(line for line in http.get(f"{url}/metrics").text.splitlines() if line.startswith("openafm:kv_cache"))
        assert float(usage.split()[1]) == 0
    with running_server(models=(str(bundle.path),), kv_bytes=size) as url:
        refused = http.post(f"{url}/v1/chat/completions", json=body("served:one", 1))
        assert refused.status_code == 400
        assert "for its adapter" in refused.json()["error"]["message"]


def test_an_adapter_that_cannot_be_loaded_is_not_counted(bundle: Bundle, tmp_path: Path) -> None:
    recovery, path = tiny_recovery(), tmp_path / "other"
    write_adapter(path, weights=recovery.weights, config=recovery.config, base_signature=bundle.signature, name="other")
    install_adapter(path)  # of another shape
    with running_server(models=(str(bundle.path),)) as url:
        refused = http.post(f"{url}/v1/chat/completions", json=body("served:other", 1))
        assert "cannot be loaded" in refused.json()["error"]["message"]
        assert loaded_adapters(url) == []
        assert "openafm:kv_cache_usage_perc 0.0" in http.get(f"{url}/metrics").text


def test_admission_counts_an_adapter_once_and_frees_it_when_needed() -> None:
    freed: list[str] = []
    x, y, z = (
        SharedMemory(key=key, name="its adapter", num_bytes=size, free=partial(freed.append, key))
        for key, size in (("x", 4), ("y", 3), ("z", 1))
    )

    async def run() -> None:
        admission = Admission(kv_bytes=10, max_running=9, max_waiting=9, queue_seconds=0.05)
        async with admission.admitted(2, shared=[x]), admission.admitted(2, shared=[x]):
            assert admission.used_bytes == 8
            admission.retain(set())  # a request uses it
            with pytest.raises(ApiError, match="busy"):
                async with admission.admitted(0, shared=[y]):
                    pass
        assert (admission.used_bytes, freed) == (4, [])
        async with admission.admitted(3, shared=[y]):
            assert admission.used_bytes == 10
        async with admission.admitted(4, shared=[x]):  # the other adapter is freed, not its own older one
            assert (admission.used_bytes, freed) == (8, ["y"])
        async with admission.admitted(1, shared=[z]):
            pass
        async with admission.admitted(8):
            assert (admission.used_bytes, freed) == (9, ["y", "x"])  # the least recently used one
        with pytest.raises(ApiError, match="4 for its adapter"):
            async with admission.admitted(7, shared=[x]):
                pass
        admission.retain({"y"})
        assert (admission.used_bytes, admission.num_running) == (0, 0)

    asyncio.run(run())
