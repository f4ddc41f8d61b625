"""From a request to its response: answers of the model, and the tools it calls on the way, until it says something."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from openafm.core.errors import OpenAFMError
from openafm.framework.backends.language_model import (
    Answer,
    AnswerRequest,
    Capability,
    Event,
    LanguageModel,
    LanguageModelExecutor,
    TextPiece,
    Usage,
)
from openafm.framework.errors import (
    DecodingFailureError,
    ExceededContextWindowSizeError,
    FoundationModelsError,
    GenerationCancelledError,
    GenerationError,
    GuardrailViolationError,
    RefusalError,
    RequestTimeoutError,
    SchemaFormatError,
    UnsupportedCapabilityError,
)
from openafm.framework.options import GenerationOptions, ToolCallingMode
from openafm.framework.session.formats import Snapshot, TextFormat
from openafm.framework.session.request import Request, Response
from openafm.framework.tools.runner import ToolRunner
from openafm.framework.tools.tool import Tool, ToolLimits, by_name
from openafm.framework.transcripts.prompt import UnsupportedAttachmentError, prompt_attachments, prompt_text
from openafm.framework.transcripts.transcript import (
    Entry,
    PromptEntry,
    ResponseEntry,
    ToolCallsEntry,
    ToolOutputEntry,
    Transcript,
)
from openafm.runtime.engines.base import ContextWindowError
from openafm.safety.guardrail import Guardrail, OutputMonitor, Refused, Verdict, Violation
from openafm.tokenizer.conversation import Instructions, ToolDefinition, Turn, UserTurn
from openafm.tokenizer.schema_text import SchemaTextError
from openafm.tokenizer.tool_calls import tool_calls_text

_EXPLAIN = "Say in one sentence why you will not help with this."


class Responder:
    """A model, the transcript of its session and the tools it may call. Answers one request at a time.

    Args:
        snapshot: what `snapshot` gave of a session with this transcript, for the first request.
    """

    def __init__(
        self,
        model: LanguageModel,
        transcript: Transcript,
        tools: Sequence[Tool] = (),
        limits: ToolLimits | None = None,
        snapshot: bytes | memoryview | None = None,
    ) -> None:
        self.model, self.transcript = model, transcript
        named = by_name(tools)
        self._definitions = tuple(tool.definition() for tool in named.values())
        self._limits = limits or ToolLimits()
        self._runner = ToolRunner(tools=named, limits=self._limits)
        self._snapshot = snapshot
        self._executor: LanguageModelExecutor | None = None
        self._num_told = 0  # entries of the transcript that the executor knows

    def respond(self, request: Request[Any, Any]) -> Generator[Snapshot[Any], None, None]:
        """Answer a request, told by snapshots if it is streamed; `request.response` holds the response. All or nothing."""
        self._check_capabilities(request)
        guardrail = self.model.guardrail(is_guided=request.format.schema is not None)
        text = prompt_text(request.prompt)
        with _framework_errors():
            if guardrail is not None:
                self._obey(guardrail.check_input(text), "the prompt", text)
            executor = self._told()
            exchange = _Exchange(request, executor, guardrail, text, self._deadline())
            with executor.undone_on_error():
                yield from self._answers(exchange)
                self.transcript._append(*exchange.entries, after=self._num_told)
            self._num_told += len(exchange.entries)

    def prewarm(self, prompt_prefix: str, cancelled: Callable[[], bool]) -> None:
        """Load the model and prefill what the next prompt will follow, and its beginning."""
        with _framework_errors():
            self._told().prefill(prompt_prefix, cancelled)

    def snapshot(self) -> bytes | memoryview | None:
        """What the model has computed of the transcript; None if that is nothing."""
        with _framework_errors():
            return self._snapshot if self._executor is None else self._executor.snapshot()

    def _answers(self, exchange: _Exchange) -> Generator[Snapshot[Any], None, None]:
        request = exchange.request
        schema = request.format.schema
        prompt = UserTurn(text=exchange.text, response_format=schema if request.include_schema_in_prompt else None)
        exchange.entries.append(PromptEntry(turn=prompt, options=request.options, schema=schema))
        turns: tuple[Turn, ...] = (prompt,)
        for num_rounds in itertools.count():
            answer = yield from self._answer(exchange, turns, num_rounds)
            exchange.usage += answer.usage
            if not answer.turn.tool_calls:
                break
            turns = self._call_tools(exchange, answer)
        final = request.format.final(answer.turn.text)
        source = None if schema is None else str(schema.get("title", ""))
        exchange.entries.append(ResponseEntry(turn=answer.turn, source=source, assets=(self.model.name,)))
        request.response = Response(
            content=final.content,
            raw_content=final.raw_content,
            transcript_entries=tuple(exchange.entries),
            usage=exchange.usage,
        )

    def _answer(
        self, exchange: _Exchange, turns: tuple[Turn, ...], num_rounds: int
    ) -> Generator[Snapshot[Any], None, Answer]:
        request, mode = exchange.request, exchange.request.options.tool_calling_mode
        may_call = mode != ToolCallingMode.DISALLOWED and num_rounds < self._limits.rounds
        tools = self._definitions if may_call else ()
        events = exchange.executor.answer(
            AnswerRequest(
                turns=turns,
                schema=request.format.schema,
                tools=tools,
                must_call=mode == ToolCallingMode.REQUIRED and num_rounds == 0 and bool(self._definitions),
                options=request.options,
                cancelled=exchange.is_over,
            )
        )
        answers: list[Answer] = []
        with contextlib.closing(events):
            pieces = self._pieces(exchange, events, answers)
            try:
                if request.is_streamed:
                    yield from request.format.snapshots(pieces)
                for _ in pieces:  # what snapshots left, or all
                    pass
            except GenerationCancelledError:
                exchange.raise_if_late()
                raise
        _check_calls(answers[0], tools)
        return answers[0]

    def _pieces(
        self, exchange: _Exchange, events: Generator[Event, None, Answer], answers: list[Answer]
    ) -> Generator[str, None, None]:
        """The text of an answer; at its end the answer is in `answers`."""
        watch = None if exchange.guardrail is None else OutputMonitor(exchange.guardrail)
        while True:
            try:
                event = next(events)
            except StopIteration as stop:
                answers.append(stop.value)
                break
            if isinstance(event, TextPiece):
                if watch is not None:
                    self._obey(watch.push(event.text), "the response", exchange.text)
                yield event.text
        if watch is not None:
            self._obey(watch.finish(), "the response", exchange.text)

    def _call_tools(self, exchange: _Exchange, answer: Answer) -> tuple[Turn, ...]:
        calls = answer.turn.tool_calls
        try:
            outputs = self._runner.run(calls, exchange.is_over, exchange.request.loop)
        except GenerationCancelledError:
            exchange.raise_if_late()
            raise
        call_ids = tuple(str(uuid.uuid4()).upper() for _ in calls)
        exchange.entries.append(ToolCallsEntry(turn=answer.turn, call_ids=call_ids, assets=(self.model.name,)))
        exchange.entries += [
            ToolOutputEntry(turn=output, call_id=call_id) for output, call_id in zip(outputs, call_ids, strict=True)
        ]
        return outputs

    def _told(self) -> LanguageModelExecutor:
        """The executor, knowing the transcript as it is; told anew when it grew by other means than this session's."""
        if self._executor is None or self._num_told != len(self.transcript):
            turns = self.transcript.turns
            told = self._with_tools(turns)
            if self._snapshot is None:
                self._executor = self.model.executor(told)
            else:
                self._executor = self.model.restored_executor(told, self._snapshot)
                self._snapshot = None  # it may be large
            self._num_told = len(turns)
        return self._executor

    def _with_tools(self, turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
        """The transcript's turns; the tools announced are those of this session, whatever the transcript says."""
        if turns and isinstance(turns[0], Instructions):
            return dataclasses.replace(turns[0], tools=self._definitions), *turns[1:]
        return (Instructions(text="", tools=self._definitions), *turns) if self._definitions else turns

    def _check_capabilities(self, request: Request[Any, Any]) -> None:
        if request.options.tool_calling_mode == ToolCallingMode.REQUIRED and not self._definitions:
            raise ValueError("tool_calling_mode is 'required', but this session has no tools; give it some")
        calls = self._definitions and request.options.tool_calling_mode != ToolCallingMode.DISALLOWED
        needed = {
            Capability.GUIDED_GENERATION: request.format.schema is not None,
            Capability.TOOL_CALLING: bool(calls),
            Capability.VISION: bool(prompt_attachments(request.prompt)),
        }
        for capability, is_needed in needed.items():
            if is_needed and capability not in self.model.capabilities:
                is_vision = capability is Capability.VISION
                raise (UnsupportedAttachmentError if is_vision else UnsupportedCapabilityError)(
                    f"the model {self.model.name} has no {capability.replace('_', ' ')}, which this request needs"
                )

    def _obey(self, verdict: Verdict, what: str, prompt: str) -> None:
        match verdict:
            case Violation():
                raise GuardrailViolationError(f"{what} was stopped by a guardrail ({verdict.category}): {verdict.reason}")
            case Refused():
                refused = PromptEntry(turn=UserTurn(text=prompt), options=GenerationOptions())
                said = (*self.transcript, refused)  # the session may go on before anybody asks
                raise RefusalError(f"the model declined to answer: {verdict.reason}", lambda: self._explain(said))

    def _explain(self, said: Sequence[Entry]) -> str:
        request: Request[str, str] = Request(
            prompt=_EXPLAIN,
            format=TextFormat(),
            options=GenerationOptions(maximum_response_tokens=64),
            include_schema_in_prompt=False,
        )
        responder = Responder(_Unguarded(self.model), Transcript(said))
        for _ in responder.respond(request):
            pass
        assert request.response is not None
        return request.response.content

    def _deadline(self) -> float | None:
        seconds = self._limits.request_seconds
        return None if seconds is None else time.monotonic() + seconds


def _check_calls(answer: Answer, tools: Sequence[ToolDefinition]) -> None:
    """A model that calls on and on, whatever it is told, must come to an end too."""
    may = [tool.name for tool in tools]
    for call in answer.turn.tool_calls:
        if call.name not in may:
            raise DecodingFailureError(
                f"the model called the tool '{call.name}', which it may not; it may: {', '.join(may) or 'none'}",
                raw_content=tool_calls_text(answer.turn.tool_calls),
            )


class _Exchange:
    """What is under way for one request: what it has added so far, and when it must end."""

    def __init__(
        self,
        request: Request[Any, Any],
        executor: LanguageModelExecutor,
        guardrail: Guardrail | None,
        text: str,
        deadline: float | None,
    ) -> None:
        self.request, self.executor, self.guardrail, self.text = request, executor, guardrail, text
        self.entries: list[Entry] = []
        self.usage = Usage()
        self._deadline = deadline

    def is_over(self) -> bool:
        return self.request.cancelled.is_set() or self._is_late()

    def raise_if_late(self) -> None:
        if self._is_late() and not self.request.cancelled.is_set():
            raise RequestTimeoutError("the request took longer than ToolLimits.request_seconds; the session is as before it")

    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline


class _Unguarded(LanguageModel):
    """The same model, free to say why it refused."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.name, self.capabilities = model.name, model.capabilities

    @property
    def context_size(self) -> int:
        return self._model.context_size

    def is_available(self) -> Any:
        return self._model.is_available()

    def executor(self, turns: Sequence[Turn]) -> LanguageModelExecutor:
        return self._model.executor(turns)


@contextlib.contextmanager
def _framework_errors() -> Iterator[None]:
    """Errors of the rooms below, as the framework names them."""
    try:
        yield
    except FoundationModelsError:
        raise
    except ContextWindowError as error:
        raise ExceededContextWindowSizeError(error.token_count, error.context_length) from error
    except SchemaTextError as error:
        raise SchemaFormatError(f"incorrect schema format: {error}") from error
    except OpenAFMError as error:
        raise GenerationError(str(error)) from error
