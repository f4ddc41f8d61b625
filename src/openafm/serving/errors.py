"""Errors of the API: status, code and message of a reply, and the translation of the lower rooms' errors."""

from __future__ import annotations

from typing import Any

from openafm.adapters.package import AdapterNameError
from openafm.adapters.store import AdapterNotInstalledError
from openafm.bundle import BundleNotFoundError
from openafm.core.errors import OpenAFMError
from openafm.framework.errors import (
    AssetsUnavailableError,
    DecodingFailureError,
    InvalidGenerationSchemaError,
    UnsupportedGuideError,
)
from openafm.framework.transcripts.prompt import PromptError, UnsupportedAttachmentError
from openafm.runtime.decoding.matcher import GrammarError
from openafm.runtime.decoding.schema_lowering import UnsupportedSchemaError
from openafm.runtime.engines.base import ContextWindowError
from openafm.runtime.native.model import OutOfMemoryError
from openafm.tokenizer.chat_template import ChatTemplateError
from openafm.tokenizer.conversation import ConversationError
from openafm.tokenizer.errors import EncodingError
from openafm.tokenizer.schema_text import SchemaTextError

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ApiError(OpenAFMError):
    """A request is answered with an error.

    Args:
        status: the HTTP status.
        code: a word that programs compare, such as `model_not_found`.
        param: the parameter of the request that is wrong.
        retry_after: seconds after which a retry can succeed.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.retry_after = status, code, param, retry_after

    @property
    def type(self) -> str:
        """The `type` of OpenAI's error object."""
        return _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self.retry_after is None else {"Retry-After": str(max(round(self.retry_after), 1))}
        return headers | (
            {"WWW-Authenticate": 'Basic realm="openafm: the key is the password"'} if self.status == 401 else {}
        )

    def body(self, path: str) -> dict[str, Any]:
        """Return the JSON body in the form of the API that `path` belongs to."""
        if path.startswith("/api/"):
            return {"error": str(self)}
        if path.startswith("/v1/messages"):
            kind = _ANTHROPIC_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
            return {"type": "error", "error": {"type": kind, "message": str(self)}}
        return {"error": {"message": str(self), "type": self.type, "param": self.param, "code": self.code}}


def bad_request(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """Return an error of status 400."""
    return ApiError(400, message, code=code, param=param)


def unsupported(param: str, message: str) -> ApiError:
    """Return the error for a parameter that this server refuses."""
    return ApiError(400, message, code="unsupported_parameter", param=param)


def api_error(error: BaseException) -> ApiError:
    """Return the reply for an error of this server. Unexpected errors get a message without their content."""
    match error:
        case ApiError():
            return error
        case ContextWindowError():
            return bad_request(
                f"This model's maximum context length is {error.context_length} tokens, but the request needs at least"
                f" {error.token_count}; shorten the messages.",
                param="messages",
                code="context_length_exceeded",
            )
        case UnsupportedGuideError() | UnsupportedSchemaError() | InvalidGenerationSchemaError():
            return bad_request(str(error), param="response_format", code="invalid_json_schema")
        case BundleNotFoundError() | AdapterNotInstalledError() | AdapterNameError():
            return ApiError(404, str(error), code="model_not_found", param="model")
        case UnsupportedAttachmentError():
            return ApiError(400, str(error), code="unsupported_parameter", param="messages")
        case PromptError() | ConversationError() | ChatTemplateError() | EncodingError() | SchemaTextError():
            return bad_request(str(error), param="messages")
        case GrammarError():
            return bad_request(
                "the grammar of the schema grew too large while decoding; use fewer alternatives and references",
                param="response_format",
                code="invalid_json_schema",
            )
        case DecodingFailureError():
            return ApiError(500, "the answer could not be decoded; retry, or change the schema", code="decoding_failure")
        case AssetsUnavailableError() | OutOfMemoryError() | MemoryError():
            return ApiError(
                503, "the model cannot be loaded or has no memory left", code="model_unavailable", retry_after=10
            )
    return ApiError(500, "internal error of the server", code="internal_error")
