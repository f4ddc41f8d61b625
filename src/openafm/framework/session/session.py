"""Sessions: conversations with a model, one request at a time (report 7)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack, overload

from openafm.framework.backends.language_model import LanguageModel, Usage
from openafm.framework.backends.system_model import SystemLanguageModel
from openafm.framework.daemon import in_daemon_thread
from openafm.framework.errors import FoundationModelsError
from openafm.framework.options import GenerationOptions
from openafm.framework.schema.schema import GenerationSchema
from openafm.framework.session.formats import JsonFormat, ResponseFormat, Snapshot, TextFormat, TypedFormat, read_json_schema
from openafm.framework.session.request import RequestOptions, Response, SchemaOptions, SessionRequest
from openafm.framework.session.request_queue import QueuedRequest, RequestQueue, WhenBusy
from openafm.framework.session.responder import Responder
from openafm.framework.session.response_stream import ResponseStream
from openafm.framework.session.session_file import SavedSession, read_session, write_session
from openafm.framework.tools.policy import ToolPolicy
from openafm.framework.tools.tool import Tool, ToolLimits, by_name
from openafm.framework.transcripts.feedback import DesiredOutput, FeedbackIssue, Sentiment, feedback_attachment
from openafm.framework.transcripts.prompt import PromptLike
from openafm.framework.transcripts.transcript import InstructionsEntry, Transcript
from openafm.tokenizer.conversation import Instructions, JsonSchema

T = TypeVar("T")


class LanguageModelSession:
    """A conversation with a model. Each request continues the transcript; only new tokens are computed.

    A request takes a prompt and the kind of response: text by default; an instance of the type `generating`;
    `GeneratedContent` under `schema` or `json_schema`. The model may call tools before it responds, in parallel and in
    several rounds. A request that fails or is cancelled leaves the session unchanged.

    Args:
        instructions: text of the developer, with priority over prompts; never put a user's text here.
        model: the model that answers; `SystemLanguageModel()` by default.
        tools: the tools that the model may call.
        when_busy: a request during another one raises `ConcurrentRequestsError` (`"raise"`) or waits (`"wait"`).
        tool_limits: limits on the number and duration of tool calls.
        tool_policy: which calls run, by tool and by the origin of their arguments; None: all.

    Raises:
        TypeError: an item of `tools` is not a tool.
        ValueError: two tools have the same name.
        InvalidGenerationSchemaError: the arguments of a tool cannot be generated.
    """

    def __init__(
        self,
        instructions: str | None = None,
        model: LanguageModel | None = None,
        tools: Sequence[Tool] | None = None,
        *,
        when_busy: WhenBusy = "raise",
        tool_limits: ToolLimits | None = None,
        tool_policy: ToolPolicy | None = None,
    ) -> None:
        if not isinstance(instructions, str | None):
            raise TypeError(f"'instructions' must be text, got {type(instructions).__name__}")
        definitions = tuple(tool.definition() for tool in by_name(tools or ()).values())
        opening = []
        if instructions or definitions:
            opening.append(InstructionsEntry(turn=Instructions(text=instructions or "", tools=definitions)))
        self._begin(Transcript(opening), model, tools, when_busy, tool_limits, tool_policy)

    @classmethod
    def from_transcript(
        cls,
        transcript: Transcript,
        model: LanguageModel | None = None,
        tools: Sequence[Tool] | None = None,
        *,
        when_busy: WhenBusy = "raise",
        tool_limits: ToolLimits | None = None,
        tool_policy: ToolPolicy | None = None,
    ) -> Self:
        """Return a session that continues `transcript` and appends to it. The first request prefills it.

        The model may call `tools` only; tools in the transcript's instructions are ignored.
        """
        if not isinstance(transcript, Transcript):
            raise TypeError(f"'transcript' must be a Transcript, got {type(transcript).__name__}")
        session = cls.__new__(cls)
        session._begin(transcript, model, tools, when_busy, tool_limits, tool_policy)
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
        tool_policy: ToolPolicy | None = None,
    ) -> Self:
        """Return a session that continues a saved one. With the same model and tools, the transcript is not prefilled again.

        With another model or other tools, or if the saved state is damaged, the first request prefills the transcript, as
        after `from_transcript`. The responses are the same.

        Raises:
            TranscriptError: the file is not a saved session, or its transcript is damaged.
            OSError: the file cannot be read.
        """
        saved = read_session(Path(path))
        session = cls.__new__(cls)
        session._begin(saved.transcript, model, tools, when_busy, tool_limits, tool_policy, saved.snapshot)
        return session

    def _begin(
        self,
        transcript: Transcript,
        model: LanguageModel | None,
        tools: Sequence[Tool] | None,
        when_busy: WhenBusy,
        tool_limits: ToolLimits | None,
        tool_policy: ToolPolicy | None,
        snapshot: bytes | memoryview | None = None,
    ) -> None:
        if not isinstance(model, LanguageModel | None):
            raise TypeError(f"'model' must be a LanguageModel, such as SystemLanguageModel(bundle='nano'), got {model!r}")
        self._responder = Responder(
            model or SystemLanguageModel(), transcript, tools or (), tool_limits, snapshot, tool_policy
        )
        self._queue = RequestQueue(when_busy)
        self._usage = self._total_usage = Usage()

    @property
    def transcript(self) -> Transcript:
        """The entries so far. A request appends its entries when it succeeds."""
        return self._responder.transcript

    @property
    def usage(self) -> Usage:
        """Tokens and times of the last successful request."""
        return self._usage

    @property
    def total_usage(self) -> Usage:
        """Tokens and times of all successful requests together."""
        return self._total_usage

    @property
    def is_responding(self) -> bool:
        """True while a request runs."""
        active = self._queue.active
        return active is not None and not active.is_background

    def cancel(self) -> None:
        """Cancel the running request, if any; it raises `GenerationCancelledError`."""
        if request := self._queue.active:
            request.cancelled.set()

    def prewarm(self, prompt_prefix: str = "") -> None:
        """Load the model, prefill the transcript and `prompt_prefix` in the background. Reduces the time to first token.

        Responses do not change. A request during prewarming waits for its end.

        Raises:
            AssetsUnavailableError: the model is not installed.
            ConcurrentRequestsError: a request is running and `when_busy` is `"raise"`.
        """
        self._responder.model.context_size  # noqa: B018  # raises now if the model is not installed
        queued = QueuedRequest(is_background=True)
        previous = self._queue.reserve(queued)

        def work() -> None:
            self._queue.wait_blocking(queued, previous)
            try:
                with contextlib.suppress(FoundationModelsError):  # the next request raises the same error
                    self._responder.prewarm(prompt_prefix, queued.cancelled.is_set)
            finally:
                self._queue.release(queued)

        try:
            in_daemon_thread(work, "openafm-prewarm")
        except BaseException:
            self._queue.abandon(queued, previous)
            raise

    async def save(self, path: str | Path) -> None:
        """Write the session to a file that `load` reads, also in a later process.

        The file holds the transcript as JSON and the model's state, which can take 100 MB. Images are stored beside it, in
        the folder `PATH.images`.

        Raises:
            ConcurrentRequestsError: a request is running and `when_busy` is `"raise"`.
            OutOfSpaceError: the disk is full. An existing file is unchanged.
            OSError: the file cannot be written.
        """
        await asyncio.to_thread(self.save_blocking, path)

    def save_blocking(self, path: str | Path) -> None:
        """`save` for code without an event loop."""
        queued = QueuedRequest(is_background=True)
        self._queue.acquire_blocking(queued)
        try:
            write_session(Path(path), SavedSession(transcript=self.transcript, snapshot=self._responder.snapshot()))
        finally:
            self._queue.release(queued)

    @overload
    async def respond(self, prompt: PromptLike, **keywords: Unpack[RequestOptions]) -> str: ...
    @overload
    async def respond(self, prompt: PromptLike, generating: type[T], **keywords: Unpack[RequestOptions]) -> T: ...
    @overload
    async def respond(self, prompt: PromptLike, generating: Any = None, **keywords: Unpack[SchemaOptions]) -> Any: ...
    async def respond(self, prompt: PromptLike, generating: Any = None, **keywords: Unpack[SchemaOptions]) -> Any:
        """Return the response to a prompt. Cancelling the awaiting task cancels the request.

        Args:
            prompt: text, attachments and values of the user.
            generating: the type of the response.
            schema: alternatively a generation schema; the response is then `GeneratedContent`.
            json_schema: alternatively a JSON Schema, as a dictionary or as text. Its objects are closed unless
                `additionalProperties` opens them.
            options: sampling, temperature, token limit, tool calling mode.
            include_schema_in_prompt: True adds the schema to the prompt; the schema is enforced in either case.

        Raises:
            ValueError: more than one of `generating`, `schema` and `json_schema` is given.
            InvalidGenerationSchemaError: the type or schema cannot be generated.
            UnsupportedGuideError: the schema contradicts itself or cannot be enforced; raised before the first token.
            UnsupportedCapabilityError: the model does not support images, tools or schemas, and the request needs them.
            AssetsUnavailableError: the model is not on this machine, or is damaged.
            ExceededContextWindowSizeError: transcript, prompt and response exceed the context window.
            DecodingFailureError: the response was cut off, or the type rejected its values.
            GuardrailViolationError: a guardrail blocked the prompt or the response.
            RefusalError: the model declined to answer.
            ToolCallError: a tool failed.
            ConcurrentRequestsError: another request is running and `when_busy` is `"raise"`.
            GenerationCancelledError: `cancel` was called.
        """
        return (await self.respond_full(prompt, generating, **keywords)).content

    @overload
    async def respond_full(self, prompt: PromptLike, **keywords: Unpack[RequestOptions]) -> Response[str]: ...
    @overload
    async def respond_full(
        self, prompt: PromptLike, generating: type[T], **keywords: Unpack[RequestOptions]
    ) -> Response[T]: ...
    @overload
    async def respond_full(
        self, prompt: PromptLike, generating: Any = None, **keywords: Unpack[SchemaOptions]
    ) -> Response[Any]: ...
    async def respond_full(
        self, prompt: PromptLike, generating: Any = None, **keywords: Unpack[SchemaOptions]
    ) -> Response[Any]:
        """Return the response with its raw content, transcript entries and usage. Arguments and errors as in `respond`."""
        request = self._request(prompt, generating, **keywords)
        return await ResponseStream(request, self._queue, self._snapshots(request)).collect()

    @overload
    def stream_response(
        self, prompt: PromptLike, generating: GenerationOptions | None = None, **keywords: Unpack[RequestOptions]
    ) -> ResponseStream[str, str]: ...
    @overload
    def stream_response(
        self, prompt: PromptLike, generating: type[T], **keywords: Unpack[RequestOptions]
    ) -> ResponseStream[T, T]: ...
    @overload
    def stream_response(
        self, prompt: PromptLike, generating: Any = None, **keywords: Unpack[SchemaOptions]
    ) -> ResponseStream[Any, Any]: ...
    def stream_response(
        self, prompt: PromptLike, generating: Any = None, **keywords: Unpack[SchemaOptions]
    ) -> ResponseStream[Any, Any]:
        """Return a stream of snapshots: `async for snapshot in session.stream_response(...)`.

        Each snapshot holds the whole response so far. A snapshot of text is a string. For a type, `snapshot.content` is its
        `PartiallyGenerated`, whose fields are None until they are generated, in declared order; type checkers see the type
        itself, which has the same fields. For a schema, it is `GeneratedContent`. `await stream.collect()` returns the same
        as `respond_full`. Arguments and errors as in `respond`; options may also be the second positional argument.
        """
        request = self._request(prompt, generating, **keywords)
        request.is_streamed = True
        return ResponseStream(request, self._queue, self._snapshots(request))

    @overload
    def respond_blocking(self, prompt: PromptLike, **keywords: Unpack[RequestOptions]) -> str: ...
    @overload
    def respond_blocking(self, prompt: PromptLike, generating: type[T], **keywords: Unpack[RequestOptions]) -> T: ...
    @overload
    def respond_blocking(self, prompt: PromptLike, generating: Any = None, **keywords: Unpack[SchemaOptions]) -> Any: ...
    def respond_blocking(self, prompt: PromptLike, generating: Any = None, **keywords: Unpack[SchemaOptions]) -> Any:
        """`respond` for code without an event loop; generates in the calling thread."""
        return self.respond_full_blocking(prompt, generating, **keywords).content

    @overload
    def respond_full_blocking(self, prompt: PromptLike, **keywords: Unpack[RequestOptions]) -> Response[str]: ...
    @overload
    def respond_full_blocking(
        self, prompt: PromptLike, generating: type[T], **keywords: Unpack[RequestOptions]
    ) -> Response[T]: ...
    @overload
    def respond_full_blocking(
        self, prompt: PromptLike, generating: Any = None, **keywords: Unpack[SchemaOptions]
    ) -> Response[Any]: ...
    def respond_full_blocking(
        self, prompt: PromptLike, generating: Any = None, **keywords: Unpack[SchemaOptions]
    ) -> Response[Any]:
        """`respond_full` for code without an event loop; generates in the calling thread."""
        request = self._request(prompt, generating, **keywords)
        for _ in self._snapshots_blocking(request):
            pass
        assert request.response is not None
        return request.response

    @overload
    def stream_blocking(self, prompt: PromptLike, **keywords: Unpack[RequestOptions]) -> Iterator[Snapshot[str]]: ...
    @overload
    def stream_blocking(
        self, prompt: PromptLike, generating: type[T], **keywords: Unpack[RequestOptions]
    ) -> Iterator[Snapshot[T]]: ...
    @overload
    def stream_blocking(
        self, prompt: PromptLike, generating: Any = None, **keywords: Unpack[SchemaOptions]
    ) -> Iterator[Snapshot[Any]]: ...
    def stream_blocking(
        self, prompt: PromptLike, generating: Any = None, **keywords: Unpack[SchemaOptions]
    ) -> Iterator[Snapshot[Any]]:
        """`stream_response` for code without an event loop; generates in the calling thread while the caller iterates."""
        request = self._request(prompt, generating, **keywords)
        request.is_streamed = request.is_pulled = True
        return self._snapshots_blocking(request)

    def log_feedback(
        self,
        sentiment: Sentiment | None = None,
        issues: Iterable[FeedbackIssue] = (),
        desired_output: DesiredOutput | None = None,
    ) -> bytes:
        """Return the transcript and feedback on the last response as UTF-8 JSON. Nothing is sent.

        Raises:
            ValueError: the sentiment or a category is unknown.
        """
        return feedback_attachment(self.transcript, sentiment=sentiment, issues=issues, desired_output=desired_output)

    def _request(
        self,
        prompt: PromptLike,
        generating: Any = None,
        *,
        schema: GenerationSchema | None = None,
        json_schema: JsonSchema | str | None = None,
        options: GenerationOptions | None = None,
        include_schema_in_prompt: bool = True,
    ) -> SessionRequest[Any, Any]:
        if isinstance(generating, GenerationOptions):  # Apple's SDK passes options second when streaming
            generating, options = None, options or generating
        if not isinstance(options, GenerationOptions | None):
            raise TypeError(f"'options' must be GenerationOptions(...), got {options!r}")
        if not isinstance(schema, GenerationSchema | None):
            raise TypeError("'schema' must be a GenerationSchema; pass a JSON Schema (dictionary or text) as 'json_schema'")
        if sum(given is not None for given in (generating, schema, json_schema)) > 1:
            raise ValueError("'generating', 'schema' and 'json_schema' exclude each other; pass one")
        response_format: ResponseFormat[Any, Any] = TextFormat()
        if generating is not None:
            response_format = TypedFormat(generating)
        elif schema is not None:
            response_format = JsonFormat(schema.to_dict())
        elif json_schema is not None:
            response_format = JsonFormat(read_json_schema(json_schema))
        return SessionRequest(
            prompt=prompt,
            format=response_format,
            options=options or GenerationOptions(),
            include_schema_in_prompt=include_schema_in_prompt,
        )

    def _snapshots(self, request: SessionRequest[Any, Any]) -> Iterator[Snapshot[Any]]:
        """Answer a request that holds the queue, and release the queue at its end."""
        try:
            with contextlib.closing(self._responder.respond(request)) as snapshots:
                yield from snapshots
            if request.response is not None:
                self._usage = request.response.usage
                self._total_usage += self._usage
        finally:
            request.cancelled.set()  # stops tools that still run after a KeyboardInterrupt
            self._queue.release(request)

    def _snapshots_blocking(self, request: SessionRequest[Any, Any]) -> Iterator[Snapshot[Any]]:
        self._queue.acquire_blocking(request)
        yield from self._snapshots(request)
