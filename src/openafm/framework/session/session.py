"""Sessions: a transcript, the model's memory of exactly that transcript, and one request at a time (report 7)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypedDict, TypeVar, Unpack, overload

from openafm.framework.backends.language_model import LanguageModel, Usage
from openafm.framework.backends.system_model import SystemLanguageModel
from openafm.framework.daemon import in_daemon_thread
from openafm.framework.errors import FoundationModelsError, SchemaFormatError, UnserializableSchemaError
from openafm.framework.options import GenerationOptions
from openafm.framework.schema.partial_json import is_deeper
from openafm.framework.schema.schema import GenerationSchema
from openafm.framework.session.formats import JsonFormat, ResponseFormat, Snapshot, TextFormat, TypedFormat
from openafm.framework.session.request import Request, Response
from openafm.framework.session.request_queue import RequestQueue, Turnstile, WhenBusy
from openafm.framework.session.responder import Responder
from openafm.framework.session.response_stream import ResponseStream
from openafm.framework.session.session_file import SavedSession, read_session, write_session
from openafm.framework.tools.tool import Tool, ToolLimits, by_name
from openafm.framework.transcripts.feedback import DesiredOutput, FeedbackIssue, Sentiment, feedback_attachment
from openafm.framework.transcripts.prompt import Prompt
from openafm.framework.transcripts.transcript import InstructionsEntry, Transcript
from openafm.tokenizer.conversation import Instructions, JsonSchema
from openafm.tokenizer.schema_text import compact_json

_DEEPEST_SCHEMA = 100  # levels of JSON; the grammar engine reads little more

T = TypeVar("T")


class RequestOptions(TypedDict, total=False):
    """Keywords of every request."""

    options: GenerationOptions | None
    include_schema_in_prompt: bool


class SchemaOptions(RequestOptions, total=False):
    """Keywords of a request whose schema is given as such."""

    schema: GenerationSchema | None
    json_schema: JsonSchema | str | None


class LanguageModelSession:
    """A conversation with a model. Each request sees all that was said before; only what is new is computed.

    Every request takes a prompt and what the response shall be: text by default; an instance of `generating`, a generable
    class or another type that can be generated; `GeneratedContent` under `schema` or `json_schema`. Before it responds, the
    model may call tools, several at a time and time and again. A request that fails or is cancelled leaves the session as it
    was.

    Args:
        instructions: the developer's word, which outranks prompts; never put a user's text here.
        model: what answers; by default the model of this machine.
        tools: what the model may call.
        when_busy: a request that comes while another is answered raises `ConcurrentRequestsError`, or waits.
        tool_limits: how often and how long tools may be called.

    Raises:
        TypeError, ValueError: a tool that is none, or two of one name.
        InvalidGenerationSchemaError: a tool whose arguments cannot be generated.
    """

    def __init__(
        self,
        instructions: str | None = None,
        model: LanguageModel | None = None,
        tools: Sequence[Tool] | None = None,
        *,
        when_busy: WhenBusy = "raise",
        tool_limits: ToolLimits | None = None,
    ) -> None:
        if not isinstance(instructions, str | None):
            raise TypeError(f"instructions are text, not {type(instructions).__name__}")
        definitions = tuple(tool.definition() for tool in by_name(tools or ()).values())
        opening = []
        if instructions or definitions:
            opening.append(InstructionsEntry(turn=Instructions(text=instructions or "", tools=definitions)))
        self._begin(Transcript(opening), model, tools, when_busy, tool_limits)

    @classmethod
    def from_transcript(
        cls,
        transcript: Transcript,
        model: LanguageModel | None = None,
        tools: Sequence[Tool] | None = None,
        *,
        when_busy: WhenBusy = "raise",
        tool_limits: ToolLimits | None = None,
    ) -> Self:
        """A session that goes on where `transcript` ends, and goes on writing to it. The first request prefills it.

        Tools that the transcript names are history; only `tools` can be called.
        """
        if not isinstance(transcript, Transcript):
            raise TypeError(f"a session goes on from a Transcript, not from {type(transcript).__name__}")
        session = cls.__new__(cls)
        session._begin(transcript, model, tools, when_busy, tool_limits)
        return session

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: LanguageModel | None = None,
        tools: Sequence[Tool] | None = None,
        *,
        when_busy: WhenBusy = "raise",
        tool_limits: ToolLimits | None = None,
    ) -> Self:
        """A session that goes on where a saved one was. With the same model and tools, what that had read is not read again.

        With others, or when that part of the file is damaged, the first request prefills the transcript, as it does after
        `from_transcript`; nothing else differs.

        Raises:
            TranscriptError: the file is no saved session, or its transcript is damaged.
            OSError: the file cannot be read.
        """
        saved = read_session(Path(path))
        session = cls.__new__(cls)
        session._begin(saved.transcript, model, tools, when_busy, tool_limits, saved.snapshot)
        return session

    def _begin(
        self,
        transcript: Transcript,
        model: LanguageModel | None,
        tools: Sequence[Tool] | None,
        when_busy: WhenBusy,
        tool_limits: ToolLimits | None,
        snapshot: bytes | memoryview | None = None,
    ) -> None:
        if not isinstance(model, LanguageModel | None):
            raise TypeError(f"a model is a LanguageModel, such as SystemLanguageModel(bundle='nano'), not {model!r}")
        self._responder = Responder(model or SystemLanguageModel(), transcript, tools or (), tool_limits, snapshot)
        self._queue = RequestQueue(when_busy)
        self._usage = self._total_usage = Usage()

    @property
    def transcript(self) -> Transcript:
        """What was said so far. A request appends what it added when it succeeds."""
        return self._responder.transcript

    @property
    def usage(self) -> Usage:
        """What the last successful request cost."""
        return self._usage

    @property
    def total_usage(self) -> Usage:
        """What all successful requests cost together."""
        return self._total_usage

    @property
    def is_responding(self) -> bool:
        """Whether a request is under way."""
        active = self._queue.active
        return active is not None and not active.is_background

    def cancel(self) -> None:
        """Stop the request under way, if there is one: it raises `GenerationCancelledError`."""
        if request := self._queue.active:
            request.cancelled.set()

    def prewarm(self, prompt_prefix: str = "") -> None:
        """Get ready in the background, so that the next response begins sooner: load the model, prefill the transcript and
        what the next prompt begins with. Changes nothing that is said; a request meanwhile waits for it.

        Raises:
            AssetsUnavailableError: there is no such model.
            ConcurrentRequestsError: a request is under way, and requests do not wait.
        """
        self._responder.model.context_size  # noqa: B018  # says at once when there is no model
        turnstile = Turnstile(is_background=True)
        previous = self._queue.line_up(turnstile)

        def work() -> None:
            self._queue.wait_blocking(turnstile, previous)
            try:
                with contextlib.suppress(FoundationModelsError):  # the next request meets the same error, and tells it
                    self._responder.prewarm(prompt_prefix, turnstile.cancelled.is_set)
            finally:
                self._queue.leave(turnstile)

        try:
            in_daemon_thread(work, "openafm-prewarm")
        except BaseException:
            self._queue.give_up(turnstile, previous)
            raise

    async def save(self, path: str | Path) -> None:
        """Write the session to a file from which `load` goes on, in a later process as well.

        It holds what was said, readable as JSON, and what the model has computed of it, which can be a hundred megabytes.

        Raises:
            ConcurrentRequestsError: a request is under way, and requests do not wait.
            OutOfSpaceError: the disk is full. A session that stood in the file is as it was.
            OSError: the file cannot be written.
        """
        await asyncio.to_thread(self.save_blocking, path)

    def save_blocking(self, path: str | Path) -> None:
        """`save` for code without an event loop."""
        turnstile = Turnstile(is_background=True)
        self._queue.enter_blocking(turnstile)
        try:
            write_session(Path(path), SavedSession(transcript=self.transcript, snapshot=self._responder.snapshot()))
        finally:
            self._queue.leave(turnstile)

    @overload
    async def respond(self, prompt: Prompt, **keywords: Unpack[RequestOptions]) -> str: ...
    @overload
    async def respond(self, prompt: Prompt, generating: type[T], **keywords: Unpack[RequestOptions]) -> T: ...
    @overload
    async def respond(self, prompt: Prompt, generating: Any = None, **keywords: Unpack[SchemaOptions]) -> Any: ...
    async def respond(self, prompt: Prompt, generating: Any = None, **keywords: Unpack[SchemaOptions]) -> Any:
        """The response to a prompt. Cancelling the task that awaits it cancels the request.

        Args:
            prompt: what the user says.
            generating: the type of the response.
            schema: or its generation schema; the response is then `GeneratedContent`.
            json_schema: or a JSON Schema, as a dictionary or as text.
            options: sampling, temperature, greatest number of tokens, whether tools are called.
            include_schema_in_prompt: whether the model is shown the schema; it is enforced in any case.

        Raises:
            ValueError: more than one of `generating`, `schema` and `json_schema`.
            InvalidGenerationSchemaError: what was asked for is not a type or schema that can be generated.
            UnsupportedGuideError: the schema contradicts itself or cannot be enforced; before any token.
            UnsupportedCapabilityError: the model cannot do such a thing at all.
            AssetsUnavailableError: there is no such model on this machine.
            ExceededContextWindowSizeError: transcript, prompt and response do not fit the model.
            DecodingFailureError: the response was cut off, or the class refused its values.
            GuardrailViolationError, RefusalError: prompt or response are not fit to be.
            ToolCallError: a tool failed.
            ConcurrentRequestsError: another request is under way.
            GenerationCancelledError: `cancel` was called.
        """
        return (await self.respond_full(prompt, generating, **keywords)).content

    @overload
    async def respond_full(self, prompt: Prompt, **keywords: Unpack[RequestOptions]) -> Response[str]: ...
    @overload
    async def respond_full(self, prompt: Prompt, generating: type[T], **keywords: Unpack[RequestOptions]) -> Response[T]: ...
    @overload
    async def respond_full(
        self, prompt: Prompt, generating: Any = None, **keywords: Unpack[SchemaOptions]
    ) -> Response[Any]: ...
    async def respond_full(self, prompt: Prompt, generating: Any = None, **keywords: Unpack[SchemaOptions]) -> Response[Any]:
        """`respond`, with all that belongs to the response: raw content, transcript entries, usage."""
        request = self._request(prompt, generating, **keywords)
        return await ResponseStream(request, self._queue, self._snapshots(request)).collect()

    @overload
    def stream_response(
        self, prompt: Prompt, generating: GenerationOptions | None = None, **keywords: Unpack[RequestOptions]
    ) -> ResponseStream[str, str]: ...
    @overload
    def stream_response(
        self, prompt: Prompt, generating: type[T], **keywords: Unpack[RequestOptions]
    ) -> ResponseStream[Any, T]: ...
    @overload
    def stream_response(
        self, prompt: Prompt, generating: Any = None, **keywords: Unpack[SchemaOptions]
    ) -> ResponseStream[Any, Any]: ...
    def stream_response(
        self, prompt: Prompt, generating: Any = None, **keywords: Unpack[SchemaOptions]
    ) -> ResponseStream[Any, Any]:
        """The response as it is written: `async for snapshot in session.stream_response(...)`.

        Each snapshot is the whole response so far. Of text it is a string; else its `content` is the type's
        `PartiallyGenerated`, with fields None until they are reached, in declared order, or `GeneratedContent`.
        `await stream.collect()` gives what `respond_full` would. Arguments and errors are those of `respond`; options may
        also stand second.
        """
        request = self._request(prompt, generating, **keywords)
        request.is_streamed = True
        return ResponseStream(request, self._queue, self._snapshots(request))

    @overload
    def respond_blocking(self, prompt: Prompt, **keywords: Unpack[RequestOptions]) -> str: ...
    @overload
    def respond_blocking(self, prompt: Prompt, generating: type[T], **keywords: Unpack[RequestOptions]) -> T: ...
    @overload
    def respond_blocking(self, prompt: Prompt, generating: Any = None, **keywords: Unpack[SchemaOptions]) -> Any: ...
    def respond_blocking(self, prompt: Prompt, generating: Any = None, **keywords: Unpack[SchemaOptions]) -> Any:
        """`respond` for code without an event loop: generates in the calling thread."""
        return self.respond_full_blocking(prompt, generating, **keywords).content

    @overload
    def respond_full_blocking(self, prompt: Prompt, **keywords: Unpack[RequestOptions]) -> Response[str]: ...
    @overload
    def respond_full_blocking(
        self, prompt: Prompt, generating: type[T], **keywords: Unpack[RequestOptions]
    ) -> Response[T]: ...
    @overload
    def respond_full_blocking(
        self, prompt: Prompt, generating: Any = None, **keywords: Unpack[SchemaOptions]
    ) -> Response[Any]: ...
    def respond_full_blocking(
        self, prompt: Prompt, generating: Any = None, **keywords: Unpack[SchemaOptions]
    ) -> Response[Any]:
        """`respond_full` for code without an event loop: generates in the calling thread."""
        request = self._request(prompt, generating, **keywords)
        for _ in self._snapshots_blocking(request):
            pass
        assert request.response is not None
        return request.response

    @overload
    def stream_blocking(self, prompt: Prompt, **keywords: Unpack[RequestOptions]) -> Iterator[Snapshot[str]]: ...
    @overload
    def stream_blocking(
        self, prompt: Prompt, generating: Any = None, **keywords: Unpack[SchemaOptions]
    ) -> Iterator[Snapshot[Any]]: ...
    def stream_blocking(
        self, prompt: Prompt, generating: Any = None, **keywords: Unpack[SchemaOptions]
    ) -> Iterator[Snapshot[Any]]:
        """`stream_response` for code without an event loop: generates in the calling thread, as snapshots are asked for."""
        request = self._request(prompt, generating, **keywords)
        request.is_streamed = request.is_pulled = True
        return self._snapshots_blocking(request)

    def log_feedback(
        self,
        sentiment: Sentiment | None = None,
        issues: Iterable[FeedbackIssue] = (),
        desired_output: DesiredOutput | None = None,
    ) -> bytes:
        """What was said and what was wrong with it, as JSON to send to whoever trains the model. Stays on this machine.

        Raises:
            ValueError: an unknown sentiment or category.
        """
        return feedback_attachment(self.transcript, sentiment=sentiment, issues=issues, desired_output=desired_output)

    def _request(
        self,
        prompt: Prompt,
        generating: Any = None,
        *,
        schema: GenerationSchema | None = None,
        json_schema: JsonSchema | str | None = None,
        options: GenerationOptions | None = None,
        include_schema_in_prompt: bool = True,
    ) -> Request[Any, Any]:
        if isinstance(generating, GenerationOptions):  # as Apple's SDK takes them: second when streaming
            generating, options = None, options or generating
        if not isinstance(options, GenerationOptions | None):
            raise TypeError(f"options are GenerationOptions(...), not {options!r}")
        if not isinstance(schema, GenerationSchema | None):
            raise TypeError("'schema' takes a GenerationSchema; give a JSON Schema, a dictionary or text, as 'json_schema'")
        if sum(given is not None for given in (generating, schema, json_schema)) > 1:
            raise ValueError("give one of 'generating', 'schema' and 'json_schema', not several")
        response_format: ResponseFormat[Any, Any] = TextFormat()
        if generating is not None:
            response_format = TypedFormat(generating)
        elif schema is not None:
            response_format = JsonFormat(schema.to_dict())
        elif json_schema is not None:
            response_format = JsonFormat(_read_schema(json_schema))
        return Request(
            prompt=prompt,
            format=response_format,
            options=options or GenerationOptions(),
            include_schema_in_prompt=include_schema_in_prompt,
        )

    def _snapshots(self, request: Request[Any, Any]) -> Iterator[Snapshot[Any]]:
        """Answer a request whose turn it is; lets the next one pass at the end."""
        try:
            with contextlib.closing(self._responder.respond(request)) as snapshots:
                yield from snapshots
            if request.response is not None:
                self._usage = request.response.usage
                self._total_usage += self._usage
        finally:
            request.cancelled.set()  # for tools that are still at work after an interrupt
            self._queue.leave(request)

    def _snapshots_blocking(self, request: Request[Any, Any]) -> Iterator[Snapshot[Any]]:
        self._queue.enter_blocking(request)
        yield from self._snapshots(request)


def _read_schema(json_schema: JsonSchema | str) -> JsonSchema:
    try:
        schema = json.loads(json_schema if isinstance(json_schema, str) else compact_json(json_schema))
        compact_json(schema)  # a text may hold NaN too
    except TypeError as error:
        raise UnserializableSchemaError(f"incorrect schema format: not JSON ({error})") from error
    except (ValueError, RecursionError) as error:
        raise SchemaFormatError(f"incorrect schema format: not JSON ({error})") from error
    if not isinstance(schema, dict):
        raise SchemaFormatError(f"incorrect schema format: a JSON Schema is an object, got {schema!r}")
    if is_deeper(schema, _DEEPEST_SCHEMA):
        raise SchemaFormatError(f"incorrect schema format: nested deeper than {_DEEPEST_SCHEMA} levels")
    return schema
