"""Captioners made of the models of the framework: bundles with vision, and endpoints."""

from __future__ import annotations

from openafm.data.captions.captioner import EndlessAnswerError, ImageRequest, RefusedAnswerError
from openafm.framework.backends.http_lines import EndpointTimeoutError
from openafm.framework.backends.image_details import only_reads
from openafm.framework.backends.language_model import Capability, FinishReason, LanguageModel
from openafm.framework.backends.system_model import SystemLanguageModel
from openafm.framework.errors import (
    DecodingFailureError,
    GuardrailViolationError,
    RefusalError,
    RequestTimeoutError,
    UnsupportedCapabilityError,
)
from openafm.framework.options import GenerationOptions, SamplingMode
from openafm.framework.session.session import LanguageModelSession
from openafm.framework.tools.tool import ToolLimits
from openafm.framework.transcripts.images import Image
from openafm.framework.transcripts.prompt import Prompt


class SessionCaptioner:
    """A captioner that asks a model, each request in a session of its own.

    Args:
        model: a model with vision.
        temperature: of random sampling; greedy without it and without `seed`.
        seed: of random sampling. The same seed gives the same answers where the model supports it.

    Raises:
        UnsupportedCapabilityError: the model has no vision.
    """

    def __init__(self, model: LanguageModel, *, temperature: float | None = None, seed: int | None = None) -> None:
        # A model with a reader of pages has vision, and sees nothing but letters.
        sees_letters = isinstance(model, SystemLanguageModel) and only_reads(model.described())
        if sees_letters or Capability.VISION not in model.capabilities:
            raise UnsupportedCapabilityError(
                f"the model {model.name} does not support images; pass an endpoint whose model does, as in --endpoint"
                " http://localhost:8000/v1 --model NAME"
            )
        self._model, self._temperature = model, temperature
        is_greedy = temperature is None and seed is None
        self._sampling = SamplingMode.greedy() if is_greedy else SamplingMode.random(seed=seed)
        self.model = model.name
        if isinstance(model, SystemLanguageModel):
            self.model = f"{model.name}@{model.described().signature[:12]}"
        self.sampling = "greedy" if is_greedy else f"random, temperature {temperature or 1:g}, seed {seed}"

    def __call__(self, request: ImageRequest, /) -> str:
        """Return the answer to a request.

        Raises:
            EndlessAnswerError: it reached the limit of tokens or seconds.
            RefusedAnswerError: the model or its guardrail refused.
            GenerationError: the model cannot be reached, or is not available.
        """
        limits = ToolLimits(request_seconds=request.seconds)
        session = LanguageModelSession(model=self._model, tool_limits=limits)
        has_schema = request.schema is not None and Capability.GUIDED_GENERATION in self._model.capabilities
        try:
            response = session.respond_full_blocking(
                Prompt(Image(request.image), request.prompt),
                json_schema=dict(request.schema) if has_schema and request.schema else None,
                options=GenerationOptions(
                    sampling=self._sampling,
                    temperature=self._temperature,
                    maximum_response_tokens=request.max_tokens,
                ),
            )
        except (RefusalError, GuardrailViolationError) as error:
            raise RefusedAnswerError(str(error)) from error
        except (RequestTimeoutError, EndpointTimeoutError) as error:
            raise EndlessAnswerError(f"no answer within {request.seconds:g} s: {error}") from error
        except DecodingFailureError as error:
            return error.raw_content  # the check reports it
        text = response.content if isinstance(response.content, str) else response.raw_content.to_json()
        if response.finish_reason is FinishReason.LENGTH:
            raise EndlessAnswerError(f"the answer did not end within {request.max_tokens} tokens", text)
        return text
