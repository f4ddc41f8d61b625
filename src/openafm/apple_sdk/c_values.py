"""Convert values of the C interface: strings, error outputs, status codes, arrays of handles."""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import Any

from openafm.apple_sdk.handles import Handle
from openafm.framework.errors import (
    AssetsUnavailableError,
    ConcurrentRequestsError,
    DecodingFailureError,
    ExceededContextWindowSizeError,
    GenerationErrorCode,
    GuardrailViolationError,
    InvalidGenerationSchemaError,
    RateLimitedError,
    RefusalError,
    UnsupportedGuideError,
    UnsupportedLanguageOrLocaleError,
)

_CODES = {
    ExceededContextWindowSizeError: GenerationErrorCode.EXCEEDED_CONTEXT_WINDOW_SIZE,
    AssetsUnavailableError: GenerationErrorCode.ASSETS_UNAVAILABLE,
    GuardrailViolationError: GenerationErrorCode.GUARDRAIL_VIOLATION,
    UnsupportedGuideError: GenerationErrorCode.UNSUPPORTED_GUIDE,
    UnsupportedLanguageOrLocaleError: GenerationErrorCode.UNSUPPORTED_LANGUAGE_OR_LOCALE,
    DecodingFailureError: GenerationErrorCode.DECODING_FAILURE,
    RateLimitedError: GenerationErrorCode.RATE_LIMITED,
    ConcurrentRequestsError: GenerationErrorCode.CONCURRENT_REQUESTS,
    RefusalError: GenerationErrorCode.REFUSAL,
    InvalidGenerationSchemaError: GenerationErrorCode.INVALID_SCHEMA,
}

_CHAR_POINTER = ctypes.POINTER(ctypes.c_char)
_descriptions: dict[int, ctypes.Array[ctypes.c_char]] = {}  # not freed yet, by address


class CText(bytes):
    """UTF-8 text for callbacks, which read its bytes as `text[:length].data`."""

    @classmethod
    def of(cls, text: str) -> CText:
        return cls(text.encode("utf-8", "replace"))  # an unpaired surrogate has no UTF-8 encoding

    @property
    def data(self) -> bytes:
        return bytes(self)

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        return CText(part) if isinstance(part, bytes) else part


def read_text(value: Any) -> str | None:
    """Return the text of any value passed for `const char *`; None for null."""
    if isinstance(value, ctypes.c_char_p | ctypes.Array):
        value = value.value
    elif isinstance(value, ctypes._Pointer):
        value = ctypes.string_at(value) if value else None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def read_required_text(value: Any) -> str:
    """Return the text like `read_text`, and an empty string for null."""
    return read_text(value) or ""


def read_texts(values: Any, count: int) -> list[str]:
    """Return the texts of a `const char **`."""
    return [read_required_text(values[index]) for index in range(count)]


def status_of(error: BaseException) -> GenerationErrorCode:
    """Return the status code of an error."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), GenerationErrorCode.UNKNOWN_ERROR)


class ErrorsTo:
    """Write an error of the block to the two outputs, unless they are None. `code` replaces the error's own code."""

    def __init__(self, code_out: Any, description_out: Any, code: GenerationErrorCode | None = None) -> None:
        self._code_out, self._description_out, self._code = code_out, description_out, code

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        if self._code_out is not None:
            write_int(self._code_out, status_of(error) if self._code is None else self._code)
        if self._description_out is not None:
            ctypes.cast(self._description_out, ctypes.POINTER(_CHAR_POINTER))[0] = _allocated(str(error))
        return True


def write_int(out: Any, value: int) -> None:
    """Write to an `int *`."""
    ctypes.cast(out, ctypes.POINTER(ctypes.c_int))[0] = value


def free_text(text: Any) -> None:
    """Free a description. Ignore other pointers."""
    if text:
        _descriptions.pop(ctypes.cast(text, ctypes.c_void_p).value or 0, None)


def num_descriptions() -> int:
    """Return the number of descriptions that are not freed."""
    return len(_descriptions)


def read_handles(array: Any, count: int) -> list[Handle | int]:
    """Return the handles of a C array."""
    return [array[index] or 0 for index in range(count)] if array is not None else []


def _allocated(text: str) -> Any:
    buffer = ctypes.create_string_buffer(CText.of(text))
    _descriptions[ctypes.addressof(buffer)] = buffer
    return ctypes.cast(buffer, _CHAR_POINTER)
