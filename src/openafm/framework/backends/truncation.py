"""Error messages for answers that a token limit cut off."""

from __future__ import annotations

import json

from openafm.framework.errors import DecodingFailureError
from openafm.framework.schema.partial_json import PartialJson, PartialJsonError


def truncation_error(text: str, max_tokens: int | None, *, subject: str = "the response") -> DecodingFailureError:
    """Return the error for a JSON answer that ended early. Its message has the JSON path and the limit.

    Args:
        text: the text so far.
        max_tokens: `maximum_response_tokens` of the request.
        subject: the noun phrase that the message starts with.
    """
    path, is_in_list = _open_path(text)
    if max_tokens is None:
        limit, remedy = "the token limit of the endpoint", "set maximum_response_tokens"
    else:
        limit, remedy = f"maximum_response_tokens={max_tokens}", "raise that limit"
    bound = "bound the list with max_items or count" if is_in_list else "bound strings and lists with max_length, max_items"
    return DecodingFailureError(f"{subject} was cut off at {path} by {limit}; {remedy}, or {bound}", raw_content=text)


def _open_path(text: str) -> tuple[str, bool]:
    """Return the JSON path of the value that is open at the end of `text`, and whether it is inside a list."""
    partial = PartialJson()
    try:
        partial.push(text)
        prefix = partial.prefix()
    except PartialJsonError:
        return "$", False
    path, value, is_in_list = "$", prefix.value, False
    for _ in range(prefix.num_open):
        if isinstance(value, dict) and value:
            key, value = list(value.items())[-1]
            path += f".{key}" if key.isidentifier() else f"[{json.dumps(key)}]"
        elif isinstance(value, list):
            is_in_list = True
            path += f"[{max(len(value) - 1, 0)}]"
            value = value[-1] if value else None
        else:
            break
    return path, is_in_list
