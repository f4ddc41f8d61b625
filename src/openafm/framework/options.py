"""Options of a request: sampling, length, tool calling."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypeAlias, get_args

ImageDetail: TypeAlias = Literal["high", "balanced", "rapid"]


class SamplingModeType(StrEnum):
    """Kinds of sampling."""

    GREEDY = "greedy"
    RANDOM = "random"


class ToolCallingMode(StrEnum):
    """Whether a request may call tools. `REQUIRED`: the first answer calls a tool."""

    ALLOWED = "allowed"
    REQUIRED = "required"
    DISALLOWED = "disallowed"


@dataclass(frozen=True)
class SamplingMode:
    """Hold a sampling method, made by `greedy()` or `random()`."""

    mode_type: SamplingModeType
    top: int | None = None
    probability_threshold: float | None = None
    seed: int | None = None

    @classmethod
    def greedy(cls) -> SamplingMode:
        """Choose the most likely token."""
        return cls(SamplingModeType.GREEDY)

    @classmethod
    def random(
        cls, top: int | None = None, probability_threshold: float | None = None, seed: int | None = None
    ) -> SamplingMode:
        """Sample from the `top` most likely tokens, or from the smallest set with `probability_threshold` (top-k, top-p).

        Equal seeds, models and conversations give equal tokens.

        Raises:
            ValueError: both limits are given, or a value is out of range.
        """
        if top is not None and probability_threshold is not None:
            raise ValueError("'top' and 'probability_threshold' exclude each other; set one")
        if top is not None and (not _is_integer(top) or top <= 0):
            raise ValueError("'top' must be a positive integer")
        if probability_threshold is not None and not (_is_number(probability_threshold) and 0 <= probability_threshold <= 1):
            raise ValueError("'probability_threshold' must be between 0.0 and 1.0")
        if seed is not None and not _is_integer(seed):
            raise ValueError("'seed' must be an integer")
        return cls(SamplingModeType.RANDOM, top, probability_threshold, seed)


@dataclass(frozen=True)
class GenerationOptions:
    """Hold the options of one request. None selects the default of the model.

    Args:
        sampling: greedy by default; random if only a temperature is set.
        temperature: divides the logits before random sampling; 1 by default, 0 is greedy.
        maximum_response_tokens: the response is truncated after this number of tokens.
        tool_calling_mode: whether tools may, must or must not be called; allowed by default.
        closes_at_limit: whether a guided response that reaches the token limit or the end of the context window is completed
            as its schema allows, with open strings and lists closed; its `finish_reason` is then `LENGTH`. True by default;
            False raises `DecodingFailureError` instead. Local models only; tool calls are never completed.
        image_detail: the resolution mode of the prompt's images: `"high"` (tiles and an overview), `"balanced"` or
            `"rapid"`. More detail takes more tokens (`LanguageModel.token_count`); the model's first mode by default.
            Endpoints get the `detail` high, auto or low.
        copies_lines: whether strings of a guided response that have no other guide are whole lines of the session's prompts
            and outputs of tools: headings that follow each other, a line, two lines, or what follows a colon. For small
            models, which choose a line better than they copy it. False by default; local models only.

    Raises:
        ValueError: a value is out of range.
    """

    sampling: SamplingMode | None = None
    temperature: float | None = None
    maximum_response_tokens: int | None = None
    tool_calling_mode: ToolCallingMode | None = None
    closes_at_limit: bool | None = None
    image_detail: ImageDetail | None = None
    copies_lines: bool | None = None

    def __post_init__(self) -> None:
        if self.sampling is not None and not isinstance(self.sampling, SamplingMode):
            raise ValueError("'sampling' must be a SamplingMode instance")
        if self.temperature is not None and not _is_number(self.temperature):
            raise ValueError("'temperature' must be a number")
        if self.temperature is not None and not 0 <= self.temperature < float("inf"):
            raise ValueError("'temperature' must be finite and non-negative")
        if self.maximum_response_tokens is not None and not _is_integer(self.maximum_response_tokens):
            raise ValueError("'maximum_response_tokens' must be an integer")
        if self.maximum_response_tokens is not None and self.maximum_response_tokens <= 0:
            raise ValueError("'maximum_response_tokens' must be positive")
        if self.tool_calling_mode is not None and self.tool_calling_mode not in list(ToolCallingMode):
            raise ValueError("'tool_calling_mode' must be a ToolCallingMode: allowed, required or disallowed")
        if self.closes_at_limit is not None and not isinstance(self.closes_at_limit, bool):
            raise ValueError("'closes_at_limit' must be True or False")
        if self.copies_lines is not None and not isinstance(self.copies_lines, bool):
            raise ValueError("'copies_lines' must be True or False")
        if self.image_detail is not None and self.image_detail not in get_args(ImageDetail):
            raise ValueError(f"'image_detail' must be one of {', '.join(get_args(ImageDetail))}, got {self.image_detail!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return the options that are set, with Apple's keys."""
        sampling = self.sampling and {
            "mode": self.sampling.mode_type.value,
            "top_k": self.sampling.top,
            "top_p": self.sampling.probability_threshold,
            "seed": self.sampling.seed,
        }
        options = {
            "sampling": sampling and {name: value for name, value in sampling.items() if value is not None},
            "temperature": self.temperature,
            "maximum_response_tokens": self.maximum_response_tokens,
            "tool_calling_mode": self.tool_calling_mode and str(self.tool_calling_mode),
            "closes_at_limit": self.closes_at_limit,
            "image_detail": self.image_detail,
            "copies_lines": self.copies_lines,
        }
        return {name: value for name, value in options.items() if value is not None}


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
