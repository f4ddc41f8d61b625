"""Embeddings of texts: OpenAI's /v1/embeddings, Ollama's /api/embed and /api/embeddings.

An embedding is the mean of the last layer's normalized states over the tokens of a text, with <|bos|> before it, scaled to
length 1. The models are not trained for retrieval.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter
from numpy.typing import NDArray
from pydantic import Field

from openafm.framework.backends.loaded_model import LoadedModel
from openafm.serving.apis.wire import Caller, Service, Wire
from openafm.serving.errors import bad_request, unsupported
from openafm.serving.inputs import RawInput, encode
from openafm.serving.keys import Client
from openafm.serving.service import AnswerService

router = APIRouter()

MAX_INPUTS = 2048
_NS = 10**9


class EmbeddingsRequest(Wire):
    """The body of OpenAI's route: texts, or their tokens."""

    model: str | None = None
    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class EmbedRequest(Wire):
    """The body of Ollama's route."""

    model: str | None = None
    input: str | list[str]
    truncate: bool = True
    dimensions: int | None = None


class OldEmbedRequest(Wire):
    """The body of Ollama's older route."""

    model: str | None = None
    prompt: str = Field(min_length=1)


@router.post("/v1/embeddings")
async def embeddings(body: EmbeddingsRequest, service: Service, caller: Caller) -> dict[str, Any]:
    """Return the embeddings of texts."""
    name, vectors, num_tokens = await _embedded(service, caller, body.model, _inputs(body.input), body.dimensions)
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(vector_D, body.encoding_format)}
        for index, vector_D in enumerate(vectors)
    ]
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return {"object": "list", "data": data, "model": name, "usage": usage}


@router.post("/api/embed")
async def embed(body: EmbedRequest, service: Service, caller: Caller) -> dict[str, Any]:
    """Return the embeddings of texts in Ollama's form."""
    started = time.perf_counter()
    inputs = _inputs(body.input)
    name, vectors, count = await _embedded(service, caller, body.model, inputs, body.dimensions, cuts=body.truncate)
    return {
        "model": name,
        "embeddings": [vector_D.tolist() for vector_D in vectors],
        "total_duration": int((time.perf_counter() - started) * _NS),
        "load_duration": 0,
        "prompt_eval_count": count,
    }


@router.post("/api/embeddings")
async def old_embeddings(body: OldEmbedRequest, service: Service, caller: Caller) -> dict[str, Any]:
    """Return the embedding of one text in Ollama's older form."""
    _, vectors, _ = await _embedded(service, caller, body.model, [RawInput(text=body.prompt)], None, cuts=True)
    return {"embedding": vectors[0].tolist()}


async def _embedded(
    service: AnswerService,
    caller: Client,
    model: str | None,
    inputs: Sequence[RawInput],
    dimensions: int | None,
    *,
    cuts: bool = False,
) -> tuple[str, list[NDArray[np.float32]], int]:
    """Return the name of the model, the embeddings, and the number of tokens. A client that disconnects ends the work.

    Raises:
        ApiError: an input is empty or a setting is not supported, or the server is busy.
        ContextWindowError: an input is too long and `cuts` is False.
    """
    caller.check_rate()
    async with service.base(model) as (served, base):
        dim = served.bundle.config.dim
        if dimensions not in (None, dim):
            raise unsupported("dimensions", f"the embeddings of {served.name} have {dim} dimensions; leave it out")
        texts = [await asyncio.to_thread(_tokens, base, source, cuts) for source in inputs]
        num_bytes = max(map(len, texts)) * served.kv_bytes_per_token
        async with service.admitted(served, num_bytes, 1, caller.priority) as loaded:
            vectors = []
            for tokens in texts:
                vectors.append(await asyncio.to_thread(loaded.embedding, tokens))
                caller.charge(len(tokens))
    return served.name, vectors, sum(map(len, texts))


def _tokens(model: LoadedModel, source: RawInput, cuts: bool) -> list[int]:
    if cuts and source.text:
        tokenizer, most = model.tokenizer, model.engine.context_length - 1
        source = RawInput(tokens=(tokenizer.special.bos, *tokenizer.encode(source.text))[:most])
    return encode(model, source, None).tokens


def _inputs(given: str | list[str] | list[int] | list[list[int]]) -> list[RawInput]:
    """Return the inputs of a request.

    Raises:
        ApiError: there are none, or too many, or one is empty.
    """
    many: Sequence[Any] = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else given
    if not 0 < len(many) <= MAX_INPUTS or not all(many):
        raise bad_request(f"send 1 to {MAX_INPUTS} inputs, none of them empty", param="input")
    return [RawInput(text=each) if isinstance(each, str) else RawInput(tokens=tuple(each)) for each in many]


def _encoded(vector_D: NDArray[np.float32], encoding: str) -> list[float] | str:
    return base64.b64encode(vector_D.astype("<f4").tobytes()).decode() if encoding == "base64" else vector_D.tolist()
