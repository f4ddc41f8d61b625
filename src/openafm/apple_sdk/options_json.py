"""Generation options as the SDK sends them: JSON, its sampling numbers as strings."""

from __future__ import annotations

import json
from typing import Any

from openafm.core.errors import UsageError
from openafm.framework.options import GenerationOptions, SamplingMode


class OptionsError(UsageError):
    """Options that cannot be read."""


def read_options(text: str | None) -> GenerationOptions | None:
    """The options; None where none are sent. Numbers may be strings: seeded, top-k and top-p sampling arrive.

    Raises:
        OptionsError: not a JSON object, or a value out of range.
    """
    if not text:
        return None
    try:
        sent = json.loads(text)
        most = sent.get("maximum_response_tokens")
        return GenerationOptions(
            sampling=_sampling(sent["sampling"]) if sent.get("sampling") else None,
            temperature=_number(sent.get("temperature"), float),
            maximum_response_tokens=_number(most, int),
        )
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise OptionsError(f"generation options that cannot be read ({error}): {text}") from error


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
