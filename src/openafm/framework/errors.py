"""What can go wrong in a request. Names and tree are those of Apple's Python SDK, so that `except` clauses carry over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum

from openafm.core.errors import OpenAFMError


class FoundationModelsError(OpenAFMError):
    """The root of every error of the framework."""


class GenerationErrorCode(IntEnum):
    """Numbers of errors, those of Apple's framework."""

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
    """A type or schema that cannot describe a value: an unknown type, an empty choice, an endless recursion."""


class GenerationError(FoundationModelsError):
    """A request that gave no response. Transcript and cache are as they were before it."""


class SchemaFormatError(InvalidGenerationSchemaError, GenerationError):
    """A JSON Schema that is none. Apple's SDK reports it as a failed request, so it is caught as one too."""


class UnserializableSchemaError(SchemaFormatError, TypeError):
    """A JSON Schema of Python values that JSON does not have."""


class ExceededContextWindowSizeError(GenerationError):
    """The conversation does not fit. `token_count` tokens were needed, the model holds `context_size`."""

    def __init__(self, token_count: int, context_size: int, message: str | None = None) -> None:
        super().__init__(
            message
            or f"the conversation needs {token_count} tokens, but the context window of this model holds {context_size};"
            " start a new session, with a summary or the last entries of this one, or let the response be shorter"
            " (maximum_response_tokens)"
        )
        self.token_count, self.context_size = token_count, context_size


class AssetsUnavailableError(GenerationError):
    """The model that should answer is not on this machine, or cannot be opened. Exits as what caused it does."""

    def __init__(self, message: str, exit_code: int = GenerationError.exit_code) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class GuardrailViolationError(GenerationError):
    """The prompt or the response was stopped by a guardrail."""


class UnsupportedGuideError(GenerationError):
    """A guide that does not fit its type, contradicts another, or cannot be enforced while decoding."""


class UnsupportedLanguageOrLocaleError(GenerationError):
    """A language that the model does not know."""


class DecodingFailureError(GenerationError):
    """Text that is not the value asked for; `raw_content` is that text, as far as it goes."""

    def __init__(self, message: str, raw_content: str = "") -> None:
        super().__init__(message)
        self.raw_content = raw_content


class RateLimitedError(GenerationError):
    """Too many requests in too little time. May be tried again after `retry_after_seconds`, if that is known."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ConcurrentRequestsError(GenerationError):
    """A session answers one request at a time, and one is under way."""


class RefusalError(GenerationError):
    """The model declined to answer. Why, it says when asked."""

    def __init__(self, message: str, explain: Callable[[], str] | None = None) -> None:
        super().__init__(message)
        self._explain = explain

    def explanation_blocking(self) -> str:
        """The model's own words; generated anew at every call, on the transcript up to the refusal.

        Raises:
            GenerationError: as `LanguageModelSession.respond`.
        """
        return str(self) if self._explain is None else self._explain()

    async def explanation(self) -> str:
        """`explanation_blocking`, in a thread of its own."""
        return await asyncio.to_thread(self.explanation_blocking)


class GenerationCancelledError(GenerationError):
    """The request was stopped by `LanguageModelSession.cancel`."""


class RequestTimeoutError(GenerationError):
    """The request took longer than `ToolLimits.request_seconds`."""


class UnsupportedCapabilityError(GenerationError):
    """The model cannot do what was asked, whatever the words: see images, call tools, keep to a schema."""


class TranscriptMutationError(GenerationError):
    """The transcript grew by other means while a response was generated for it."""


class ToolCallError(FoundationModelsError):
    """A tool failed. `underlying_error` is what it raised, or why its output was not taken."""

    def __init__(self, tool_name: str, underlying_error: BaseException) -> None:
        detail = (
            f"{type(underlying_error).__name__}: {underlying_error}" if str(underlying_error) else repr(underlying_error)
        )
        super().__init__(f"the tool '{tool_name}' failed: {detail}")
        self.tool_name, self.underlying_error = tool_name, underlying_error
