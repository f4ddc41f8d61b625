"""Images in requests to a model with a vision encoder of random weights."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import openai
import PIL.Image
import pytest
from servers import http, running_server
from tiny_bundles import write_multimodal_bundle

from openafm.framework.transcripts.images import Image
from openafm.serving import inputs


@pytest.fixture(scope="module")
def vision_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = write_multimodal_bundle(tmp_path_factory.mktemp("bundles") / "seeing").path
    with running_server(models=(str(path),)) as url:
        yield url


def encoded(color: str) -> str:
    file = io.BytesIO()
    PIL.Image.new("RGB", (24, 24), color).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def scores(url: str, data: str, detail: str = "auto") -> tuple[list[float], Any]:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}", "detail": detail}}
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "the cat "}, image]}]
    reply = client.chat.completions.create(model="seeing", messages=messages, max_tokens=3, logprobs=True)
    assert reply.choices[0].logprobs is not None
    return [item.logprob for item in reply.choices[0].logprobs.content or ()], reply.usage


def test_the_answer_depends_on_the_image(vision_url: str) -> None:
    red, usage = scores(vision_url, encoded("red"))
    again, cached = scores(vision_url, encoded("red"))
    blue, _ = scores(vision_url, encoded("blue"))
    assert red == again != blue
    assert usage.prompt_tokens == cached.prompt_tokens


def test_detail_chooses_the_tokens_of_an_image(vision_url: str) -> None:
    counts = [scores(vision_url, encoded("red"), detail)[1].prompt_tokens for detail in ("low", "auto", "high")]
    assert counts == sorted(set(counts))


def test_all_apis_read_images(vision_url: str) -> None:
    data = encoded("green")
    item = {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/v1/responses", {"input": [{"role": "user", "content": [item]}], "max_output_tokens": 2}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [block]}], "max_tokens": 2}),
        ("/api/chat", {"messages": [{"role": "user", "images": [data]}], "stream": False, "options": {"num_predict": 2}}),
        ("/api/generate", {"prompt": "the", "images": [data], "stream": False, "options": {"num_predict": 2}}),
    ]
    for path, body in requests:
        reply = http.post(f"{vision_url}{path}", json=body)
        assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("url", ["https://example.com/a.png", "file:///etc/passwd", "data:image/png;base64,AAAA", "data:,x"])
def test_images_are_never_fetched_and_damaged_ones_refused(vision_url: str, url: str) -> None:
    content = [{"type": "image_url", "image_url": {"url": url}}]
    reply = http.post(f"{vision_url}/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_value")


def post_images(url: str, images: list[str]) -> Any:
    content = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}} for data in images]
    return http.post(
        f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": content}], "max_tokens": 1}
    )


def test_images_that_cannot_fit_are_refused_before_they_are_decoded(
    vision_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "read", lambda _: pytest.fail("decoded"))
    colors = [encoded(f"#{number:06x}") for number in range(500)]
    assert post_images(vision_url, colors).json()["error"]["code"] == "context_length_exceeded"


def test_the_pixels_of_a_request_are_limited(vision_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MAX_IMAGE_PIXELS", 24 * 24)
    assert post_images(vision_url, [encoded("red")]).status_code == 200
    refused = post_images(vision_url, [encoded("red"), encoded("blue")])
    assert refused.status_code == 400
    assert "pixels" in refused.json()["error"]["message"]
