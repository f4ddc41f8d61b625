"""What can go wrong in a request. Names and tree are those of Apple's Python SDK, so that `except` clauses carry over."""

from __future__ import annotations

from openafm.core.errors import OpenAFMError


class FoundationModelsError(OpenAFMError):
    """The root of every error of the framework."""


class InvalidGenerationSchemaError(FoundationModelsError):
    """A type or schema that cannot describe a value: an unknown type, an empty choice, an endless recursion."""


class GenerationError(FoundationModelsError):
    """A request that gave no response. Transcript and cache are as they were before it."""


class ExceededContextWindowSizeError(GenerationError):
    """The conversation does not fit. `token_count` tokens were needed, the model holds `context_size`."""

    def __init__(self, token_count: int, context_size: int) -> None:
        super().__init__(
            f"the conversation needs {token_count} tokens, but the context window of this model holds {context_size};"
            " start a new session, with a summary or the last entries of this one"
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
    """Too many requests in too little time."""


class ConcurrentRequestsError(GenerationError):
    """A session answers one request at a time, and one is under way."""


class RefusalError(GenerationError):
    """The model declined to answer."""


class GenerationCancelledError(GenerationError):
    """The request was stopped by `LanguageModelSession.cancel`."""
