"""Checks of what an executor answers, and the translation of errors into the framework's."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Generator, Iterator, Sequence
from typing import Any, Literal

from openafm.core.errors import OpenAFMError
from openafm.framework.backends.language_model import Answer, LanguageModelExecutor
from openafm.framework.errors import (
    DecodingFailureError,
    ExceededContextWindowSizeError,
    FoundationModelsError,
    GenerationError,
    GuardrailViolationError,
    SchemaFormatError,
)
from openafm.runtime.engines.base import ContextWindowError
from openafm.safety.guardrail import Violation
from openafm.tokenizer.conversation import ToolDefinition
from openafm.tokenizer.schema_text import SchemaTextError
from openafm.tokenizer.tool_calls import tool_calls_text


def check_events(events: Any, executor: LanguageModelExecutor) -> None:
    """Raise if an executor's `answer` is not a generator function."""
    if isinstance(events, Coroutine):
        events.close()
    if not isinstance(events, Generator):
        raise TypeError(
            f"'answer' of {type(executor).__name__} must be a generator function (def with yield, not async def);"
            f" it returned {type(events).__name__}"
        )


def check_calls(answer: Answer, tools: Sequence[ToolDefinition], num_calls_left: int) -> None:
    """Raise if the answer calls a tool that it may not call, or too many. This ends models that never stop calling."""
    allowed = [tool.name for tool in tools]
    if allowed and len(answer.turn.tool_calls) > num_calls_left:
        raise DecodingFailureError(
            "the request made more tool calls than ToolLimits.calls; raise that limit, or give clearer instructions",
            raw_content=tool_calls_text(answer.turn.tool_calls),
        )
    for call in answer.turn.tool_calls:
        if call.name not in allowed:
            raise DecodingFailureError(
                f"the model called the tool '{call.name}'; allowed tools: {', '.join(allowed) or 'none'}",
                raw_content=tool_calls_text(answer.turn.tool_calls),
            )


def violation_error(violation: Violation, side: Literal["prompt", "response"]) -> GuardrailViolationError:
    """The error for a text that a guardrail blocked."""
    message = f"a guardrail blocked the {side} ({violation.category}): {violation.reason}"
    return GuardrailViolationError(message, side=side, category=violation.category, reason=violation.reason)


@contextlib.contextmanager
def framework_errors() -> Iterator[None]:
    """Translate errors of lower rooms into the framework's errors."""
    try:
        yield
    except FoundationModelsError:
        raise
    except ContextWindowError as error:
        raise ExceededContextWindowSizeError(error.token_count, error.context_length) from error
    except SchemaTextError as error:
        raise SchemaFormatError(f"incorrect schema format: {error}") from error
    except OpenAFMError as error:
        raise GenerationError(str(error)) from error
