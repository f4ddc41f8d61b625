"""Models behind an OpenAI-compatible chat-completions endpoint."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from openafm.framework.backends.http_lines import EndpointError, ErrorStatus, HttpRequest, streamed_lines
from openafm.framework.backends.language_model import (
    Answer,
    AnswerRequest,
    Capability,
    Event,
    LanguageModel,
    LanguageModelExecutor,
    SystemLanguageModelUnavailableReason,
    TextPiece,
    Usage,
)
from openafm.framework.backends.openai_errors import retry_after_seconds, status_error
from openafm.framework.backends.openai_messages import Message, WireTool, new_messages, request_body
from openafm.framework.backends.openai_reply import Reply, chunks
from openafm.framework.errors import (
    AssetsUnavailableError,
    DecodingFailureError,
    GenerationCancelledError,
    GenerationError,
    RateLimitedError,
)
from openafm.framework.schema.wire_schema import WireSchema
from openafm.tokenizer.conversation import Instructions, ToolDefinition, Turn

_AVAILABILITY_SECONDS = 5.0
_AVAILABILITY_BYTES = 2**20
_DEFAULT_CONTEXT_SIZE = 8192
_FIRST_RETRY_SECONDS = 0.5
_MAX_RETRY_SECONDS = 30.0
_POLL_S = 0.02


class OpenAICompatibleModel(LanguageModel):
    """A model behind `POST {base_url}/chat/completions`. Needs openafm's extra `http`.

    The endpoint is asked to enforce schemas, and every reply is validated: JSON against the schema, names of tools and their
    arguments. JSON inside a Markdown code block is accepted. An invalid reply raises `DecodingFailureError`.

    Args:
        base_url: for example `http://localhost:8000/v1`.
        model: the model's name at the endpoint.
        api_key: sent as a bearer token to `base_url` only.
        context_size: size of the context window in tokens. Endpoints do not report it: 8192 is assumed if it is not given,
            and only a given size stops prompts that are too long.
        timeout_seconds: longest wait for the connection and between two parts of a reply.
        total_seconds: longest duration of one reply.
        max_retries: how often a request is repeated after status 429 or 5xx, with exponential back-off or after the time
            that the endpoint names, up to 30 s.
        asks_again: True sends an invalid reply back once, with the validator's message, and asks for a valid one. Guided
            responses are then streamed only once they are valid.
        capabilities: what the model supports. Add `Capability.VISION` for models that accept images.

    Raises:
        ValueError: the address is not HTTP, the key is not printable ASCII, or a number is out of range.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        context_size: int | None = None,
        timeout_seconds: float = 120.0,
        total_seconds: float = 600.0,
        max_retries: int = 2,
        asks_again: bool = False,
        capabilities: Iterable[Capability] = (Capability.GUIDED_GENERATION, Capability.TOOL_CALLING),
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(f"'base_url' must begin with http:// or https://, got {base_url!r}")
        if (context_size is not None and context_size <= 0) or timeout_seconds <= 0 or total_seconds <= 0:
            raise ValueError("'context_size', 'timeout_seconds' and 'total_seconds' must be positive")
        if max_retries < 0:
            raise ValueError(f"'max_retries' must not be negative, got {max_retries}")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ValueError("'api_key' must be printable ASCII; strip the line end if it was read from a file")
        self.base_url, self.name = base_url.rstrip("/"), model
        self.capabilities = frozenset(map(Capability, capabilities))
        self.timeout_seconds, self.total_seconds = timeout_seconds, total_seconds
        self.max_retries, self.asks_again = max_retries, asks_again
        self._api_key, self._context_size = api_key, context_size
        self._num_replying, self._lock = 0, threading.Lock()

    @property
    def context_size(self) -> int:
        return self._context_size or _DEFAULT_CONTEXT_SIZE

    def check_context(self, turns: Sequence[Turn]) -> None:
        if self._context_size is not None:
            super().check_context(turns)

    def is_available(self) -> tuple[bool, SystemLanguageModelUnavailableReason | None]:
        """Return whether the endpoint responds and lists the model. Takes 5 seconds at most.

        An endpoint that lists no models, or is currently sending a reply to this object, counts as available.
        """
        if self._num_replying:  # a server with a single worker does not respond now
            return True, None
        try:
            import httpx2  # noqa: F401
        except ImportError:
            return False, SystemLanguageModelUnavailableReason.MODEL_NOT_INSTALLED
        request = HttpRequest(
            url=f"{self.base_url}/models",
            headers=self.headers(),
            timeout_seconds=_AVAILABILITY_SECONDS,
            total_seconds=_AVAILABILITY_SECONDS,
            max_bytes=_AVAILABILITY_BYTES,
        )
        try:
            lines = list(streamed_lines(request, lambda: False))
        except GenerationError:
            return False, SystemLanguageModelUnavailableReason.MODEL_NOT_READY
        match lines:
            case [ErrorStatus(status=401 | 403)]:
                return False, SystemLanguageModelUnavailableReason.DEVICE_NOT_ELIGIBLE
            case [ErrorStatus()]:
                return True, None
        listed = _model_ids("\n".join(line for line in lines if isinstance(line, str)))
        if listed is not None and self.name not in listed:
            return False, SystemLanguageModelUnavailableReason.MODEL_NOT_INSTALLED
        return True, None

    def executor(self, turns: Sequence[Turn]) -> LanguageModelExecutor:
        return _OpenAIExecutor(self, turns)

    def headers(self) -> dict[str, str]:
        """Return the headers of every request."""
        return {} if self._api_key is None else {"Authorization": f"Bearer {self._api_key}"}

    @contextlib.contextmanager
    def replying(self) -> Iterator[None]:
        """Count a reply as being received while the block runs."""
        with self._lock:
            self._num_replying += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_replying -= 1

    def __repr__(self) -> str:
        return f"OpenAICompatibleModel({self.base_url!r}, {self.name!r})"


class _OpenAIExecutor(LanguageModelExecutor):
    """Hold the messages of a session. Every request sends all of them."""

    def __init__(self, model: OpenAICompatibleModel, turns: Sequence[Turn]) -> None:
        self._model = model
        self._messages: list[Message] = []
        self._opening = tuple(turns)  # converted by the first request, which has the images
        first = turns[0] if turns else None
        self._definitions: tuple[ToolDefinition, ...] = first.tools if isinstance(first, Instructions) else ()

    def answer(self, request: AnswerRequest) -> Generator[Event, None, Answer]:
        schema = None if request.schema is None else WireSchema(request.schema)
        turns, detail = (*self._opening, *request.turns), request.options.image_detail
        self._messages += new_messages(self._messages, turns, request.images, detail)
        self._opening = ()
        holds_text = self._model.asks_again and schema is not None
        usage = Usage()
        correction: list[Message] = []
        while True:
            reply = self._new_reply(request, schema, holds_text=holds_text)
            body = request_body(self._model.name, [*self._messages, *correction], request, schema, self._tools)
            for chunk in request.span.tokens(self._chunks(body, request.cancelled)):
                yield from reply.push(chunk)
            usage += reply.usage()
            try:
                turn = reply.turn()
                break
            except DecodingFailureError as error:
                if not self._model.asks_again or correction:
                    raise
                correction = _correction(error)
        if reply.is_text_held:
            yield TextPiece(turn.text)
        self._messages += new_messages(self._messages, [turn])
        return Answer(turn=turn, usage=usage, finish_reason=reply.finish_reason)

    def prefill(self, prompt_prefix: str, cancelled: Callable[[], bool]) -> None:
        """Do nothing: the endpoint manages its own caches."""

    @contextlib.contextmanager
    def undone_on_error(self) -> Iterator[None]:
        num_messages, opening = len(self._messages), self._opening
        try:
            yield
        except BaseException:
            del self._messages[num_messages:]
            self._opening = opening
            raise

    @cached_property
    def _tools(self) -> list[WireTool]:
        return [WireTool(definition=tool, parameters=WireSchema(tool.parameters)) for tool in self._definitions]

    def _new_reply(self, request: AnswerRequest, schema: WireSchema | None, *, holds_text: bool) -> Reply:
        allowed = {tool.name for tool in request.tools}
        return Reply(
            schema=schema,
            parameters={tool.name: tool.parameters for tool in self._tools if tool.name in allowed},
            must_call=request.must_call,
            max_tokens=request.options.maximum_response_tokens,
            holds_text=holds_text,
        )

    def _chunks(self, body: Mapping[str, Any], cancelled: Callable[[], bool]) -> Iterator[Mapping[str, Any]]:
        """Send a request and yield the chunks of its reply. Repeat it after a temporary error."""
        model = self._model
        http = HttpRequest(
            url=f"{model.base_url}/chat/completions",
            body=body,
            headers=model.headers(),
            timeout_seconds=model.timeout_seconds,
            total_seconds=model.total_seconds,
        )
        for num_retries in itertools.count():
            with contextlib.closing(streamed_lines(http, cancelled)) as lines:
                first = next(lines, "")
                seconds = self._retry_seconds(first, num_retries)
                if seconds is None:
                    with model.replying():
                        yield from chunks(itertools.chain([first], lines), model.context_size)
                    return
            _wait(seconds, cancelled)

    def _retry_seconds(self, first: str | ErrorStatus, num_retries: int) -> float | None:
        """Return the time to wait before the request is repeated; None if it is not repeated."""
        if not isinstance(first, ErrorStatus) or num_retries >= self._model.max_retries:
            return None
        is_temporary = first.status == 429 or first.status >= 500
        if not is_temporary or not isinstance(
            status_error(first, self._model.context_size), RateLimitedError | AssetsUnavailableError | EndpointError
        ):
            return None
        seconds = retry_after_seconds(first.headers)
        if seconds is None:
            seconds = _FIRST_RETRY_SECONDS * 2**num_retries * random.uniform(1.0, 1.25)
        return seconds if seconds <= _MAX_RETRY_SECONDS else None


def _correction(error: DecodingFailureError) -> list[Message]:
    """Return the messages that ask for a valid reply."""
    request = f"Your reply was rejected: {error}. Reply again, and only with what was requested."
    return [{"role": "assistant", "content": error.raw_content}, {"role": "user", "content": request}]


def _wait(seconds: float, cancelled: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while (remaining := deadline - time.monotonic()) > 0:
        if cancelled():
            raise GenerationCancelledError("the request was cancelled; the session is unchanged")
        time.sleep(min(_POLL_S, remaining))


def _model_ids(text: str) -> list[str] | None:
    """Return the ids of a list of models; None if the text is not such a list."""
    try:
        return [each["id"] for each in json.loads(text)["data"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
