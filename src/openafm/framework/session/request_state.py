"""The state of one running request, and what a profile records of its answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from openafm.framework.backends.language_model import Answer, LanguageModelExecutor, Usage
from openafm.framework.errors import RequestTimeoutError
from openafm.framework.profiling.recorder import SpanRecorder
from openafm.framework.session.request import SessionRequest
from openafm.framework.transcripts.transcript import Entry
from openafm.safety.guardrail import Guardrail
from openafm.tokenizer.conversation import Turn, UserTurn
from openafm.tokenizer.tool_calls import tool_calls_text


class RequestState:
    """Hold what one running request has added so far, and its deadline."""

    def __init__(
        self,
        request: SessionRequest[Any, Any],
        executor: LanguageModelExecutor,
        guardrail: Guardrail | None,
        text: str,
        prompt: UserTurn,
        images: dict[str, bytes],
        deadline: float | None,
        span: SpanRecorder,
    ) -> None:
        self.span = span
        self.request, self.executor, self.guardrail, self.text = request, executor, guardrail, text
        self.prompt, self.images = prompt, images
        self.tool_images: dict[str, bytes] = {}
        self.entries: list[Entry] = []
        self.pieces: list[str] = []  # text of the current answer
        self.num_calls = 0
        self.usage = Usage()
        self._deadline = deadline

    def is_over(self) -> bool:
        return self.request.cancelled.is_set() or self._is_late()

    def raise_if_late(self) -> None:
        if self._is_late() and not self.request.cancelled.is_set():
            raise RequestTimeoutError(
                "the request took longer than ToolLimits.request_seconds; the session is unchanged", "".join(self.pieces)
            )

    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline


def record_answer(span: SpanRecorder, request: SessionRequest[Any, Any], turns: Sequence[Turn], answer: Answer) -> None:
    """Record usage, settings and texts of an answer."""
    sampling, options = request.options.sampling, request.options
    settings = {
        "temperature": options.temperature,
        "max_tokens": options.maximum_response_tokens,
        "top_k": None if sampling is None else sampling.top,
        "top_p": None if sampling is None else sampling.probability_threshold,
        "seed": None if sampling is None else sampling.seed,
    }
    span.set(
        **answer.usage.to_dict(),
        is_guided=request.format.schema is not None,
        finish_reason="tool_calls" if answer.turn.tool_calls else answer.finish_reason.value,
        **{name: value for name, value in settings.items() if value is not None},
    )
    text = tool_calls_text(answer.turn.tool_calls) if answer.turn.tool_calls else answer.turn.text
    span.set_content(prompt="\n".join(turn.text for turn in turns), answer=text)
