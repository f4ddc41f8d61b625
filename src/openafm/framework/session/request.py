"""A session's request, its options and its response."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Generic, TypedDict

from openafm.framework.backends.language_model import FinishReason, Usage
from openafm.framework.options import GenerationOptions
from openafm.framework.schema.content import GeneratedContent
from openafm.framework.schema.schema import GenerationSchema
from openafm.framework.session.formats import FinalT, PartialT, ResponseFormat
from openafm.framework.session.request_queue import QueuedRequest
from openafm.framework.transcripts.prompt import PromptLike
from openafm.framework.transcripts.transcript import Entry
from openafm.tokenizer.conversation import JsonSchema


@dataclass(frozen=True, kw_only=True)
class Response(Generic[FinalT]):
    """Hold a finished response.

    Attributes:
        content: the response in the requested type.
        raw_content: the same as generated content.
        transcript_entries: the entries that the request appended: prompt, tool calls, tool outputs, response.
        usage: tokens and times of the request.
        finish_reason: why the response ended: `LENGTH` if the token limit cut off a text, or ended a guided response early
            (`GenerationOptions.closes_at_limit`).
    """

    content: FinalT
    raw_content: GeneratedContent
    transcript_entries: tuple[Entry, ...]
    usage: Usage
    finish_reason: FinishReason = FinishReason.STOP


@dataclass(kw_only=True, eq=False)
class SessionRequest(QueuedRequest, Generic[PartialT, FinalT]):
    """Hold the arguments of a request and, once it succeeds, its response.

    Attributes:
        loop: the event loop that runs async tools; None starts one.
        response: None until the request succeeds.
    """

    prompt: PromptLike
    format: ResponseFormat[PartialT, FinalT]
    options: GenerationOptions
    include_schema_in_prompt: bool
    is_streamed: bool = False
    loop: asyncio.AbstractEventLoop | None = None
    response: Response[FinalT] | None = None


class RequestOptions(TypedDict, total=False):
    """Keyword arguments of every request."""

    options: GenerationOptions | None
    include_schema_in_prompt: bool


class SchemaOptions(RequestOptions, total=False):
    """Keyword arguments of a request with an explicit schema."""

    schema: GenerationSchema | None
    json_schema: JsonSchema | str | None
