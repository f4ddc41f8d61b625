"""Translate error replies of endpoints into the framework's errors."""

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
    """Return the error for a response whose status is not 200."""
    try:
        body = json.loads(reply.text)
    except (ValueError, RecursionError):
        body = None
    error = body.get("error", body) if isinstance(body, dict) else None
    message = reply.text.strip()[:300] or "no reason given"
    if not isinstance(error, dict):
        error = {"message": error if isinstance(error, str) else message}
    return object_error(error, context_size, status=reply.status, headers=reply.headers)


def object_error(
    error: Mapping[str, Any], context_size: int, *, status: int | None = None, headers: Mapping[str, str] | None = None
) -> GenerationError:
    """Return the error for an `error` object, which can also arrive inside a streamed reply."""
    names = {error.get(key) for key in ("code", "type") if isinstance(error.get(key), str)}
    status = status or next((error[key] for key in ("code", "status") if isinstance(error.get(key), int)), None)
    message = str(error.get("message") or "no reason given")[:500]
    text = f"error of the endpoint{'' if status is None else f' ({status})'}: {message}"
    if names & _TOO_LONG or (status == 400 and "context length" in message.lower()):
        return _too_long(error, message, context_size)
    if names & _FILTERED:
        return GuardrailViolationError(text)
    if status == 429 or "rate_limit_exceeded" in names:
        return RateLimitedError(text, retry_after_seconds=retry_after_seconds(headers or {}))
    if status in _UNAVAILABLE:
        return AssetsUnavailableError(text)
    return EndpointError(text)


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a `Retry-After` header, which holds a number or a date; None without one."""
    value = next((value for name, value in headers.items() if name.lower() == "retry-after"), "")
    with contextlib.suppress(ValueError):
        return max(float(value), 0.0)
    with contextlib.suppress(ValueError, TypeError):
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    return None


def _too_long(error: Mapping[str, Any], message: str, context_size: int) -> ExceededContextWindowSizeError:
    """Take both counts from the reply; a missing count of needed tokens becomes the window plus one."""
    needed, window = error.get("n_prompt_tokens"), error.get("n_ctx")
    if not isinstance(window, int):
        window = _number(_WINDOW, message) or context_size
    if not isinstance(needed, int):
        needed = _number(_NEEDED, message) or window + 1
    return ExceededContextWindowSizeError(needed, window)


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return int(match[1].replace(",", "")) if match else None
