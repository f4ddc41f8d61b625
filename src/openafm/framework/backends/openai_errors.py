"""What an endpoint says went wrong, as the framework names it."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from openafm.framework.backends.http_lines import EndpointError, ErrorStatus
from openafm.framework.errors import (
    AssetsUnavailableError,
    ExceededContextWindowSizeError,
    GenerationError,
    GuardrailViolationError,
    RateLimitedError,
)

_TOO_LONG = {"context_length_exceeded", "exceed_context_size_error"}
_FILTERED = {"content_filter", "content_policy_violation"}
_UNAVAILABLE = {401, 403, 404, 503}
_WINDOW = re.compile(r"context (?:length|window|size)\D{0,40}?(\d[\d,]*)", re.IGNORECASE)
_NEEDED = re.compile(r"(?:requested|resulted in|has|contains|request \()\D{0,20}?(\d[\d,]*)", re.IGNORECASE)


def status_error(reply: ErrorStatus, context_size: int) -> GenerationError:
    """The error that a response without an answer stands for."""
    try:
        said = json.loads(reply.text)
    except (ValueError, RecursionError):
        said = None
    error = said.get("error", said) if isinstance(said, dict) else None
    message = reply.text.strip()[:300] or "no reason given"
    if not isinstance(error, dict):
        error = {"message": error if isinstance(error, str) else message}
    return said_error(error, context_size, status=reply.status, headers=reply.headers)


def said_error(
    error: Mapping[str, Any], context_size: int, *, status: int | None = None, headers: Mapping[str, str] | None = None
) -> GenerationError:
    """The error of an `error` object, which may also come in the middle of an answer."""
    names = {error.get(key) for key in ("code", "type") if isinstance(error.get(key), str)}
    status = status or next((error[key] for key in ("code", "status") if isinstance(error.get(key), int)), None)
    message = str(error.get("message") or "no reason given")[:500]
    told = f"the endpoint says{'' if status is None else f' ({status})'}: {message}"
    if names & _TOO_LONG or (status == 400 and "context length" in message.lower()):
        return _too_long(error, message, context_size)
    if names & _FILTERED:
        return GuardrailViolationError(told)
    if status == 429 or "rate_limit_exceeded" in names:
        return RateLimitedError(told, retry_after_seconds=_retry_after(headers or {}))
    if status in _UNAVAILABLE:
        return AssetsUnavailableError(told)
    return EndpointError(told)


def _too_long(error: Mapping[str, Any], message: str, context_size: int) -> ExceededContextWindowSizeError:
    """With both counts as far as they are told; else the least that they must be."""
    needed, window = error.get("n_prompt_tokens"), error.get("n_ctx")
    if not isinstance(window, int):
        window = _number(_WINDOW, message) or context_size
    if not isinstance(needed, int):
        needed = _number(_NEEDED, message) or window + 1
    return ExceededContextWindowSizeError(needed, window)


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return int(match[1].replace(",", "")) if match else None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds from a `Retry-After` header: a number of them, or a date."""
    value = next((value for name, value in headers.items() if name.lower() == "retry-after"), "")
    with contextlib.suppress(ValueError):
        return max(float(value), 0.0)
    with contextlib.suppress(ValueError, TypeError):
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    return None
