"""The request loop of a session: the model answers, its tool calls run, until it gives a response."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal

from openafm.framework.backends.language_model import (
    Answer,
    AnswerRequest,
    Capability,
    Event,
    FinishReason,
    LanguageModel,
    LanguageModelExecutor,
    TextPiece,
)
from openafm.framework.backends.truncation import truncation_error
from openafm.framework.errors import (
    ExceededContextWindowSizeError,
    GenerationCancelledError,
    RefusalError,
    UnsupportedCapabilityError,
)
from openafm.framework.options import GenerationOptions, ToolCallingMode
from openafm.framework.profiling.recorder import SpanRecorder, begin_request
from openafm.framework.profiling.spans import SpanKind
from openafm.framework.session.answer_checks import check_calls, check_events, framework_errors, violation_error
from openafm.framework.session.formats import IncompleteResponseError, Snapshot, TextFormat
from openafm.framework.session.request import Response, SessionRequest
from openafm.framework.session.request_state import RequestState, record_answer
from openafm.framework.tools.policy import ToolPolicy, denied_text
from openafm.framework.tools.runner import ToolOutput, ToolRunner
from openafm.framework.tools.tool import Tool, ToolLimits, by_name
from openafm.framework.transcripts.prompt import UnsupportedAttachmentError, prompt_attachments, prompt_content, prompt_text
from openafm.framework.transcripts.transcript import (
    Entry,
    PromptEntry,
    ResponseEntry,
    ToolCallsEntry,
    ToolOutputEntry,
    Transcript,
)
from openafm.runtime.engines.base import ContextWindowError
from openafm.safety.guardrail import OutputMonitor, Refused, Verdict, Violation
from openafm.tokenizer.conversation import ContentPart, Instructions, ToolCall, ToolTurn, Turn, UserTurn

_MAX_CALLS_PER_ANSWER = 16
_EXPLAIN = "Say in one sentence why you will not help with this."


class Responder:
    """Answer the requests of one session, one at a time.

    Args:
        model: the model that answers.
        transcript: the session's transcript; successful requests append to it.
        tools: the tools that the model may call.
        snapshot: the result of `snapshot` for a session with this transcript; the first request restores it.
        policy: which tool calls run; None: all.
    """

    def __init__(
        self,
        model: LanguageModel,
        transcript: Transcript,
        tools: Sequence[Tool] = (),
        limits: ToolLimits | None = None,
        snapshot: bytes | memoryview | None = None,
        policy: ToolPolicy | None = None,
    ) -> None:
        self.model, self.transcript, self._policy = model, transcript, policy
        tools_by_name = by_name(tools)
        self._definitions = tuple(tool.definition() for tool in tools_by_name.values())
        self._limits = limits or ToolLimits()
        self._runner = ToolRunner(tools=tools_by_name, limits=self._limits)
        self._snapshot = snapshot
        self._executor: LanguageModelExecutor | None = None
        self._num_entries = 0  # entries of the transcript that the executor has received

    def respond(self, request: SessionRequest[Any, Any]) -> Generator[Snapshot[Any], None, None]:
        """Answer a request: yield snapshots if it is streamed, then set `request.response`.

        A request that fails leaves the transcript and the executor unchanged.
        """
        with begin_request(self, "respond", model=self.model.name) as span:
            yield from self._respond(request, span)

    def _respond(self, request: SessionRequest[Any, Any], span: SpanRecorder) -> Generator[Snapshot[Any], None, None]:
        self._check_capabilities(request)
        guardrail = self.model.guardrail(is_guided=request.format.schema is not None)
        text = prompt_text(request.prompt)
        with framework_errors():
            span.set_content(prompt=text)
            with span.child(SpanKind.CHECK, "prompt"):
                content, images = prompt_content(request.prompt, self._image_part(request))
                schema = request.format.schema if request.include_schema_in_prompt else None
                prompt = UserTurn(content=content, response_format=schema)
                self.model.check_context((*self.transcript.turns, prompt))  # before the guardrail, which reads all of it
                if guardrail is not None:
                    # Text that is read in images is checked too.
                    checked = prompt.text if prompt_attachments(request.prompt) else text
                    self._check_verdict(guardrail.check_input(checked), "prompt", text)
            executor = self._current_executor(span)
            state = RequestState(request, executor, guardrail, text, prompt, images, self._deadline(), span)
            with executor.undone_on_error():
                yield from self._answers(state)
                self.transcript._append(*state.entries, after=self._num_entries)
            self._num_entries += len(state.entries)

    def prewarm(self, prompt_prefix: str, cancelled: Callable[[], bool]) -> None:
        """Load the model and prefill the transcript and the beginning of the next prompt."""
        with begin_request(self, "prewarm", model=self.model.name) as span, framework_errors():
            executor = self._current_executor(span)
            with span.child(SpanKind.PREFILL, "prompt"):
                executor.prefill(prompt_prefix, cancelled)

    def snapshot(self) -> bytes | memoryview | None:
        """Return the model's state for the transcript; None if it has none."""
        with framework_errors():
            return self._snapshot if self._executor is None else self._executor.snapshot()

    def _answers(self, state: RequestState) -> Generator[Snapshot[Any], None, None]:
        request = state.request
        schema = request.format.schema
        state.entries.append(PromptEntry(turn=state.prompt, options=request.options, schema=schema, images=state.images))
        turns: tuple[Turn, ...] = (state.prompt,)
        for num_rounds in itertools.count():
            with state.span.child(SpanKind.INFERENCE, self.model.name) as span:
                answer = yield from self._answer(state, turns, num_rounds, span)
                if span.is_recorded:
                    record_answer(span, request, turns, answer)
            state.usage += answer.usage
            if not answer.turn.tool_calls:
                break
            turns = self._call_tools(state, answer)
        try:
            final = request.format.final(answer.turn.text)
        except IncompleteResponseError as error:
            if answer.finish_reason is FinishReason.STOP:
                raise
            raise truncation_error(answer.turn.text, request.options.maximum_response_tokens) from error
        source = None if schema is None else str(schema.get("title", ""))
        state.entries.append(ResponseEntry(turn=answer.turn, source=source, assets=(self.model.name,)))
        request.response = Response(
            content=final.content,
            raw_content=final.raw_content,
            transcript_entries=tuple(state.entries),
            usage=state.usage,
            finish_reason=answer.finish_reason,
        )

    def _answer(
        self, state: RequestState, turns: tuple[Turn, ...], num_rounds: int, span: SpanRecorder
    ) -> Generator[Snapshot[Any], None, Answer]:
        request, mode = state.request, state.request.options.tool_calling_mode
        num_calls_left = self._limits.calls - state.num_calls
        may_call = mode != ToolCallingMode.DISALLOWED and num_rounds < self._limits.rounds and num_calls_left > 0
        tools = self._definitions if may_call else ()
        events = state.executor.answer(
            AnswerRequest(
                turns=turns,
                schema=request.format.schema,
                tools=tools,
                must_call=mode == ToolCallingMode.REQUIRED and num_rounds == 0 and bool(self._definitions),
                options=request.options,
                cancelled=state.is_over,
                max_calls=min(_MAX_CALLS_PER_ANSWER, max(num_calls_left, 1)),
                images={**self.transcript.images, **state.images, **state.tool_images},
                span=span,
            )
        )
        check_events(events, state.executor)
        answers: list[Answer] = []
        with contextlib.closing(events):
            pieces = self._pieces(state, events, answers)
            try:
                if request.is_streamed:
                    yield from request.format.snapshots(pieces)
                for _ in pieces:  # drain: a format may stop early, and an unstreamed request has no other reader
                    pass
            except GenerationCancelledError as error:
                error.raw_content = "".join(state.pieces)
                state.raise_if_late()
                raise
            except ContextWindowError as error:
                text = "".join(state.pieces)
                raise ExceededContextWindowSizeError(error.token_count, error.context_length, raw_content=text) from error
        check_calls(answers[0], tools, num_calls_left)
        state.num_calls += len(answers[0].turn.tool_calls)
        return answers[0]

    def _pieces(
        self, state: RequestState, events: Generator[Event, None, Answer], answers: list[Answer]
    ) -> Generator[str, None, None]:
        """Yield the text of an answer; append the answer to `answers` at its end."""
        state.pieces.clear()
        monitor = None if state.guardrail is None else OutputMonitor(state.guardrail)
        while True:
            try:
                event = next(events)
            except StopIteration as stop:
                answers.append(stop.value)
                break
            if isinstance(event, TextPiece):
                text = event.text
                if monitor is not None:
                    self._check_verdict(monitor.push(text), "response", state.text)
                    text = monitor.release()
                if text:
                    state.pieces.append(text)
                    yield text
        if monitor is not None:
            self._check_verdict(monitor.finish(), "response", state.text)
            if text := monitor.release():
                state.pieces.append(text)
                yield text

    def _call_tools(self, state: RequestState, answer: Answer) -> tuple[Turn, ...]:
        calls = answer.turn.tool_calls
        denials = self._denials(state, calls)
        allowed = [call for call, denial in zip(calls, denials, strict=True) if denial is None]
        try:
            ran = self._runner.run(allowed, state.is_over, state.request.loop, self._image_part(state.request), state.span)
        except GenerationCancelledError:
            state.raise_if_late()
            raise
        outputs = self._with_policy(calls, denials, ran)
        call_ids = tuple(str(uuid.uuid4()).upper() for _ in calls)
        state.entries.append(ToolCallsEntry(turn=answer.turn, call_ids=call_ids, assets=(self.model.name,)))
        state.entries += [
            ToolOutputEntry(turn=output.turn, call_id=call_id, images=output.images)
            for output, call_id in zip(outputs, call_ids, strict=True)
        ]
        for output in outputs:
            state.tool_images |= output.images
        return tuple(output.turn for output in outputs)

    def _denials(self, state: RequestState, calls: Sequence[ToolCall]) -> list[str | None]:
        """Return why each call may not run; None: it may."""
        if self._policy is None:
            return [None] * len(calls)
        turns = [*self._with_tools(self.transcript.turns), *(entry.turn for entry in state.entries)]
        return [self._policy.denial(call, turns) for call in calls]

    def _with_policy(
        self, calls: Sequence[ToolCall], denials: Sequence[str | None], ran: Sequence[ToolOutput]
    ) -> list[ToolOutput]:
        """Return the outputs of all calls: marked, and a fixed text for those that were denied."""
        if self._policy is None:
            return list(ran)
        remaining = iter(ran)
        outputs = []
        for call, denial in zip(calls, denials, strict=True):
            if denial is None:
                output = next(remaining)
                outputs.append(dataclasses.replace(output, turn=self._policy.output(output.turn)))
            else:
                outputs.append(ToolOutput(turn=ToolTurn(name=call.name, text=denied_text(denial)), images={}))
        return outputs

    def _image_part(self, request: SessionRequest[Any, Any]) -> Callable[[bytes], ContentPart]:
        """Return a function of an image: the part of a prompt for it. It raises if the model sees no images."""

        def image_part(image: bytes) -> ContentPart:
            if Capability.VISION not in self.model.capabilities:
                raise UnsupportedAttachmentError(f"the model {self.model.name} does not support images; return text instead")
            return self.model.image_part(image, request.options.image_detail)

        return image_part

    def _current_executor(self, span: SpanRecorder) -> LanguageModelExecutor:
        """Return an executor that has received the whole transcript; a new one if another session appended to it."""
        if self._executor is None or self._num_entries != len(self.transcript):
            transcript_turns = self.transcript.turns
            turns = self._with_tools(transcript_turns)
            with span.child(SpanKind.LOAD, self.model.name):
                if self._snapshot is None:
                    self._executor = self.model.executor(turns)
                else:
                    self._executor = self.model.restored_executor(turns, self._snapshot)
                    self._snapshot = None  # free up to 100 MB
            self._num_entries = len(transcript_turns)
        return self._executor

    def _with_tools(self, turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
        """Return the transcript's turns with the tools of this session in place of those in the transcript."""
        if turns and isinstance(turns[0], Instructions):
            return dataclasses.replace(turns[0], tools=self._definitions), *turns[1:]
        return (Instructions(text="", tools=self._definitions), *turns) if self._definitions else turns

    def _check_capabilities(self, request: SessionRequest[Any, Any]) -> None:
        if request.options.tool_calling_mode == ToolCallingMode.REQUIRED and not self._definitions:
            raise ValueError("tool_calling_mode is 'required', but this session has no tools; pass 'tools' to the session")
        calls = self._definitions and request.options.tool_calling_mode != ToolCallingMode.DISALLOWED
        needed = {
            Capability.GUIDED_GENERATION: request.format.schema is not None,
            Capability.TOOL_CALLING: bool(calls),
            Capability.VISION: bool(prompt_attachments(request.prompt) or self.transcript.image_digests),
        }
        for capability, is_needed in needed.items():
            if is_needed and capability not in self.model.capabilities:
                is_vision = capability is Capability.VISION
                raise (UnsupportedAttachmentError if is_vision else UnsupportedCapabilityError)(
                    f"this request needs {capability.replace('_', ' ')}, which the model {self.model.name} does not support"
                    + ("; leave the images out, or use a model with a vision encoder" if is_vision else "")
                )

    def _check_verdict(self, verdict: Verdict, side: Literal["prompt", "response"], prompt: str) -> None:
        match verdict:
            case Violation():
                raise violation_error(verdict, side)
            case Refused():
                refused = PromptEntry(turn=UserTurn(text=prompt), options=GenerationOptions())
                entries = (*self.transcript, refused)  # a copy: the session may continue before the explanation
                raise RefusalError(f"the model declined to answer: {verdict.reason}", lambda: self._explain(entries))

    def _explain(self, entries: Sequence[Entry]) -> str:
        request: SessionRequest[str, str] = SessionRequest(
            prompt=_EXPLAIN,
            format=TextFormat(),
            options=GenerationOptions(maximum_response_tokens=64),
            include_schema_in_prompt=False,
        )
        responder = Responder(_UnguardedModel(self.model), Transcript(entries))
        for _ in responder.respond(request):
            pass
        assert request.response is not None
        return request.response.content

    def _deadline(self) -> float | None:
        seconds = self._limits.request_seconds
        return None if seconds is None else time.monotonic() + seconds


class _UnguardedModel(LanguageModel):
    """The same model without its guardrail, so that it can explain a refusal."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.name, self.capabilities = model.name, model.capabilities

    @property
    def context_size(self) -> int:
        return self._model.context_size

    def is_available(self) -> Any:
        return self._model.is_available()

    def check_context(self, turns: Sequence[Turn]) -> None:
        self._model.check_context(turns)

    def executor(self, turns: Sequence[Turn]) -> LanguageModelExecutor:
        return self._model.executor(turns)
