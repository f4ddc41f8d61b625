"""One request of a session, from the call to the response."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Generic

from openafm.framework.backends.language_model import Usage
from openafm.framework.options import GenerationOptions
from openafm.framework.schema.content import GeneratedContent
from openafm.framework.session.formats import FinalT, PartialT, ResponseFormat
from openafm.framework.session.request_queue import Turnstile
from openafm.framework.transcripts.prompt import Prompt
from openafm.framework.transcripts.transcript import Entry


@dataclass(frozen=True, kw_only=True)
class Response(Generic[FinalT]):
    """A finished response and all that belongs to it.

    Attributes:
        content: as it was asked for.
        raw_content: the same as generated content.
        transcript_entries: what the request added to the transcript: prompt, calls and outputs of tools, response.
        usage: what it cost.
    """

    content: FinalT
    raw_content: GeneratedContent
    transcript_entries: tuple[Entry, ...]
    usage: Usage


@dataclass(kw_only=True, eq=False)
class Request(Turnstile, Generic[PartialT, FinalT]):
    """What is asked, and at the end the response. Tools run in `loop`; without one in a loop of their own."""

    prompt: Prompt
    format: ResponseFormat[PartialT, FinalT]
    options: GenerationOptions
    include_schema_in_prompt: bool
    is_streamed: bool = False
    loop: asyncio.AbstractEventLoop | None = None
    response: Response[FinalT] | None = None  # set when the request succeeds
