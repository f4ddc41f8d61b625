"""The protocol between sessions and models: bundles, endpoints and models of your own (report 7).

A `LanguageModel` describes a model. Its `LanguageModelExecutor` holds the model's state of one session. The session passes
new turns to the executor, shows its events as they arrive and runs the tools that it calls. Caches, grammars and networks
are details of the executor.
"""

from __future__ import annotations

import contextlib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum, StrEnum
from functools import partial
from typing import Any, TypeAlias, cast

from openafm.framework.errors import ExceededContextWindowSizeError
from openafm.framework.options import GenerationOptions, ImageDetail
from openafm.framework.profiling.recorder import NOT_RECORDED, SpanRecorder
from openafm.framework.schema.schema import GenerationSchema
from openafm.framework.tools.tool import Tool
from openafm.framework.transcripts.prompt import PromptLike, prompt_content
from openafm.framework.transcripts.transcript import Transcript
from openafm.safety.guardrail import Guardrail
from openafm.tokenizer.conversation import (
    AssistantTurn,
    ContentPart,
    ContentTurn,
    ImagePart,
    Instructions,
    JsonSchema,
    ToolDefinition,
    Turn,
    UserTurn,
)
from openafm.tokenizer.schema_text import compact_json
from openafm.tokenizer.tool_calls import tool_calls_text

_BYTES_PER_TOKEN = 4  # typical of tokenizers with 50,000 to 200,000 tokens, over languages and code
_MAX_BYTES_PER_TOKEN = 6  # no known tokenizer needs fewer tokens for a natural language
_TOKENS_PER_TURN = 4  # control tokens of a chat template


class Capability(StrEnum):
    """A feature of a model. A request that needs a missing one raises `UnsupportedCapabilityError` before any token."""

    GUIDED_GENERATION = "guided_generation"
    TOOL_CALLING = "tool_calling"
    VISION = "vision"
    REASONING = "reasoning"


class FinishReason(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    """The model ended it."""
    LENGTH = "length"
    """It reached `maximum_response_tokens`, or the token limit of an endpoint."""


class SystemLanguageModelUnavailableReason(IntEnum):
    """Why a model cannot answer. The numbers 0 to 2 and 255 are Apple's."""

    APPLE_INTELLIGENCE_NOT_ENABLED = 0
    DEVICE_NOT_ELIGIBLE = 1
    MODEL_NOT_READY = 2
    MODEL_NOT_INSTALLED = 3
    MODEL_DAMAGED = 4
    MODEL_VERSION_UNSUPPORTED = 5
    UNKNOWN = 0xFF


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Count the tokens and times of a request, summed over its answers.

    Attributes:
        prompt_tokens: tokens before each answer: transcript, prompt, tool outputs.
        cached_tokens: prompt tokens that were already computed, by this session or by one with the same prefix.
        generated_tokens: tokens of the answers, stop tokens included.
        forced_tokens: generated tokens for which the grammar allowed one choice only.
        model_steps: forward passes of the model, prefill included.
        drafted_tokens: tokens proposed by the draft model.
        accepted_tokens: drafted tokens that the model accepted.
        ttft_ms: wall time from the request to the first token, in milliseconds.
        tokens_per_second: generation speed after the first token.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    model_steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    ttft_ms: float = 0.0
    tokens_per_second: float = 0.0

    def __add__(self, later: Usage) -> Usage:
        seconds = sum(u.generated_tokens / u.tokens_per_second for u in (self, later) if u.tokens_per_second)
        tokens = sum(u.generated_tokens for u in (self, later) if u.tokens_per_second)
        return Usage(
            prompt_tokens=self.prompt_tokens + later.prompt_tokens,
            cached_tokens=self.cached_tokens + later.cached_tokens,
            generated_tokens=self.generated_tokens + later.generated_tokens,
            forced_tokens=self.forced_tokens + later.forced_tokens,
            model_steps=self.model_steps + later.model_steps,
            drafted_tokens=self.drafted_tokens + later.drafted_tokens,
            accepted_tokens=self.accepted_tokens + later.accepted_tokens,
            ttft_ms=self.ttft_ms or later.ttft_ms,
            tokens_per_second=tokens / seconds if seconds else 0.0,
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class AnswerRequest:
    """Hold the arguments of `LanguageModelExecutor.answer`.

    Attributes:
        turns: the turns since the last answer: a prompt, or the outputs of called tools.
        schema: the JSON Schema that the answer's text, compact JSON, must satisfy; None for free text.
        tools: the tools that may be called.
        must_call: True if the answer must be tool calls.
        max_calls: the limit on tool calls in the answer.
        options: sampling and limits.
        images: the bytes of the images in `turns` and in the transcript before them, by digest.
        cancelled: returns True once the request is cancelled. Check it at every token and raise `GenerationCancelledError`.
        span: records the answer for profiles; an executor may add its parts.
    """

    turns: tuple[Turn, ...]
    schema: JsonSchema | None
    tools: tuple[ToolDefinition, ...]
    must_call: bool
    options: GenerationOptions
    cancelled: Callable[[], bool]
    max_calls: int = 16
    images: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    span: SpanRecorder = field(default=NOT_RECORDED, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class TextPiece:
    """An event: the next characters of the answer's text."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCallPiece:
    """An event: the next characters of the arguments of tool call number `index`."""

    index: int
    name: str
    arguments: str


Event: TypeAlias = TextPiece | ToolCallPiece


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Hold a finished answer: text or tool calls, its usage, and why it ended."""

    turn: AssistantTurn
    usage: Usage
    finish_reason: FinishReason = FinishReason.STOP


class LanguageModelExecutor(ABC):
    """Base of executors: the model's state of one session. Used by one thread at a time."""

    @abstractmethod
    def answer(self, request: AnswerRequest) -> Generator[Event, None, Answer]:
        """Append `request.turns` and a generated answer. Yield the answer's text and tool calls as events, and return it.

        This is a plain generator, `def answer(...)` with `yield`, not `async def`: it runs in a thread of the session. To
        use an asynchronous client, run its event loop in a thread and pass the events through a queue.

        Raises:
            GenerationError: the model gave no answer; subclasses as in `LanguageModelSession.respond`.
        """

    @abstractmethod
    def prefill(self, prompt_prefix: str, cancelled: Callable[[], bool]) -> None:
        """Prefill the pending turns and the beginning of the next prompt. Must not change any answer."""

    @abstractmethod
    def undone_on_error(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that restores the executor's state if its block raises."""

    def snapshot(self) -> bytes | None:
        """Return the state as bytes for `LanguageModel.restored_executor`; None (the default) if there is none."""
        return None


class LanguageModel(ABC):
    """Base of model descriptions: cheap to create, shared by sessions."""

    name: str
    capabilities: frozenset[Capability]

    @property
    @abstractmethod
    def context_size(self) -> int:
        """The size of the context window in tokens: instructions, prompts and responses together."""

    async def token_count(
        self,
        value: PromptLike | Sequence[Tool] | GenerationSchema | Transcript | None = None,
        *,
        instructions: str | None = None,
        image_detail: ImageDetail | None = None,
    ) -> int:
        """`token_count_blocking` as a coroutine. It runs in the event loop and takes milliseconds."""
        return self.token_count_blocking(value, instructions=instructions, image_detail=image_detail)

    def token_count_blocking(
        self,
        value: PromptLike | Sequence[Tool] | GenerationSchema | Transcript | None = None,
        *,
        instructions: str | None = None,
        image_detail: ImageDetail | None = None,
    ) -> int:
        """Return the number of tokens that a value adds to a session: an estimate of 4 UTF-8 bytes per token.

        Override it in a model with a tokenizer.

        Args:
            image_detail: the resolution mode of a prompt's images, as in `GenerationOptions`.

        Raises:
            ValueError: neither or both of `value` and `instructions` are given.
        """
        image_part = partial(self.image_part, detail=image_detail)
        return _estimate(_counted_turns(value, instructions, image_part), _BYTES_PER_TOKEN)

    def check_context(self, turns: Sequence[Turn]) -> None:
        """Raise if `turns`, the transcript with a new prompt, cannot fit the context window at 6 UTF-8 bytes per token.

        Override it with a `pass` in a model that counts tokens itself.

        Raises:
            ExceededContextWindowSizeError: the turns exceed the context window.
        """
        if _estimate(turns, _MAX_BYTES_PER_TOKEN) > self.context_size:
            raise ExceededContextWindowSizeError(_estimate(turns, _BYTES_PER_TOKEN), self.context_size)

    def num_image_tokens(self, image: bytes, detail: ImageDetail | None = None) -> int:
        """Return the number of tokens that an image takes in the context window (default: an estimate)."""
        return 256

    def image_part(self, image: bytes, detail: ImageDetail | None = None) -> ContentPart:
        """Return the part of a prompt for an image: the image, or text if the model only reads what is written in it."""
        return ImagePart(digest=hashlib.sha256(image).hexdigest(), num_tokens=self.num_image_tokens(image, detail))

    @abstractmethod
    def is_available(self) -> tuple[bool, SystemLanguageModelUnavailableReason | None]:
        """Return whether the model can answer, and the reason if not. Never raises."""

    @abstractmethod
    def executor(self, turns: Sequence[Turn]) -> LanguageModelExecutor:
        """Return an executor for a session whose transcript is `turns`.

        Raises:
            AssetsUnavailableError: the model is not available.
        """

    def restored_executor(self, turns: Sequence[Turn], snapshot: bytes | memoryview) -> LanguageModelExecutor:
        """Return an executor for `turns` that uses the snapshot of an executor of these turns or of a prefix of them.

        A snapshot only saves time: ignore one that is damaged or of another model.
        """
        return self.executor(turns)

    def guardrail(self, *, is_guided: bool) -> Guardrail | None:
        """Return the guardrail that checks prompts and responses; None (the default) checks nothing."""
        return None


def _counted_turns(
    value: PromptLike | Sequence[Tool] | GenerationSchema | Transcript | None,
    instructions: str | None,
    image_part: Callable[[bytes], ContentPart],
) -> tuple[Turn, ...]:
    """Return turns with the text and images of the arguments of `token_count`."""
    if (value is None) == (instructions is None):
        raise ValueError("token_count() takes either a value or 'instructions'; pass one of them")
    match value:
        case None:
            return (Instructions(text=instructions or ""),)
        case GenerationSchema():
            return (UserTurn(text=compact_json(value.to_dict())),)
        case Transcript():
            return value.turns
        case list() | tuple() if tools := [each for each in value if isinstance(each, Tool)]:
            return (Instructions(text="", tools=tuple(tool.definition() for tool in tools)),)
    content, _ = prompt_content(cast(PromptLike, value), image_part)
    return (UserTurn(content=content),)


def _estimate(turns: Sequence[Turn], bytes_per_token: int) -> int:
    num_bytes = sum(len(_turn_text(turn).encode("utf-8", "replace")) for turn in turns)
    num_image_tokens = sum(image.num_tokens for turn in turns if isinstance(turn, ContentTurn) for image in turn.images)
    return -(-num_bytes // bytes_per_token) + _TOKENS_PER_TURN * len(turns) + num_image_tokens


def _turn_text(turn: Turn) -> str:
    match turn:
        case Instructions():
            return turn.text + "".join(f"{t.name}{t.description}{compact_json(t.parameters)}" for t in turn.tools)
        case UserTurn(response_format=schema) if schema is not None:
            return turn.text + compact_json(schema)
        case AssistantTurn() if turn.tool_calls:
            return turn.text + tool_calls_text(turn.tool_calls)
    return turn.text
