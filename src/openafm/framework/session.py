"""Sessions: a transcript, the KV cache of exactly that transcript, and one request at a time (report 7)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Generator, Iterable, Iterator
from typing import Any, TypedDict, TypeVar, Unpack, overload

from openafm.core.errors import OpenAFMError
from openafm.framework.errors import (
    ConcurrentRequestsError,
    ExceededContextWindowSizeError,
    FoundationModelsError,
    GenerationError,
    InvalidGenerationSchemaError,
)
from openafm.framework.formats import JsonFormat, ResponseFormat, Snapshot, TextFormat, TypedFormat
from openafm.framework.model import SystemLanguageModel
from openafm.framework.options import GenerationOptions
from openafm.framework.response_stream import Request, ResponseStream
from openafm.framework.schema import GenerationSchema
from openafm.framework.session_cache import SessionCache, Usage
from openafm.framework.transcript import InstructionsEntry, PromptEntry, ResponseEntry, Transcript
from openafm.runtime.engine import ContextWindowError
from openafm.tokenizer.conversation import AssistantTurn, Instructions, JsonSchema, UserTurn
from openafm.tokenizer.schema_text import SchemaTextError, compact_json

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
    class or another type that can be generated; `GeneratedContent` under `schema` or `json_schema`. A request that fails or
    is cancelled leaves the session as it was.

    Args:
        instructions: the developer's word, which outranks prompts; never put a user's text here.
        model: the model that answers; by default the one of this machine.
    """

    def __init__(self, instructions: str | None = None, model: SystemLanguageModel | None = None) -> None:
        self._model = model or SystemLanguageModel()
        opening = [InstructionsEntry(turn=Instructions(text=instructions))] if instructions else []
        self._transcript = Transcript(opening)
        self._cache: SessionCache | None = None
        self._usage = Usage()
        self._active: Request[Any, Any] | None = None
        self._lock = threading.Lock()  # of `_active`

    @property
    def transcript(self) -> Transcript:
        """What was said so far. A request appends its prompt and its response when it succeeds."""
        return self._transcript

    @property
    def usage(self) -> Usage:
        """What the last successful request cost."""
        return self._usage

    @property
    def is_responding(self) -> bool:
        """Whether a request is under way."""
        return self._active is not None

    def cancel(self) -> None:
        """Stop the request under way, if there is one: it raises `GenerationCancelledError`."""
        if request := self._active:
            request.cancelled.set()

    @overload
    async def respond(self, prompt: str, **keywords: Unpack[RequestOptions]) -> str: ...
    @overload
    async def respond(self, prompt: str, generating: type[T], **keywords: Unpack[RequestOptions]) -> T: ...
    @overload
    async def respond(self, prompt: str, generating: Any = None, **keywords: Unpack[SchemaOptions]) -> Any: ...
    async def respond(self, prompt: str, generating: Any = None, **keywords: Unpack[SchemaOptions]) -> Any:
        """The response to a prompt. Cancelling the task that awaits it cancels the request.

        Args:
            prompt: what the user says.
            generating: the type of the response.
            schema: or its generation schema; the response is then `GeneratedContent`.
            json_schema: or a JSON Schema, as a dictionary or as text.
            options: sampling, temperature, greatest number of tokens.
            include_schema_in_prompt: whether the model is shown the schema; it is enforced in any case.

        Raises:
            ValueError: more than one of `generating`, `schema` and `json_schema`.
            InvalidGenerationSchemaError: what was asked for is not a type or schema that can be generated.
            UnsupportedGuideError: the schema contradicts itself or cannot be enforced; before any token.
            AssetsUnavailableError: there is no such model on this machine.
            ExceededContextWindowSizeError: transcript, prompt and response do not fit the model.
            DecodingFailureError: the response was cut off, or the class refused its values.
            ConcurrentRequestsError: another request is under way.
            GenerationCancelledError: `cancel` was called.
        """
        request = self._request(prompt, generating, **keywords)
        return await ResponseStream(request, self._claim, self._release, self._pieces(request)).collect()

    @overload
    def stream_response(self, prompt: str, **keywords: Unpack[RequestOptions]) -> ResponseStream[str, str]: ...
    @overload
    def stream_response(
        self, prompt: str, generating: type[T], **keywords: Unpack[RequestOptions]
    ) -> ResponseStream[Any, T]: ...
    @overload
    def stream_response(
        self, prompt: str, generating: Any = None, **keywords: Unpack[SchemaOptions]
    ) -> ResponseStream[Any, Any]: ...
    def stream_response(
        self, prompt: str, generating: Any = None, **keywords: Unpack[SchemaOptions]
    ) -> ResponseStream[Any, Any]:
        """The response as it is written: `async for snapshot in session.stream_response(...)`.

        Each snapshot is the whole response so far: text; or the type's `PartiallyGenerated`, its fields None until they are
        reached, in declared order; or `GeneratedContent`. `await stream.collect()` gives what `respond` would.
        Arguments and errors are those of `respond`.
        """
        request = self._request(prompt, generating, **keywords)
        return ResponseStream(request, self._claim, self._release, self._snapshots(request))

    @overload
    def respond_blocking(self, prompt: str, **keywords: Unpack[RequestOptions]) -> str: ...
    @overload
    def respond_blocking(self, prompt: str, generating: type[T], **keywords: Unpack[RequestOptions]) -> T: ...
    @overload
    def respond_blocking(self, prompt: str, generating: Any = None, **keywords: Unpack[SchemaOptions]) -> Any: ...
    def respond_blocking(self, prompt: str, generating: Any = None, **keywords: Unpack[SchemaOptions]) -> Any:
        """`respond` for code without an event loop: generates in the calling thread."""
        request = self._request(prompt, generating, **keywords)
        self._claim_blocking(request)
        for _ in self._pieces(request):
            pass
        return request.response

    @overload
    def stream_blocking(self, prompt: str, **keywords: Unpack[RequestOptions]) -> Iterator[Snapshot[str]]: ...
    @overload
    def stream_blocking(
        self, prompt: str, generating: Any = None, **keywords: Unpack[SchemaOptions]
    ) -> Iterator[Snapshot[Any]]: ...
    def stream_blocking(
        self, prompt: str, generating: Any = None, **keywords: Unpack[SchemaOptions]
    ) -> Iterator[Snapshot[Any]]:
        """`stream_response` for code without an event loop: generates in the calling thread, as snapshots are asked for."""
        return self._snapshots_blocking(self._request(prompt, generating, **keywords))

    def _request(
        self,
        prompt: str,
        generating: Any = None,
        *,
        schema: GenerationSchema | None = None,
        json_schema: JsonSchema | str | None = None,
        options: GenerationOptions | None = None,
        include_schema_in_prompt: bool = True,
    ) -> Request[Any, Any]:
        if sum(given is not None for given in (generating, schema, json_schema)) > 1:
            raise ValueError("Cannot specify more than one of 'generating', 'schema' and 'json_schema'")
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

    async def _claim(self, request: Request[Any, Any]) -> None:
        while (ending := self._ending()) is not None:
            await asyncio.shield(asyncio.wrap_future(ending.finished))
        self._claim_now(request)

    def _claim_blocking(self, request: Request[Any, Any]) -> None:
        while (ending := self._ending()) is not None:
            ending.finished.result()
        self._claim_now(request)

    def _ending(self) -> Request[Any, Any] | None:
        """A cancelled request that is still undoing itself."""
        request = self._active
        return request if request is not None and request.cancelled.is_set() else None

    def _claim_now(self, request: Request[Any, Any]) -> None:
        with self._lock:
            if self._active is not None:
                raise ConcurrentRequestsError(
                    "this session is answering another request; await that one first, or use a session for each"
                )
            self._active = request

    def _release(self, request: Request[Any, Any]) -> None:
        with self._lock:
            self._active = None
        request.finished.set_result(None)

    def _snapshots_blocking(self, request: Request[Any, Any]) -> Iterator[Snapshot[Any]]:
        self._claim_blocking(request)
        yield from self._snapshots(request)

    def _snapshots(self, request: Request[Any, Any]) -> Iterator[Snapshot[Any]]:
        with contextlib.closing(self._pieces(request)) as pieces:
            yield from request.format.snapshots(pieces)

    def _pieces(self, request: Request[Any, Any]) -> Generator[str, None, None]:
        """Answer a request that has claimed the session: the text of the response, piece by piece; all or nothing."""
        try:
            with _framework_errors():
                yield from self._answer(request)
        finally:
            self._release(request)

    def _answer(self, request: Request[Any, Any]) -> Generator[str, None, None]:
        model = self._model.load()
        if self._cache is None:
            self._cache = SessionCache(model, self._transcript.turns)
        schema = request.format.schema
        turn = UserTurn(text=request.prompt, response_format=schema if request.include_schema_in_prompt else None)
        with self._cache.undone_on_error():
            answer = yield from self._cache.answer(turn, schema, request.options, request.cancelled.is_set)
            request.response = request.format.final(answer.text)
        self._usage = answer.usage
        self._transcript._append(
            PromptEntry(turn=turn, options=request.options, schema=schema),
            ResponseEntry(
                turn=AssistantTurn(text=answer.text),
                source=None if schema is None else str(schema.get("title", "")),
                assets=(self._model.described().name,),
            ),
        )


def _read_schema(json_schema: JsonSchema | str) -> JsonSchema:
    try:
        schema = json.loads(json_schema if isinstance(json_schema, str) else compact_json(json_schema))
        compact_json(schema)  # a text may hold NaN too
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidGenerationSchemaError(f"incorrect schema format: not JSON ({error})") from error
    if not isinstance(schema, dict):
        raise InvalidGenerationSchemaError(f"incorrect schema format: a JSON Schema is an object, got {schema!r}")
    level: list[Any] = [schema]
    for _ in range(_DEEPEST_SCHEMA):
        level = [child for value in level for child in _children(value)]
    if level:
        raise InvalidGenerationSchemaError(f"incorrect schema format: nested deeper than {_DEEPEST_SCHEMA} levels")
    return schema


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


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
        raise InvalidGenerationSchemaError(f"incorrect schema format: {error}") from error
    except OpenAFMError as error:
        raise GenerationError(str(error)) from error
