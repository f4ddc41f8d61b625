"""Sessions on the other side of the C interface."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Self

from openafm.apple_sdk.bridged_tool import BridgedTool
from openafm.apple_sdk.options_json import read_options
from openafm.apple_sdk.prompt_builder import PromptBuilder
from openafm.framework.backends.system_model import SystemLanguageModel
from openafm.framework.options import GenerationOptions
from openafm.framework.schema.schema import GenerationSchema
from openafm.framework.session.response_stream import ResponseStream
from openafm.framework.session.session import LanguageModelSession
from openafm.framework.tools.tool import ToolLimits
from openafm.framework.transcripts.transcript import Transcript

_MOST_TEXT_TOKENS = 512  # a small model that finds no end would ramble to the end of its context
_NO_LIMIT = ToolLimits(call_seconds=None)  # the SDK gives its tools all the time they want


class BridgedSession:
    """A session whose requests wait for each other, as the SDK queues them, and the model that answers."""

    def __init__(self, session: LanguageModelSession, model: SystemLanguageModel) -> None:
        self.session, self.model = session, model

    @classmethod
    def opened(
        cls, instructions: str | None = None, model: SystemLanguageModel | None = None, tools: Sequence[BridgedTool] = ()
    ) -> Self:
        """A new conversation."""
        answering = model or SystemLanguageModel()
        return cls(LanguageModelSession(instructions, answering, tools, when_busy="wait", tool_limits=_NO_LIMIT), answering)

    @classmethod
    def resumed(
        cls, transcript: Transcript, model: SystemLanguageModel | None = None, tools: Sequence[BridgedTool] = ()
    ) -> Self:
        """A conversation that goes on where a transcript ends."""
        answering = model or SystemLanguageModel()
        session = LanguageModelSession.from_transcript(transcript, answering, tools, when_busy="wait", tool_limits=_NO_LIMIT)
        return cls(session, answering)

    async def respond(
        self, prompt: PromptBuilder, options: str | None, schema: Callable[[], GenerationSchema | str] | None = None
    ) -> Any:
        """The response: text, or generated content under `schema`, built or as JSON. `options` are JSON too."""
        words = prompt.prompt_for(self.model)
        if schema is None:
            return await self.session.respond(words, options=_text_options(options))
        built, chosen = schema(), read_options(options)
        if isinstance(built, str):
            return await self.session.respond(words, json_schema=built, options=chosen)
        return await self.session.respond(words, schema=built, options=chosen)

    def stream(self, prompt: PromptBuilder, options: str | None) -> ResponseStream[str, str]:
        """The response as it is written."""
        return self.session.stream_response(prompt.prompt_for(self.model), options=_text_options(options))


def _text_options(text: str | None) -> GenerationOptions:
    chosen = read_options(text) or GenerationOptions()
    if chosen.maximum_response_tokens is not None:
        return chosen
    return dataclasses.replace(chosen, maximum_response_tokens=_MOST_TEXT_TOKENS)
