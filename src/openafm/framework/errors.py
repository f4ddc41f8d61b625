"""Errors of the framework. Names and hierarchy are those of Apple's Python SDK, so that `except` clauses carry over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum
from typing import Literal

from openafm.core.errors import OpenAFMError, UsageError


class FoundationModelsError(OpenAFMError):
    """Root of the framework's errors."""


class GenerationErrorCode(IntEnum):
    """Error codes of Apple's framework."""

    SUCCESS = 0
    EXCEEDED_CONTEXT_WINDOW_SIZE = 1
    ASSETS_UNAVAILABLE = 2
    GUARDRAIL_VIOLATION = 3
    UNSUPPORTED_GUIDE = 4
    UNSUPPORTED_LANGUAGE_OR_LOCALE = 5
    DECODING_FAILURE = 6
    RATE_LIMITED = 7
    CONCURRENT_REQUESTS = 8
    REFUSAL = 9
    INVALID_SCHEMA = 10
    UNKNOWN_ERROR = 255


class InvalidGenerationSchemaError(FoundationModelsError):
    """A type or schema is invalid: an unknown type, an empty choice, an infinite recursion."""

    exit_code = UsageError.exit_code


class GenerationError(FoundationModelsError):
    """A request failed. The transcript and the cache are unchanged."""


class SchemaFormatError(InvalidGenerationSchemaError, GenerationError):
    """A JSON Schema is malformed. Apple's SDK reports it as a failed request, hence the second base class."""


class UnserializableSchemaError(SchemaFormatError, TypeError):
    """A JSON Schema contains Python values that JSON cannot represent."""


class ExceededContextWindowSizeError(GenerationError):
    """The conversation needs `token_count` tokens; the context window has `context_size`.

    `raw_content` is the text of the answer if the window ended during it.
    """

    def __init__(self, token_count: int, context_size: int, message: str | None = None, *, raw_content: str = "") -> None:
        super().__init__(
            message
            or f"the conversation needs {token_count} tokens, but the context window of this model has {context_size};"
            " start a session from a shorter transcript (fm.summarized, fm.rolling_window), or lower maximum_response_tokens"
        )
        self.token_count, self.context_size, self.raw_content = token_count, context_size, raw_content


class AssetsUnavailableError(GenerationError):
    """The model is missing or cannot be opened. `exit_code` is that of the cause."""

    def __init__(self, message: str, exit_code: int = GenerationError.exit_code) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class GuardrailViolationError(GenerationError):
    """A guardrail blocked the prompt or the response.

    Attributes:
        side: what was blocked; None if an endpoint does not report it.
        category: the topic, as the guardrail names it.
        reason: a sentence for the developer.
    """

    def __init__(
        self, message: str, *, side: Literal["prompt", "response"] | None = None, category: str = "", reason: str = ""
    ) -> None:
        super().__init__(message)
        self.side, self.category, self.reason = side, category, reason


class UnsupportedGuideError(GenerationError):
    """A guide does not fit its type, contradicts another guide, or cannot be enforced while decoding."""

    exit_code = UsageError.exit_code


class UnsupportedLanguageOrLocaleError(GenerationError):
    """The model does not support the language."""


class DecodingFailureError(GenerationError):
    """Generated text does not have the requested type. `raw_content` holds the text."""

    def __init__(self, message: str, raw_content: str = "") -> None:
        super().__init__(message)
        self.raw_content = raw_content


class RateLimitedError(GenerationError):
    """Too many requests. Retry after `retry_after_seconds`, if known."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ConcurrentRequestsError(GenerationError):
    """The session is already answering a request."""


class RefusalError(GenerationError):
    """The model refused to answer. `explanation` asks it for the reason."""

    def __init__(self, message: str, explain: Callable[[], str] | None = None) -> None:
        super().__init__(message)
        self._explain = explain

    def explanation_blocking(self) -> str:
        """Return an explanation that the model generates on each call, from the transcript up to the refusal.

        Raises:
            GenerationError: as `LanguageModelSession.respond`.
        """
        return str(self) if self._explain is None else self._explain()

    async def explanation(self) -> str:
        """Run `explanation_blocking` in a thread."""
        return await asyncio.to_thread(self.explanation_blocking)


class _StoppedError(GenerationError):
    """Base of errors that end a running answer. `raw_content` is the text of the answer so far."""

    def __init__(self, message: str, raw_content: str = "") -> None:
        super().__init__(message)
        self.raw_content = raw_content


class GenerationCancelledError(_StoppedError):
    """`LanguageModelSession.cancel` stopped the request. `raw_content` is the text of the answer so far."""


class RequestTimeoutError(_StoppedError):
    """The request took longer than `ToolLimits.request_seconds`. `raw_content` is the text of the answer so far."""


class UnsupportedCapabilityError(GenerationError):
    """The model lacks a capability that the request needs: images, tools or guided generation."""


class TranscriptMutationError(GenerationError):
    """The transcript changed while a response was generated."""


class ToolCallError(FoundationModelsError):
    """A tool failed. `underlying_error` is the exception of the tool, or the reason for rejecting its output."""

    def __init__(self, tool_name: str, underlying_error: BaseException) -> None:
        detail = (
            f"{type(underlying_error).__name__}: {underlying_error}" if str(underlying_error) else repr(underlying_error)
        )
        super().__init__(f"the tool '{tool_name}' failed: {detail}")
        self.tool_name, self.underlying_error = tool_name, underlying_error
