"""Models, tokens, adapters, health and metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from pydantic import Field

from openafm.serving.apis.messages import Message, ResponseFormat, Tool, chat_input, prompt_of, response_schema, tools_of
from openafm.serving.apis.wire import Caller, Service, Wire
from openafm.serving.errors import ApiError, bad_request
from openafm.serving.models import ServedModel

router = APIRouter()


class TokenizeRequest(Wire):
    """A text or messages to encode."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None  # llama.cpp's name
    messages: list[Message] | None = None
    tools: list[Tool] = Field(default_factory=list)
    response_format: ResponseFormat | None = None


class DetokenizeRequest(Wire):
    """Tokens to decode."""

    model: str | None = None
    tokens: list[int]


class AdapterRequest(Wire):
    """An installed adapter to load or unload, as BUNDLE:ADAPTER."""

    model: str


@router.get("/v1/models")
async def models(service: Service) -> dict[str, Any]:
    """List the models: bundles, and bundles with an installed adapter."""
    return {"object": "list", "data": [_described(model) for model in service.models.served()]}


@router.get("/v1/models/{name:path}")
async def model(name: str, service: Service) -> dict[str, Any]:
    """Return one model."""
    return _described(service.models.find(name))


@router.get("/v1/adapters")
async def adapters(service: Service) -> dict[str, Any]:
    """List the installed adapters of the served bundles, and whether they are loaded."""
    found = [model for model in service.models.served() if model.adapter is not None]
    return {"data": [{"id": each.name, "loaded": service.models.is_loaded(each.name)} for each in found]}


@router.post("/v1/adapters/load")
async def load_adapter(body: AdapterRequest, service: Service) -> dict[str, Any]:
    """Load a bundle with an adapter before its first request."""
    found = service.models.find(body.model)
    async with service.base(found.name), service.admitted(found, 0, 0):
        return {"id": found.name, "loaded": True}


@router.post("/v1/adapters/unload")
async def unload_adapter(body: AdapterRequest, service: Service) -> dict[str, Any]:
    """Release a bundle with an adapter, unless a request uses it."""
    found = service.models.find(body.model)
    return {"id": found.name, "loaded": not service.unload(found)}


@router.post("/tokenize")
@router.post("/v1/tokenize")
def tokenize(body: TokenizeRequest, service: Service, caller: Caller) -> dict[str, Any]:
    """Return the tokens of a text, or of messages with the opening of the answer."""
    caller.check_rate()
    bundle = service.models.find(body.model).bundle
    text = body.prompt if body.prompt is not None else body.content
    if (text is None) == (body.messages is None):
        raise bad_request("send either 'prompt' or 'messages'", param="prompt")
    if text is not None:
        tokens = bundle.tokenizer.encode(text)
    else:
        template, tools = bundle.template, tools_of([tool.function for tool in body.tools])
        source = chat_input(prompt_of(body.messages or [], tools), schema=response_schema(body.response_format))
        tokens = template.encode(bundle.tokenizer, source.turns).tokens
        tokens = [*tokens, *template.generation_prompt(bundle.tokenizer)]
    return {"tokens": tokens, "count": len(tokens), "max_model_len": bundle.config.context_length}


@router.post("/detokenize")
@router.post("/v1/detokenize")
def detokenize(body: DetokenizeRequest, service: Service, caller: Caller) -> dict[str, Any]:
    """Return the text of tokens."""
    caller.check_rate()
    tokenizer = service.models.find(body.model).bundle.tokenizer
    if any(not 0 <= token < tokenizer.vocab_size for token in body.tokens):
        raise bad_request(f"a token is outside the vocabulary of {tokenizer.vocab_size}", param="tokens")
    text = tokenizer.decode(body.tokens)
    return {"prompt": text, "content": text}


@router.get("/health")
@router.get("/health/live")
async def live() -> dict[str, str]:
    """Answer while the process runs."""
    return {"status": "ok"}


@router.get("/health/ready")
async def ready(service: Service) -> dict[str, str]:
    """Answer with 200 once the default model is loaded, or was loaded and released."""
    if not service.models.is_ready:
        raise ApiError(503, "the default model is being loaded", code="not_ready", retry_after=1)
    return {"status": "ok"}


@router.get("/metrics")
async def metrics(service: Service) -> Response:
    """Return metrics in Prometheus' text format."""
    text = service.metrics.text(service.admission, service.models)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _described(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "openafm",
        "max_model_len": model.bundle.config.context_length,
    }
