"""OpenAI's /v1/completions: raw continuations, without a chat template."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from openafm.serving.apis.chat import SamplingFields, usage
from openafm.serving.apis.wire import Caller, Service, compact, event_stream, new_id
from openafm.serving.checked_text import ScoredToken, TextDelta
from openafm.serving.errors import bad_request, unsupported
from openafm.serving.inference import Ended
from openafm.serving.inputs import Decoding, RawInput
from openafm.serving.service import AnswerService, RunningTask, Task

router = APIRouter()

_DEFAULT_TOKENS = 16  # of OpenAI's API


class CompletionRequest(SamplingFields):
    """The body of a text completion."""

    prompt: str | list[str] | list[int] | list[list[int]] = "<|bos|>"
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: bool = False
    suffix: str | None = None
    best_of: int | None = None

    def task(self, caller: Caller) -> Task:
        """Return the task of this request.

        Raises:
            ApiError: a parameter is not supported or wrong.
        """
        if self.echo or self.suffix or (self.best_of or 1) > (self.n or 1):
            raise unsupported("echo", "echo, suffix and best_of are not supported; leave them out")
        return Task(
            model=self.model,
            source=_source(self.prompt),
            decoding=self.decoding(self.max_tokens or _DEFAULT_TOKENS, self.logprobs),
            num_choices=1 if self.n is None else self.n,
            client=caller,
        )


@router.post("/v1/completions")
async def create(body: CompletionRequest, request: Request, service: Service, caller: Caller) -> Response:
    """Continue a text."""
    task = body.task(caller)
    if body.stream:
        return await event_stream(_events(service, task, body), request.url.path)
    async with service.running(task) as running:
        choices = await running.choices()
        head = _head(running)
    shown = [
        _choice(index, choice.text, choice.ended.finish, choice.tokens.tokens, task.decoding, 0)
        for index, choice in enumerate(choices)
    ]
    return JSONResponse(head | {"choices": shown, "usage": usage([choice.ended for choice in choices])})


async def _events(service: AnswerService, task: Task, body: CompletionRequest) -> AsyncGenerator[str]:
    async with service.running(task) as running:
        head = _head(running)
        ends: list[Ended] = []
        offsets = [0] * task.num_choices
        yield ""  # errors before this point have their own status
        async for batch in running.batches():
            for index, delta in batch:
                if isinstance(delta, TextDelta):
                    choice = _choice(index, delta.text, None, delta.tokens, task.decoding, offsets[index])
                    offsets[index] += len(delta.text)
                elif isinstance(delta, Ended):
                    ends.append(delta)
                    choice = _choice(index, "", delta.finish, (), task.decoding, 0)
                else:
                    continue
                yield f"data: {compact(head | {'choices': [choice]})}\n\n"
        if body.includes_usage:
            yield f"data: {compact(head | {'choices': [], 'usage': usage(ends)})}\n\n"
        yield "data: [DONE]\n\n"


def _source(prompt: str | list[str] | list[int] | list[list[int]]) -> RawInput:
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return RawInput(text=prompt)
    if not prompt or not all(isinstance(token, int) for token in prompt):
        raise bad_request("send one prompt for each request: a text, or a list of tokens", param="prompt")
    return RawInput(tokens=tuple(token for token in prompt if isinstance(token, int)))


def _head(running: RunningTask) -> dict[str, Any]:
    return {
        "id": new_id("cmpl-"),
        "object": "text_completion",
        "created": int(time.time()),
        "model": running.model.name,
    }


def _choice(
    index: int, text: str, finish: str | None, tokens: Sequence[ScoredToken], decoding: Decoding, offset: int
) -> dict[str, Any]:
    scores = None if decoding.num_top is None or not tokens else _scores(tokens, offset)
    return {"index": index, "text": text, "logprobs": scores, "finish_reason": finish}


def _scores(tokens: Sequence[ScoredToken], offset: int) -> dict[str, Any]:
    texts = [token.data.decode("utf-8", "replace") for token in tokens]
    offsets = [offset + sum(map(len, texts[:place])) for place in range(len(texts))]
    return {
        "tokens": texts,
        "token_logprobs": [token.score.log_probability for token in tokens],
        "top_logprobs": [
            {data.decode("utf-8", "replace"): score.log_probability for data, score in token.top} for token in tokens
        ],
        "text_offset": offsets,
    }
