"""The memory of caches and vision encoders counts in admission, and is freed for requests that need it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from servers import http, running_server
from test_served_images import encoded
from tiny_bundles import write_multimodal_bundle, write_native_bundle, write_random_adapter

import openafm as fm
from openafm.adapters.package import write_adapter
from openafm.adapters.store import install_adapter
from openafm.framework.backends.loaded_model import LoadedModel
from openafm.serving.admission import Admission, SharedMemory
from openafm.serving.errors import ApiError
from openafm.serving.models import ModelCatalog


class HeldCaches:
    """Caches of a number of bytes that record what is freed."""

    def __init__(self, cached_bytes: int) -> None:
        self.cached_bytes = cached_bytes
        self.freed: list[int] = []

    def free_cached(self, num_bytes: int) -> None:
        self.freed.append(num_bytes)
        self.cached_bytes -= num_bytes


def test_admission_frees_caches_before_shared_memory_and_no_more_than_needed() -> None:
    freed: list[str] = []
    adapter = SharedMemory(key="x", name="its adapter", num_bytes=3, free=lambda: freed.append("x"))

    async def run() -> None:
        caches = HeldCaches(5)
        admission = Admission(kv_bytes=10, max_running=9, max_waiting=9, queue_seconds=0.05, caches=caches)
        async with admission.admitted(3, shared=[adapter]):
            assert (admission.used_bytes, caches.freed) == (6, [1])
        async with admission.admitted(5):
            assert (admission.used_bytes, freed, caches.freed) == (8, [], [1, 2])
            with pytest.raises(ApiError, match="busy"):  # nothing is freed if that is not enough
                async with admission.admitted(6):
                    pass
            assert (freed, caches.cached_bytes) == ([], 2)
            async with admission.admitted(5):
                assert (admission.used_bytes, freed, caches.cached_bytes) == (10, ["x"], 0)
        assert admission.used_bytes == 0

    asyncio.run(run())


def metric(url: str, name: str) -> float:
    found = re.search(rf"^openafm:{name} (.+)$", http.get(f"{url}/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def ask(url: str, content: Any, max_tokens: int = 4) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": max_tokens}
    return http.post(f"{url}/v1/chat/completions", json=body, timeout=60)


def test_stored_prefixes_are_freed_for_answers(tmp_path: Path) -> None:
    bundle = write_native_bundle(tmp_path / "cached")
    per_token = ModelCatalog([str(bundle.path)]).find(None).kv_bytes_per_token
    with running_server(models=(str(bundle.path),)) as url:
        for number in range(8):
            assert ask(url, f"{number} " * 24).status_code == 200
        grown = metric(url, "cached_bytes")
    fm.SystemLanguageModel(bundle=bundle.path).load().free_cached(1 << 30)  # models stay loaded in this process
    budget = 160 * per_token
    assert grown > budget
    with running_server(models=(str(bundle.path),), kv_bytes=budget) as url:
        for number in range(8):
            assert ask(url, f"{number} " * 24).status_code == 200
            assert 0 < metric(url, "cached_bytes") <= budget
        room = bundle.config.context_length
        assert ask(url, "more", room).status_code == 400
        assert ask(url, "0 " * 24).status_code == 200


def image(color: str) -> list[dict[str, Any]]:
    return [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded(color)}"}}]


def test_a_vision_encoder_counts_once_an_image_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_ENGINE", "native")  # torch loads the encoder with the model
    bundle = write_multimodal_bundle(tmp_path / "seeing")
    num_bytes = 4 * bundle.config.other_parameters()
    with running_server(models=(str(bundle.path),), kv_bytes=8 * num_bytes) as url:
        assert ask(url, "the").status_code == 200
        assert metric(url, "kv_cache_usage_perc") == 0
        for color in ("red", "blue"):
            assert ask(url, image(color)).status_code == 200
            assert metric(url, "kv_cache_usage_perc") == pytest.approx(1 / 8)
    with running_server(models=(str(bundle.path),), kv_bytes=num_bytes) as url:
        assert ask(url, "the").status_code == 200
        refused = ask(url, image("red"))
        assert refused.status_code == 400
        assert "for the vision encoder" in refused.json()["error"]["message"]


def test_a_loaded_model_frees_embeddings_of_images_before_prefixes(tmp_path: Path) -> None:
    bundle = write_multimodal_bundle(tmp_path / "seeing")
    with running_server(models=(str(bundle.path),)) as url:
        assert ask(url, image("red")).status_code == 200
        model: LoadedModel = fm.SystemLanguageModel(bundle=bundle.path).load()
        prefixes = model.prefixes.num_bytes
        images = model.cached_bytes - prefixes
        assert min(prefixes, images) > 0
        assert model.free_cached(images) == images
        assert model.cached_bytes == prefixes
        assert model.free_cached(1) > 0


def test_the_draft_model_of_an_adapter_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    bundle = write_native_bundle(tmp_path / "served")
    plain = write_random_adapter(tmp_path / "plain", bundle, name="plain")
    write_adapter(
        tmp_path / "drafted",
        weights=plain.weights(),
        config=plain.config,
        base_signature=bundle.signature,
        name="drafted",
        draft=bundle.path,
    )
    for name in ("plain", "drafted"):
        install_adapter(tmp_path / name)
    catalog = ModelCatalog([str(bundle.path)])
    plain_model, drafted_model = (catalog.find(f"served:{name}") for name in ("plain", "drafted"))
    assert plain_model.answer_bytes_per_token == plain_model.kv_bytes_per_token
    assert drafted_model.answer_bytes_per_token == 2 * drafted_model.kv_bytes_per_token  # the draft is the bundle itself
    sizes = [sum(each.num_bytes for each in catalog.shared_memory(model, False)) for model in (plain_model, drafted_model)]
    assert sizes[1] - sizes[0] == sum(path.stat().st_size for path in bundle.path.glob("*.safetensors")) > 0
    enough = sizes[1] + 120 * drafted_model.answer_bytes_per_token
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 80}
    with running_server(models=(str(bundle.path),), kv_bytes=enough) as url:
        replies = {
            name: http.post(f"{url}/v1/chat/completions", json=body | {"model": f"served:{name}"}, timeout=60)
            for name in ("plain", "drafted")
        }
        assert [reply.status_code for reply in replies.values()] == [200, 200]
        texts = {reply.json()["choices"][0]["message"]["content"] for reply in replies.values()}
        assert len(texts) == 1  # drafts change no answer
    with running_server(models=(str(bundle.path),), kv_bytes=enough - 60 * drafted_model.kv_bytes_per_token) as url:
        assert http.post(f"{url}/v1/chat/completions", json=body | {"model": "served:plain"}).status_code == 200
        assert http.post(f"{url}/v1/chat/completions", json=body | {"model": "served:drafted"}).status_code == 400
