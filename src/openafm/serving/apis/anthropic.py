"""Anthropic's API: /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from openafm.framework.backends.loaded_model import MAX_CALLS
from openafm.serving.apis.messages import (
    ContentPart,
    Function,
    FunctionCall,
    Message,
    ToolCallItem,
    chat_input,
    prompt_of,
    text_of,
    tools_of,
)
from openafm.serving.apis.wire import Caller, Service, Wire, compact, event_stream, new_id, sampling, stop_texts
from openafm.serving.checked_text import TextDelta
from openafm.serving.errors import bad_request
from openafm.serving.inference import CallsDelta, Ended
from openafm.serving.inputs import Decoding
from openafm.serving.service import AnswerService, Task
from openafm.tokenizer.conversation import ToolCall, ToolDefinition

router = APIRouter()


class Block(ContentPart):
    """A block of a message's content: text, a call, or the output of a call."""

    id: str = ""
    name: str = ""
    input: dict[str, Any] = Field(default_factory=dict)
    tool_use_id: str = ""
    content: str | list[ContentPart] | None = None


class AnthropicMessage(Wire):
    """A message of a chat."""

    role: Literal["user", "assistant"]
    content: str | list[Block]


class AnthropicTool(Wire):
    """A tool that the model may call."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    input_schema: dict[str, Any] = Field(default_factory=dict)


class ToolChoice(Wire):
    """Which tools the answer must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool = False


class CountRequest(Wire):
    """The body of /v1/messages/count_tokens."""

    model: str | None = None
    messages: list[AnthropicMessage] = Field(min_length=1)
    system: str | list[ContentPart] | None = None
    tools: list[AnthropicTool] = Field(default_factory=list)

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """Return the tools."""
        functions = [
            Function(name=tool.name, description=tool.description, parameters=tool.input_schema) for tool in self.tools
        ]
        return tools_of(functions)

    def all_messages(self) -> list[Message]:
        """Return the instructions and messages in OpenAI's form."""
        opening = [Message(role="system", content=text_of(self.system))] if self.system else []
        return [*opening, *(each for message in self.messages for each in _messages(message))]


class MessagesRequest(CountRequest):
    """The body of /v1/messages."""

    max_tokens: int = Field(ge=1)
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    stream: bool = False

    def task(self, caller: Caller) -> Task:
        """Return the task of this request.

        Raises:
            ApiError: a parameter is wrong.
        """
        tools, choice = self.definitions(), self.tool_choice
        wanted: Any = None
        if choice is not None:
            wanted = {"type": "tool", "name": choice.name} if choice.type == "tool" else choice.type
        source = chat_input(
            prompt_of(self.all_messages(), tools),
            tools=tools,
            tool_choice=wanted,
            max_calls=1 if choice is not None and choice.disable_parallel_tool_use else MAX_CALLS,
        )
        decoding = Decoding(
            sampling=sampling(self.temperature, self.top_p, self.top_k),
            max_tokens=self.max_tokens,
            stop=stop_texts(self.stop_sequences, "stop_sequences"),
        )
        return Task(model=self.model, source=source, decoding=decoding, client=caller)


@router.post("/v1/messages")
async def create(body: MessagesRequest, request: Request, service: Service, caller: Caller) -> Response:
    """Answer a conversation."""
    task = body.task(caller)
    if body.stream:
        return await event_stream(_events(service, task), request.url.path)
    async with service.running(task) as running:
        choice = (await running.choices())[0]
        message = _message(running.model.name)
    blocks: list[dict[str, Any]] = [{"type": "text", "text": choice.text}] if choice.text or not choice.calls else []
    message["content"] = [*blocks, *(_call_block(call) | {"input": call.arguments} for call in choice.calls)]
    return JSONResponse(message | _end(choice.ended) | {"usage": _usage(choice.ended)})


@router.post("/v1/messages/count_tokens")
def count_tokens(body: CountRequest, service: Service, caller: Caller) -> dict[str, int]:
    """Return the number of tokens of a prompt."""
    caller.check_rate()
    bundle = service.models.find(body.model).bundle
    tokens = bundle.template.encode(bundle.tokenizer, prompt_of(body.all_messages(), body.definitions()).turns).tokens
    return {"input_tokens": len(tokens) + len(bundle.template.generation_prompt(bundle.tokenizer))}


async def _events(service: AnswerService, task: Task) -> AsyncGenerator[str]:
    async with service.running(task) as running:
        message = _message(running.model.name)
        counts = {"input_tokens": len(running.prompt.tokens), "output_tokens": 0}
        yield _event("message_start", message=message | {"usage": counts})
        is_text_open, num_blocks = False, 0
        async for batch in running.batches():
            for _, delta in batch:
                match delta:
                    case TextDelta():
                        if not is_text_open:
                            is_text_open, num_blocks = True, 1
                            yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
                        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": delta.text})
                    case CallsDelta():
                        if is_text_open:
                            is_text_open = False
                            yield _event("content_block_stop", index=0)
                        for index, call in enumerate(delta.calls, start=num_blocks):
                            for line in _call_events(index, call):
                                yield line
                    case Ended():
                        ended = delta
        if is_text_open:
            yield _event("content_block_stop", index=0)
        yield _event("message_delta", delta=_end(ended), usage=_usage(ended))
        yield _event("message_stop")


def _call_events(index: int, call: ToolCall) -> list[str]:
    delta = {"type": "input_json_delta", "partial_json": compact(call.arguments)}
    return [
        _event("content_block_start", index=index, content_block=_call_block(call)),
        _event("content_block_delta", index=index, delta=delta),
        _event("content_block_stop", index=index),
    ]


def _event(kind: str, **values: Any) -> str:
    return f"event: {kind}\ndata: {compact({'type': kind, **values})}\n\n"


def _message(model: str) -> dict[str, Any]:
    return {
        "id": new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _call_block(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": new_id("toolu_"), "name": call.name, "input": {}}


def _end(ended: Ended) -> dict[str, Any]:
    reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
    reason = "stop_sequence" if ended.stop_text is not None else reasons[ended.finish]
    return {"stop_reason": reason, "stop_sequence": ended.stop_text}


def _usage(ended: Ended) -> dict[str, int]:
    """Return Anthropic's usage: cached tokens are not part of the input tokens."""
    return {
        "input_tokens": ended.num_prompt - ended.num_cached,
        "cache_read_input_tokens": ended.num_cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": ended.num_generated,
    }


def _messages(message: AnthropicMessage) -> list[Message]:
    """Return a message in OpenAI's form: outputs of calls become messages of their own, before the text."""
    if isinstance(message.content, str):
        return [Message(role=message.role, content=message.content)]
    texts: list[ContentPart] = []
    calls: list[ToolCallItem] = []
    outputs: list[Message] = []
    for block in message.content:
        match block.type:
            case "text" | "image":
                texts.append(block)
            case "tool_use":
                call = FunctionCall(name=block.name, arguments=compact(block.input))
                calls.append(ToolCallItem(id=block.id, function=call))
            case "tool_result":
                outputs.append(Message(role="tool", tool_call_id=block.tool_use_id, content=text_of(block.content)))
            case _:
                raise bad_request(f"content blocks of type '{block.type[:40]}' are not supported", param="messages")
    if message.role == "assistant":
        return [Message(role="assistant", content=texts, tool_calls=calls or None)]
    return [*outputs, *([Message(role="user", content=texts)] if texts else [])]
