"""The interface of models that read images: a request with an image and a prompt, answered with text.

Captioners, region captioners and teachers are all `Captioner`s. `recipes/pipelines/captioning.py` makes them of the sessions
of the framework; `FunctionCaptioner` makes one of a function.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from openafm.core.errors import OpenAFMError


@dataclass(frozen=True, kw_only=True)
class ImageRequest:
    """A question about an image, and the limits of its answer.

    `schema` is the JSON Schema that the answer should satisfy; a captioner without guided generation may ignore it.
    """

    image: bytes = field(repr=False)
    """Encoded as PNG, JPEG or WebP."""
    prompt: str
    max_tokens: int
    seconds: float
    schema: Mapping[str, Any] | None = None


class EndlessAnswerError(OpenAFMError):
    """An answer did not end within its limits. `text` is the answer so far."""

    def __init__(self, message: str, text: str = "") -> None:
        super().__init__(message)
        self.text = text


class RefusedAnswerError(OpenAFMError):
    """A model or its guardrail refused to answer."""


class Captioner(Protocol):
    """A model that reads images. Several threads call it at once.

    `model` and `sampling` are recorded with every answer, and answers are cached under them. They must change when answers
    do.
    """

    @property
    def model(self) -> str: ...

    @property
    def sampling(self) -> str: ...

    def __call__(self, request: ImageRequest, /) -> str:
        """Return the answer.

        Raises:
            EndlessAnswerError: the answer did not end within the request's limits.
            RefusedAnswerError: the model refused.
            OpenAFMError: the model cannot be reached; the run stops and can be continued.
        """


@dataclass(frozen=True, kw_only=True)
class FunctionCaptioner:
    """A captioner made of a function."""

    model: str
    function: Callable[[ImageRequest], str]
    sampling: str = ""

    def __call__(self, request: ImageRequest, /) -> str:
        return self.function(request)


def request_key(captioner: Captioner, request: ImageRequest) -> str:
    """Return the SHA-256 in hex of everything that an answer depends on: image, model, prompt, sampling, token limit."""
    values = [
        hashlib.sha256(request.image).hexdigest(),
        captioner.model,
        request.prompt,
        captioner.sampling,
        request.max_tokens,
        request.schema,
    ]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
