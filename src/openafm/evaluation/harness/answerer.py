"""What answers prompts: any `LanguageModel`, or a function that returns recorded answers."""

from __future__ import annotations

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from openafm.core.errors import UsageError
from openafm.evaluation.features.phone import Phone
from openafm.evaluation.harness.task import Output, Prompt, World
from openafm.framework.backends.http_lines import EndpointReplyTooLongError
from openafm.framework.backends.language_model import (
    Answer,
    AnswerRequest,
    Capability,
    Event,
    FinishReason,
    LanguageModelExecutor,
    TextPiece,
)
from openafm.framework.errors import (
    DecodingFailureError,
    ExceededContextWindowSizeError,
    GenerationError,
    GuardrailViolationError,
    RefusalError,
    UnsupportedGuideError,
)
from openafm.framework.options import GenerationOptions, SamplingMode
from openafm.framework.transcripts.images import Image
from openafm.framework.transcripts.prompt import Prompt as FrameworkPrompt
from openafm.framework.transcripts.prompt import UnsupportedAttachmentError, prompt_content
from openafm.runtime.engines.base import ContextWindowError
from openafm.tokenizer.conversation import (
    ContentPart,
    Instructions,
    JsonSchema,
    ToolCall,
    ToolDefinition,
    ToolTurn,
    UserTurn,
)

if TYPE_CHECKING:
    from openafm.evaluation.harness.raw_text import RawText
    from openafm.framework.backends.language_model import LanguageModel
    from openafm.framework.backends.system_model import SystemLanguageModel

MAX_ROUNDS = 8
"""Answers to one prompt of a stateful environment: a model that calls tools without end is stopped."""
ANSWERED_WITH_FAILURE = (
    ContextWindowError,
    DecodingFailureError,
    EndpointReplyTooLongError,
    ExceededContextWindowSizeError,
    GuardrailViolationError,
    RefusalError,
    UnsupportedGuideError,
)
"""Errors that the model or the prompt causes: the item scores 0. All others end the run, which can be continued."""


class Answerer(ABC):
    """Base of what answers prompts. Called by several threads at once."""

    name: str
    signature: str
    """Identifies model, adapter and sampling: a part of the key of cached outputs."""
    bits_per_weight: float | None = None
    """What the weights take, where they are on this machine."""

    @abstractmethod
    def answer(self, prompt: Prompt, cancelled: Callable[[], bool]) -> Output:
        """Return the output for a prompt.

        Raises:
            OpenAFMError: one of `ANSWERED_WITH_FAILURE` for this prompt alone; another if no prompt can be answered.
        """


class RecordedAnswerer(Answerer):
    """Answer with a function: recorded outputs, or a scripted model in tests and cross-checks."""

    def __init__(self, answers: Callable[[Prompt], Output], name: str = "recorded") -> None:
        self._answers, self.name = answers, name
        self.signature = f"recorded:{name}"

    def answer(self, prompt: Prompt, cancelled: Callable[[], bool]) -> Output:
        return self._answers(prompt)


class ModelAnswerer(Answerer):
    """Answer with a language model: greedy, or sampled with a temperature and a seed.

    Chats work with every model. Completions and choices need a bundle on this machine: endpoints for chats apply a template
    and return no likelihoods.

    Args:
        instructions: instructions before every chat, such as a system prompt of an endpoint; a prompt's own come after it.
        identity: distinguishes adapters of one model in the signature.
    """

    def __init__(
        self, model: LanguageModel, *, temperature: float = 0.0, seed: int = 0, instructions: str = "", identity: str = ""
    ) -> None:
        self.model, self._instructions = model, instructions
        self.name = model.name
        self._sampling = SamplingMode.greedy() if temperature == 0 else SamplingMode.random(seed=seed)
        self._temperature = temperature or None
        parts = [_model_identity(model), identity, instructions, temperature, seed if temperature else 0]
        self.signature = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        self._raw: RawText | None = None
        local = local_model(model)
        if local is not None:
            from openafm.bundle.describe import stored_bits

            self.bits_per_weight = round(stored_bits(local.described()).total, 3)

    def answer(self, prompt: Prompt, cancelled: Callable[[], bool]) -> Output:
        started = time.perf_counter()
        output = self._chat(prompt, cancelled) if prompt.kind == "chat" else self._raw_text().answer(prompt, cancelled)
        return Output.from_dict(output.to_dict() | {"seconds": round(time.perf_counter() - started, 4)})

    def _chat(self, prompt: Prompt, cancelled: Callable[[], bool]) -> Output:
        tools = tuple(
            ToolDefinition(name=each["name"], description=each["description"], parameters=each["parameters"])
            for each in prompt.tools
        )
        text = "\n".join(part for part in (self._instructions, prompt.instructions) if part)
        schema: JsonSchema | None = None if prompt.schema is None else dict(prompt.schema)
        content, images = self._content(prompt)
        messages = [UserTurn(content=content, response_format=schema), *(UserTurn(text=each) for each in prompt.turns)]
        opening = (Instructions(text=text, tools=tools),)
        self.model.check_context((*opening, messages[0]))
        executor = self.model.executor(opening)
        world = None if prompt.world is None else (prompt.open_world or Phone)(prompt.world)
        request = AnswerRequest(
            turns=(),
            schema=schema,
            tools=tools,
            must_call=False,
            options=GenerationOptions(
                sampling=self._sampling, temperature=self._temperature, maximum_response_tokens=prompt.max_tokens
            ),
            images=images,
            cancelled=cancelled,
        )
        rounds = 1 if world is None else prompt.rounds or MAX_ROUNDS
        output = Output()
        for number, message in enumerate(messages):
            answered = _answered(executor, replace(request, turns=(message,)), world, rounds)
            calls = [{**call, "turn": number} if prompt.turns else call for call in answered.calls]
            output = replace(
                answered,
                calls=(*output.calls, *calls),
                prompt_tokens=output.prompt_tokens + answered.prompt_tokens,
                generated_tokens=output.generated_tokens + answered.generated_tokens,
            )
            if output.finish != "stop":
                break
        return output

    def _content(self, prompt: Prompt) -> tuple[tuple[ContentPart, ...], dict[str, bytes]]:
        """Return the content of the first message, and its images by digest.

        Raises:
            UnsupportedAttachmentError: the prompt has images, which the model does not see.
        """
        if prompt.images and Capability.VISION not in self.model.capabilities:
            raise UnsupportedAttachmentError(
                f"the model {self.name} does not support images; choose a bundle with a vision encoder, or leave it out"
            )
        return prompt_content(FrameworkPrompt(*map(Image, prompt.images), prompt.text), self.model.image_part)

    def _raw_text(self) -> RawText:
        if self._raw is None:
            from openafm.evaluation.harness.raw_text import RawText

            loaded = local_model(self.model)
            if loaded is None:
                raise UsageError(
                    f"{self.name} is not a bundle on this machine, so it cannot continue raw text or compare likelihoods;"
                    " choose a task without ':lm_eval', or import the weights"
                )
            self._raw = RawText(loaded.load())
        return self._raw


def _answered(executor: LanguageModelExecutor, request: AnswerRequest, world: World | None, rounds: int) -> Output:
    """Return the answer to one message. Called tools run on the world until the model answers with text."""
    output, calls = Output(), []
    for _ in range(rounds):
        answer = _drained(executor.answer(request))
        calls += [{"name": call.name, "arguments": dict(call.arguments)} for call in answer.calls]
        output = Output(
            text=answer.text,
            prompt_tokens=output.prompt_tokens + answer.prompt_tokens,
            generated_tokens=output.generated_tokens + answer.generated_tokens,
            finish=answer.finish,
        )
        if world is None or not answer.calls:
            break
        outputs = [ToolTurn(name=call.name, text=world.call(call.name, call.arguments)) for call in answer.calls]
        request = replace(request, turns=tuple(outputs))
    else:
        output = replace(output, finish="length")  # the model never stops to call tools
    return replace(output, calls=tuple(calls))


@dataclass(frozen=True, kw_only=True)
class _Answer:
    text: str
    calls: tuple[ToolCall, ...] = ()
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finish: str = "stop"


def _drained(events: Generator[Event, None, Answer]) -> _Answer:
    """Return the whole answer. An answer that the context window ends is cut, as one that the token limit ends."""
    pieces: list[str] = []
    try:
        while True:
            event = next(events)
            if isinstance(event, TextPiece):
                pieces.append(event.text)
    except StopIteration as stop:
        answer: Answer = stop.value
    except (ContextWindowError, ExceededContextWindowSizeError):
        if not pieces:
            raise
        return _Answer(text="".join(pieces), finish="length")
    return _Answer(
        text=answer.turn.text,
        calls=answer.turn.tool_calls,
        prompt_tokens=answer.usage.prompt_tokens,
        generated_tokens=answer.usage.generated_tokens,
        finish="length" if answer.finish_reason is FinishReason.LENGTH else "stop",
    )


def local_model(model: LanguageModel) -> SystemLanguageModel | None:
    """Return the model if it is a bundle on this machine."""
    from openafm.framework.backends.system_model import SystemLanguageModel

    return model if isinstance(model, SystemLanguageModel) else None


def failure(error: GenerationError | ContextWindowError) -> Output:
    """Return the output of a request that failed, with the text so far."""
    return Output(
        text=str(getattr(error, "raw_content", "")),
        finish="error",
        error=f"{type(error).__name__}: {error}",
        was_blocked=isinstance(error, GuardrailViolationError | RefusalError),
    )


def _model_identity(model: LanguageModel) -> Mapping[str, Any]:
    local = local_model(model)
    if local is not None:
        return {"bundle": local.described().signature}
    address = {name: getattr(model, name) for name in ("base_url",) if hasattr(model, name)}
    return {"class": type(model).__qualname__, "name": model.name, **address}
