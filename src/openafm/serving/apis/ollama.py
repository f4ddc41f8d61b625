"""Ollama's API: /api/chat, /api/generate, /api/tags, /api/show, /api/ps, /api/version."""

from __future__ import annotations

import datetime
from collections.abc import AsyncGenerator
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from openafm.serving.apis.messages import (
    Base64Source,
    ContentPart,
    FunctionCall,
    Message,
    ResponseFormat,
    SchemaFormat,
    Tool,
    ToolCallItem,
    chat_input,
    prompt_of,
    response_schema,
    tools_of,
)
from openafm.serving.apis.wire import Caller, Service, Wire, compact, event_stream, sampling, stop_texts
from openafm.serving.checked_text import TextDelta
from openafm.serving.errors import bad_request, unsupported
from openafm.serving.inference import CallsDelta, Ended
from openafm.serving.inputs import ChatInput, Decoding, RawInput
from openafm.serving.models import ServedModel
from openafm.serving.service import AnswerService, Choice, Task
from openafm.tokenizer.conversation import JsonSchema, ToolCall

router = APIRouter()


class Options(Wire):
    """Sampling options."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int | None = None
    num_predict: int | None = None
    stop: str | list[str] | None = None
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    repeat_penalty: float | None = Field(default=None, gt=0, le=10)

    def decoding(self) -> Decoding:
        """Return the decoding of these options. -1 and -2 tokens mean up to the context window."""
        limit = self.num_predict if self.num_predict and self.num_predict > 0 else None
        return Decoding(
            sampling=sampling(self.temperature, self.top_p, self.top_k, self.seed, self.min_p, self.typical_p),
            max_tokens=limit,
            stop=stop_texts(self.stop, "options.stop"),
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            repetition_penalty=self.repeat_penalty or 1.0,
        )


class OllamaCall(Wire):
    """A call with arguments as an object."""

    class Named(Wire):
        """Name and arguments."""

        name: str
        arguments: dict[str, Any] = Field(default_factory=dict)

    function: Named


class OllamaMessage(Wire):
    """A message of a chat."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    images: list[str] | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None


class BaseRequest(Wire):
    """Fields of all requests with answers."""

    model: str | None = None
    stream: bool = True
    format: Literal["", "json"] | JsonSchema | None = None
    options: Options = Field(default_factory=Options)

    def schema_of_answer(self) -> JsonSchema | None:
        """Return the schema of `format`."""
        if not self.format:
            return None
        if self.format == "json":
            return response_schema(ResponseFormat(type="json_object"))
        assert isinstance(self.format, dict)
        return response_schema(ResponseFormat(type="json_schema", json_schema=SchemaFormat(schema=self.format)))


class OllamaChatRequest(BaseRequest):
    """The body of /api/chat."""

    messages: list[OllamaMessage] = Field(min_length=1)
    tools: list[Tool] = Field(default_factory=list)


class GenerateRequest(BaseRequest):
    """The body of /api/generate."""

    prompt: str = ""
    system: str = ""
    raw: bool = False
    suffix: str | None = None
    images: list[str] | None = None


class ShowRequest(Wire):
    """The body of /api/show."""

    model: str | None = None
    name: str | None = None


@router.post("/api/chat")
async def chat(body: OllamaChatRequest, request: Request, service: Service, caller: Caller) -> Response:
    """Answer a conversation."""
    tools = tools_of([tool.function for tool in body.tools])
    prompt = prompt_of([_message(message) for message in body.messages], tools)
    source = chat_input(prompt, schema=body.schema_of_answer(), tools=tools)
    return await _reply(body, source, request, service, caller, _chat_piece)


@router.post("/api/generate")
async def generate(body: GenerateRequest, request: Request, service: Service, caller: Caller) -> Response:
    """Answer a prompt, or continue it if `raw`."""
    if body.suffix or (body.raw and body.images):
        raise unsupported("suffix", "suffix, and images of raw prompts, are not supported; leave them out")
    source: ChatInput | RawInput = RawInput(text=body.prompt)
    if not body.raw:
        opening = [OllamaMessage(role="system", content=body.system)] if body.system else []
        messages = [*opening, OllamaMessage(role="user", content=body.prompt, images=body.images)]
        source = chat_input(prompt_of([_message(message) for message in messages]), schema=body.schema_of_answer())
    return await _reply(body, source, request, service, caller, _text_piece)


@router.get("/api/tags")
async def tags(service: Service) -> dict[str, Any]:
    """List the models."""
    return {"models": [_described(model) for model in service.models.served()]}


@router.get("/api/ps")
async def running(service: Service) -> dict[str, Any]:
    """List the loaded models."""
    loaded = [model for model in service.models.served() if service.models.is_loaded(model.name)]
    return {"models": [_described(model) for model in loaded]}


@router.post("/api/show")
async def show(body: ShowRequest, service: Service) -> dict[str, Any]:
    """Describe a model."""
    model = service.models.find(body.model or body.name)
    described = _described(model)
    info: dict[str, Any] = {"general.architecture": "openafm", "openafm.context_length": model.bundle.config.context_length}
    return {
        "details": described["details"],
        "modified_at": described["modified_at"],
        "model_info": info,
        "capabilities": ["completion", "tools"] if model.bundle.template.can_call_tools else ["completion"],
        "modelfile": "",
        "parameters": "",
        "template": "",
    }


@router.get("/api/version")
async def version() -> dict[str, str]:
    """Return the version of openafm."""
    from openafm import __version__

    return {"version": str(__version__)}


async def _reply(
    body: BaseRequest, source: ChatInput | RawInput, request: Request, service: AnswerService, caller: Caller, piece: Any
) -> Response:
    task = Task(model=body.model, source=source, decoding=body.options.decoding(), client=caller)
    if body.stream:
        return await event_stream(_events(service, task, piece), request.url.path, "application/x-ndjson")
    async with service.running(task) as running:
        choice: Choice = (await running.choices())[0]
        head: dict[str, Any] = {"model": running.model.name, "created_at": _now()}
    return JSONResponse(head | piece(choice.text, choice.calls) | _end(choice.ended))


async def _events(service: AnswerService, task: Task, piece: Any) -> AsyncGenerator[str]:
    async with service.running(task) as running:
        yield ""  # errors before this point have their own status
        async for batch in running.batches():
            for _, delta in batch:
                head: dict[str, Any] = {"model": running.model.name, "created_at": _now()}
                match delta:
                    case TextDelta():
                        yield compact(head | piece(delta.text, ()) | {"done": False}) + "\n"
                    case CallsDelta():
                        yield compact(head | piece("", delta.calls) | {"done": False}) + "\n"
                    case Ended():
                        yield compact(head | piece("", ()) | _end(delta)) + "\n"


def _chat_piece(text: str, calls: tuple[ToolCall, ...]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [{"function": {"name": call.name, "arguments": call.arguments}} for call in calls]
    return {"message": message}


def _text_piece(text: str, calls: tuple[ToolCall, ...]) -> dict[str, Any]:
    return {"response": text}


def _end(ended: Ended) -> dict[str, Any]:
    return {
        "done": True,
        "done_reason": "length" if ended.finish == "length" else "stop",
        "total_duration": round(ended.seconds * 1e9),
        "load_duration": 0,
        "prompt_eval_count": ended.num_prompt,
        "prompt_eval_duration": round(ended.first_token_s * 1e9),
        "eval_count": ended.num_generated,
        "eval_duration": round((ended.seconds - ended.first_token_s) * 1e9),
    }


def _described(model: ServedModel) -> dict[str, Any]:
    size = sum(file.stat().st_size for file in model.bundle.path.glob("*.safetensors"))
    return {
        "name": f"{model.name}:latest",
        "model": f"{model.name}:latest",
        "modified_at": datetime.datetime.fromtimestamp(model.created, datetime.UTC).isoformat(),
        "size": size,
        "digest": model.bundle.signature,
        "details": {"format": "openafm", "family": "openafm", "families": ["openafm"], "parent_model": ""},
    }


def _message(message: OllamaMessage) -> Message:
    if message.role == "tool" and not message.tool_name:
        raise bad_request("a message of a tool needs tool_name", param="messages")
    calls = [
        ToolCallItem(function=FunctionCall(name=call.function.name, arguments=compact(call.function.arguments)))
        for call in message.tool_calls or ()
    ]
    images = [ContentPart(type="image", source=Base64Source(type="base64", data=data)) for data in message.images or ()]
    content = [*images, ContentPart(text=message.content)] if images else message.content
    return Message(role=message.role, content=content, name=message.tool_name, tool_calls=calls or None)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat()
