"""OpenAI's /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from openafm.framework.backends.loaded_model import MAX_CALLS
from openafm.runtime.decoding.sampling import RandomConfig
from openafm.serving.apis.messages import (
    Message,
    ResponseFormat,
    Tool,
    chat_input,
    prompt_of,
    response_schema,
    tools_of,
)
from openafm.serving.apis.wire import Caller, Service, Wire, compact, event_stream, new_id, sampling, stop_texts
from openafm.serving.checked_text import ScoredToken, TextDelta
from openafm.serving.errors import bad_request, unsupported
from openafm.serving.inference import CallsDelta, Ended
from openafm.serving.inputs import Decoding
from openafm.serving.service import AnswerService, Choice, RunningTask, Task
from openafm.tokenizer.conversation import ToolCall

router = APIRouter()


class StreamOptions(Wire):
    """Options of a streamed reply."""

    include_usage: bool = False


class SamplingFields(Wire):
    """Parameters of chat and text completions. None, and greedy decoding for all of them, are the defaults."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    logit_bias: dict[str, float] | None = None
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def decoding(self, max_tokens: int | None, num_top: int | None) -> Decoding:
        """Return the decoding of these parameters.

        Raises:
            ApiError: a value is out of range.
        """
        chosen = sampling(self.temperature, self.top_p, self.top_k, self.seed, self.min_p, self.typical_p)
        if (self.n or 1) > 1 and not isinstance(chosen, RandomConfig):
            raise bad_request("n above 1 needs a temperature above 0: greedy answers are equal", param="n")
        return Decoding(
            sampling=chosen,
            max_tokens=max_tokens,
            stop=stop_texts(self.stop, "stop"),
            bias=_bias(self.logit_bias or {}),
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
            num_top=num_top,
        )


class ChatRequest(SamplingFields):
    """The body of a chat completion."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    tools: list[Tool] = Field(default_factory=list)
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    modalities: list[str] | None = None
    audio: Any = None
    functions: Any = None

    def task(self, caller: Caller) -> Task:
        """Return the task of this request.

        Raises:
            ApiError: a parameter is not supported or wrong.
        """
        if self.functions:
            raise unsupported("functions", "'functions' is not supported; use 'tools'")
        if self.audio or (self.modalities and self.modalities != ["text"]):
            raise unsupported("modalities", "this server answers with text only")
        if self.top_logprobs is not None and not self.logprobs:
            raise bad_request("top_logprobs needs logprobs: true", param="top_logprobs")
        tools = tools_of([tool.function for tool in self.tools])
        source = chat_input(
            prompt_of(self.messages, tools),
            schema=response_schema(self.response_format),
            tools=tools,
            tool_choice=self.tool_choice,
            max_calls=1 if self.parallel_tool_calls is False else MAX_CALLS,
        )
        num_top = (self.top_logprobs or 0) if self.logprobs else None
        decoding = self.decoding(self.max_completion_tokens or self.max_tokens, num_top)
        return Task(
            model=self.model, source=source, decoding=decoding, num_choices=1 if self.n is None else self.n, client=caller
        )


@router.post("/v1/chat/completions")
async def create(body: ChatRequest, request: Request, service: Service, caller: Caller) -> Response:
    """Answer a conversation."""
    task = body.task(caller)
    if body.stream:
        return await event_stream(_events(service, task, body), request.url.path)
    async with service.running(task) as running:
        choices = await running.choices()
        head = _head(running, "chat.completion")
    return JSONResponse(
        head
        | {
            "choices": [_choice(index, choice, task.decoding.num_top) for index, choice in enumerate(choices)],
            "usage": usage([choice.ended for choice in choices]),
        }
    )


def usage(ends: Sequence[Ended]) -> dict[str, Any]:
    """Return OpenAI's usage of the choices of one request; the prompt counts once."""
    prompt, generated = ends[0].num_prompt, sum(ended.num_generated for ended in ends)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": ends[0].num_cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def call_items(calls: Sequence[ToolCall], *, streamed: bool = False) -> list[dict[str, Any]]:
    """Return tool calls with new ids."""
    return [
        ({"index": index} if streamed else {})
        | {
            "id": new_id("call_"),
            "type": "function",
            "function": {"name": call.name, "arguments": compact(call.arguments)},
        }
        for index, call in enumerate(calls)
    ]


async def _events(service: AnswerService, task: Task, body: ChatRequest) -> AsyncGenerator[str]:
    async with service.running(task) as running:
        head = _head(running, "chat.completion.chunk")
        if body.includes_usage:
            head["usage"] = None
        opening = compact(head)[:-1] + ',"choices":['

        def event(index: int, delta: dict[str, Any], finish: str | None = None, scored: Sequence[ScoredToken] = ()) -> str:
            choice: dict[str, Any] = {"index": index, "delta": delta}
            choice |= {"logprobs": _scores(scored) if scored else None, "finish_reason": finish}
            return f"data: {opening}{compact(choice)}]}}\n\n"

        def text_event(index: int, text: str) -> str:
            """Return the same as `event`, ten times as fast: the JSON encoder is slow to start for an object."""
            choice = f'{{"index":{index},"delta":{{"content":{compact(text)}}},"logprobs":null,"finish_reason":null}}'
            return f"data: {opening}{choice}]}}\n\n"

        for index in range(task.num_choices):
            yield event(index, {"role": "assistant", "content": "", "refusal": None})
        ends: list[Ended] = []
        async for batch in running.batches():
            lines: list[str] = []
            for index, delta in batch:
                match delta:
                    case TextDelta(tokens=()):
                        lines.append(text_event(index, delta.text))
                    case TextDelta():
                        lines.append(event(index, {"content": delta.text}, scored=delta.tokens))
                    case CallsDelta():
                        lines.append(event(index, {"tool_calls": call_items(delta.calls, streamed=True)}))
                    case Ended():
                        ends.append(delta)
                        lines.append(event(index, {}, delta.finish))
            yield "".join(lines)
        if body.includes_usage:
            yield f"data: {compact(head | {'choices': [], 'usage': usage(ends)})}\n\n"
        yield "data: [DONE]\n\n"


def _head(running: RunningTask, kind: str) -> dict[str, Any]:
    return {
        "id": new_id("chatcmpl-"),
        "object": kind,
        "created": int(time.time()),
        "model": running.model.name,
        "system_fingerprint": f"fp_{running.model.bundle.signature[:12]}",
    }


def _choice(index: int, choice: Choice, num_top: int | None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.calls:
        message |= {"content": choice.text or None, "tool_calls": call_items(choice.calls)}
    scores = None if num_top is None else _scores(choice.tokens.tokens)
    return {"index": index, "message": message, "logprobs": scores, "finish_reason": choice.ended.finish}


def _scores(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    content = []
    for token in tokens:
        top = [_score(data, score.log_probability) for data, score in token.top]
        content.append(_score(token.data, token.score.log_probability) | {"top_logprobs": top})
    return {"content": content, "refusal": None}


def _score(data: bytes, log_probability: float) -> dict[str, Any]:
    number = max(log_probability, -9999.0)  # JSON has no infinity
    return {"token": data.decode("utf-8", "replace"), "logprob": number, "bytes": list(data)}


def _bias(bias: dict[str, float]) -> dict[int, float]:
    for token, value in bias.items():
        if not token.isdecimal() or len(token) > 9 or not -100 <= value <= 100:
            raise bad_request("logit_bias maps token ids to numbers from -100 to 100", param="logit_bias")
    return {int(token): value for token, value in bias.items()}
