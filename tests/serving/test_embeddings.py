"""Embeddings over HTTP and from engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from servers import http
from tiny_bundles import write_native_bundle

from openafm.bundle import open_bundle
from openafm.runtime.engines.base import ContextWindowError, TokenError
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.runtime.native.engine import NativeEngine


def test_engines_agree_and_chunks_do_not_matter(tmp_path: Path) -> None:
    import torch

    bundle = open_bundle(write_native_bundle(tmp_path / "native").path)
    tokens = [1 + number * 7 % 250 for number in range(min(700, bundle.config.context_length))]
    native, reference = NativeEngine(bundle), TorchEngine.open(bundle)
    for count in (1, 5, len(tokens)):
        pooled_D = native.mean_state(tokens[:count])
        assert pooled_D.shape == (bundle.config.dim,)
        np.testing.assert_allclose(pooled_D, reference.mean_state(tokens[:count]), rtol=0.02, atol=0.02)
    with torch.inference_mode():
        hidden_BSD = reference.decoder.hidden(torch.tensor([tokens]))
    np.testing.assert_allclose(reference.mean_state(tokens), hidden_BSD[0].float().mean(0).numpy(), rtol=1e-3, atol=1e-3)
    logits_V = native.step([(sequence := native.new_sequence(), tokens[:5])])[0]  # steps are unaffected
    native.rollback(sequence, 5)
    native.mean_state(tokens)
    np.testing.assert_array_equal(native.step([(sequence, tokens[:5])])[0], logits_V)
    with pytest.raises(TokenError):
        native.mean_state([])
    with pytest.raises(ContextWindowError):
        native.mean_state([1] * (bundle.config.context_length + 1))


def test_the_openai_client_reads_embeddings(client: openai.OpenAI) -> None:
    texts = ["Dinner with Ana at 7", "Dinner with Ana at 8", "Der Himmel ist blau."]
    reply = client.embeddings.create(model="nano", input=texts)  # this client asks for base64
    vectors = np.array([each.embedding for each in reply.data])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    similar, different = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert similar > different
    again = client.embeddings.create(model="nano", input=texts[0], encoding_format="float")
    np.testing.assert_allclose(again.data[0].embedding, vectors[0], atol=1e-6)
    assert reply.usage.prompt_tokens > again.usage.prompt_tokens > 5


@pytest.mark.long
def test_ollamas_routes_give_the_same(url: str) -> None:
    new = http.post(f"{url}/api/embed", json={"model": "nano", "input": ["one", "two"]}).json()
    old = http.post(f"{url}/api/embeddings", json={"model": "nano", "prompt": "two"}).json()
    assert new["embeddings"][1] == old["embedding"]
    long = {"model": "nano", "input": "word " * 6000}
    assert http.post(f"{url}/api/embed", json=long).json()["prompt_eval_count"] == 4095
    assert http.post(f"{url}/api/embed", json=long | {"truncate": False}).status_code == 400


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"input": []}, "1 to 2048"),
        ({"input": ""}, "1 to 2048"),
        ({"input": ["a", ""]}, "1 to 2048"),
        ({"input": "a", "dimensions": 3}, "dimensions"),
        ({"input": [10**9]}, "vocabulary"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "model": "nani"}, "nano"),
    ],
)
def test_wrong_requests_are_refused(url: str, body: dict[str, Any], part: str) -> None:
    reply = http.post(f"{url}/v1/embeddings", json=body)
    assert reply.status_code in (400, 404)
    assert part in reply.json()["error"]["message"]
