"""What answers a session: a model of this machine, an endpoint, anything that keeps to this protocol (report 7).

A `LanguageModel` describes; its `LanguageModelExecutor` is the model's side of one session. A session hands it what is new,
shows its events as they come, and runs the tools that it calls; it knows nothing of caches, grammars or networks.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum, StrEnum
from typing import Any, TypeAlias

from openafm.framework.options import GenerationOptions
from openafm.safety.guardrail import Guardrail
from openafm.tokenizer.conversation import AssistantTurn, JsonSchema, ToolDefinition, Turn


class Capability(StrEnum):
    """What a model can be asked for; anything else raises `UnsupportedCapabilityError` before a token is generated."""

    GUIDED_GENERATION = "guided_generation"
    TOOL_CALLING = "tool_calling"
    VISION = "vision"
    REASONING = "reasoning"


class SystemLanguageModelUnavailableReason(IntEnum):
    """Why a model cannot answer. Numbers below 3 and 255 are Apple's."""

    APPLE_INTELLIGENCE_NOT_ENABLED = 0
    DEVICE_NOT_ELIGIBLE = 1
    MODEL_NOT_READY = 2
    MODEL_NOT_INSTALLED = 3
    MODEL_DAMAGED = 4
    MODEL_VERSION_UNSUPPORTED = 5
    UNKNOWN = 0xFF


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a request cost, all of its answers together.

    Attributes:
        prompt_tokens: all that came before an answer: the transcript, the prompt, what tools gave back.
        cached_tokens: those of them that had been computed before, by this session or by one that began alike.
        generated_tokens: tokens of the answers, those that end them included.
        forced_tokens: those of them that the schema left no choice about.
        model_steps: forward passes of the model, those over the prompt included.
        drafted_tokens: tokens that a draft model proposed.
        accepted_tokens: those of them that the model took.
        ttft_ms: wall time from the request to the first token, in milliseconds.
        tokens_per_second: of the tokens after the first.
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
    """What an executor answers.

    Attributes:
        turns: new since the last answer: a prompt, or the outputs of the tools it called.
        schema: the text of the answer is compact JSON that fits it; None: free text.
        tools: what may be called instead; none when empty.
        must_call: the answer has to be calls.
        cancelled: asked often; the answer then ends with `GenerationCancelledError`.
    """

    turns: tuple[Turn, ...]
    schema: JsonSchema | None
    tools: tuple[ToolDefinition, ...]
    must_call: bool
    options: GenerationOptions
    cancelled: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class TextPiece:
    """The next characters of the answer's text."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCallPiece:
    """The next characters of the arguments of call number `index`; a model may send them whole."""

    index: int
    name: str
    arguments: str


Event: TypeAlias = TextPiece | ToolCallPiece


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A finished answer: text, or calls of tools, and what it cost."""

    turn: AssistantTurn
    usage: Usage


class LanguageModelExecutor(ABC):
    """The model's side of one session: what it was told so far, and what it answers. Used by one thread at a time."""

    @abstractmethod
    def answer(self, request: AnswerRequest) -> Generator[Event, None, Answer]:
        """Append `request.turns` and an answer to them, told event by event.

        Raises:
            GenerationError: there is no answer. Its kinds are those of `LanguageModelSession.respond`.
        """

    @abstractmethod
    def prefill(self, prompt_prefix: str, cancelled: Callable[[], bool]) -> None:
        """Make the next answer come sooner, if its prompt begins with `prompt_prefix`. Changes nothing that was said."""

    @abstractmethod
    def undone_on_error(self) -> contextlib.AbstractContextManager[None]:
        """Put the executor back to what it was before the block when the block does not come to its end."""

    def snapshot(self) -> bytes | None:
        """What makes an executor of the same conversation come sooner, here or in a later process; by default nothing."""
        return None


class LanguageModel(ABC):
    """A description of a model; cheap to make, shared by sessions."""

    name: str
    capabilities: frozenset[Capability]

    @property
    @abstractmethod
    def context_size(self) -> int:
        """The most tokens that instructions, prompts and responses of a session may have together."""

    @abstractmethod
    def is_available(self) -> tuple[bool, SystemLanguageModelUnavailableReason | None]:
        """Whether the model can answer, else why not. Never raises."""

    @abstractmethod
    def executor(self, turns: Sequence[Turn]) -> LanguageModelExecutor:
        """The model's side of a session that so far consists of `turns`.

        Raises:
            AssetsUnavailableError: the model cannot answer now.
        """

    def restored_executor(self, turns: Sequence[Turn], snapshot: bytes | memoryview) -> LanguageModelExecutor:
        """`executor`, with the snapshot of one that was told these turns or the first of them.

        It saves time and changes nothing: one that is damaged, or of another model, is not used.
        """
        return self.executor(turns)

    def guardrail(self, *, is_guided: bool) -> Guardrail | None:
        """What checks prompts and responses of a request; none by default."""
        return None
