"""A scripted model: an implementation of the provider protocol without weights."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from openafm.framework.backends.language_model import (
    Answer,
    AnswerRequest,
    Capability,
    Event,
    LanguageModel,
    LanguageModelExecutor,
    TextPiece,
    ToolCallPiece,
    Usage,
)
from openafm.framework.errors import GenerationCancelledError
from openafm.safety.guardrail import Guardrail
from openafm.tokenizer.conversation import AssistantTurn, ToolCall, Turn
from openafm.tokenizer.schema_text import compact_json


def calls(*named: tuple[str, dict[str, Any]]) -> AssistantTurn:
    return AssistantTurn(tool_calls=tuple(ToolCall(name=name, arguments=arguments) for name, arguments in named))


class ScriptedModel(LanguageModel):
    """Return the answers of `script` in order, for any request, and record the requests."""

    name = "scripted"
    capabilities = frozenset((Capability.GUIDED_GENERATION, Capability.TOOL_CALLING))
    context_size = 1000

    def __init__(self, *script: str | AssistantTurn, pause_s: float = 0.0, guard: Guardrail | None = None) -> None:
        self.script = [AssistantTurn(text=each) if isinstance(each, str) else each for each in script]
        self.requests: list[AnswerRequest] = []
        self.openings: list[tuple[Turn, ...]] = []
        self.pause_s, self.guard = pause_s, guard

    def is_available(self) -> tuple[bool, None]:
        return True, None

    def guardrail(self, *, is_guided: bool) -> Guardrail | None:
        return self.guard

    def executor(self, turns: Sequence[Turn]) -> LanguageModelExecutor:
        self.openings.append(tuple(turns))
        return _ScriptedExecutor(self)


class _ScriptedExecutor(LanguageModelExecutor):
    def __init__(self, model: ScriptedModel) -> None:
        self._model = model

    def answer(self, request: AnswerRequest) -> Generator[Event, None, Answer]:
        self._model.requests.append(request)
        turn = self._model.script.pop(0)
        for index, call in enumerate(turn.tool_calls):
            yield ToolCallPiece(index=index, name=call.name, arguments=compact_json(call.arguments))
        for character in turn.text:
            if request.cancelled():
                raise GenerationCancelledError("cancelled")
            time.sleep(self._model.pause_s)
            yield TextPiece(character)
        return Answer(turn=turn, usage=Usage(prompt_tokens=10, generated_tokens=len(turn.text)))

    def prefill(self, prompt_prefix: str, cancelled: Callable[[], bool]) -> None:
        time.sleep(self._model.pause_s)

    @contextlib.contextmanager
    def undone_on_error(self) -> Iterator[None]:
        script = list(self._model.script)
        try:
            yield
        except BaseException:
            self._model.script = script
            raise
