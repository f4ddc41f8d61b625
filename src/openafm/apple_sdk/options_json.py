"""Read the SDK's generation options: JSON whose sampling numbers are strings."""

from __future__ import annotations

import json
from typing import Any

from openafm.core.errors import UsageError
from openafm.framework.options import GenerationOptions, SamplingMode


class OptionsError(UsageError):
    """The options are not valid."""


def read_options(text: str | None) -> GenerationOptions | None:
    """Return the options; None for empty text. Numbers may be strings.

    Raises:
        OptionsError: the text is not a JSON object, or a value is out of range.
    """
    if not text:
        return None
    try:
        sent = json.loads(text)
        max_tokens = sent.get("maximum_response_tokens")
        return GenerationOptions(
            sampling=_sampling(sent["sampling"]) if sent.get("sampling") else None,
            temperature=_number(sent.get("temperature"), float),
            maximum_response_tokens=_number(max_tokens, int),
        )
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise OptionsError(f"invalid generation options ({error}): {text}") from error


def _sampling(sent: dict[str, Any]) -> SamplingMode:
    if sent["mode"] == "greedy":
        return SamplingMode.greedy()
    return SamplingMode.random(
        top=_number(sent.get("top_k"), int),
        probability_threshold=_number(sent.get("top_p"), float),
        seed=_number(sent.get("seed"), int),
    )


def _number(sent: Any, kind: type[Any]) -> Any:
    return kind(sent) if isinstance(sent, str) else sent
