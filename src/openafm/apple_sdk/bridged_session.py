"""Sessions behind the C interface."""

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

_MAX_TEXT_TOKENS = 512  # small models may not stop by themselves
_NO_LIMIT = ToolLimits(call_seconds=None)  # the SDK does not limit the time of tools


class BridgedSession:
    """Hold a session and its model. Requests wait for each other, as in the SDK."""

    def __init__(self, session: LanguageModelSession, model: SystemLanguageModel) -> None:
        self.session, self.model = session, model

    @classmethod
    def opened(
        cls, instructions: str | None = None, model: SystemLanguageModel | None = None, tools: Sequence[BridgedTool] = ()
    ) -> Self:
        """Return a new conversation."""
        system_model = model or SystemLanguageModel()
        return cls(
            LanguageModelSession(instructions, system_model, tools, when_busy="wait", tool_limits=_NO_LIMIT), system_model
        )

    @classmethod
    def resumed(
        cls, transcript: Transcript, model: SystemLanguageModel | None = None, tools: Sequence[BridgedTool] = ()
    ) -> Self:
        """Return a conversation that continues a transcript."""
        system_model = model or SystemLanguageModel()
        session = LanguageModelSession.from_transcript(
            transcript, system_model, tools, when_busy="wait", tool_limits=_NO_LIMIT
        )
        return cls(session, system_model)

    async def respond(
        self, prompt: PromptBuilder, options: str | None, schema: Callable[[], GenerationSchema | str] | None = None
    ) -> Any:
        """Return the response: text, or generated content under the schema that `schema` returns. `options` are JSON."""
        built_prompt = prompt.prompt_for(self.model)
        if schema is None:
            return await self.session.respond(built_prompt, options=_text_options(options))
        built, chosen = schema(), read_options(options)
        if isinstance(built, str):
            return await self.session.respond(built_prompt, json_schema=built, options=chosen)
        return await self.session.respond(built_prompt, schema=built, options=chosen)

    def stream(self, prompt: PromptBuilder, options: str | None) -> ResponseStream[str, str]:
        """Return a stream of the response."""
        return self.session.stream_response(prompt.prompt_for(self.model), options=_text_options(options))


def _text_options(text: str | None) -> GenerationOptions:
    chosen = read_options(text) or GenerationOptions()
    if chosen.maximum_response_tokens is not None:
        return chosen
    return dataclasses.replace(chosen, maximum_response_tokens=_MAX_TEXT_TOKENS)
