"""Models behind any endpoint that speaks OpenAI's chat completions: a server in the next room, or one across the world."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import cached_property

from openafm.framework.backends.http_lines import HttpRequest, streamed_lines
from openafm.framework.backends.language_model import (
    Answer,
    AnswerRequest,
    Capability,
    Event,
    LanguageModel,
    LanguageModelExecutor,
    SystemLanguageModelUnavailableReason,
    TextPiece,
)
from openafm.framework.backends.openai_messages import Message, WireTool, new_messages, request_body
from openafm.framework.backends.openai_reply import Reply, chunks
from openafm.framework.schema.wire_schema import WireSchema
from openafm.tokenizer.conversation import Instructions, ToolDefinition, Turn

_AVAILABILITY_SECONDS = 5.0


class OpenAICompatibleModel(LanguageModel):
    """A model that `POST {base_url}/chat/completions` answers for. Needs openafm's extra `http`.

    The endpoint is asked to keep to schemas, and all that it sends is checked: JSON against the schema, names of tools and
    their arguments. What does not fit raises `DecodingFailureError`.

    Args:
        base_url: such as `http://localhost:8000/v1`.
        model: the name that the endpoint knows it by.
        api_key: sent as a bearer token, and to nobody else.
        context_size: tokens that the model holds; endpoints do not tell.
        timeout_seconds: the longest silence before a request is given up.
        capabilities: what the model can do; less than the default for one without tools or schemas.

    Raises:
        ValueError: an address that is not HTTP, a key that no header can hold, or a number that is not positive.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        context_size: int = 8192,
        timeout_seconds: float = 120.0,
        capabilities: Iterable[Capability] = (Capability.GUIDED_GENERATION, Capability.TOOL_CALLING),
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(f"'base_url' must begin with http:// or https://, got {base_url!r}")
        if context_size <= 0 or timeout_seconds <= 0:
            raise ValueError("'context_size' and 'timeout_seconds' must be positive")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ValueError("'api_key' must be printable ASCII; a line end from a file may have come with it")
        self.base_url, self.name = base_url.rstrip("/"), model
        self.capabilities, self.timeout_seconds = frozenset(map(Capability, capabilities)), timeout_seconds
        self._api_key, self._context_size = api_key, context_size

    @property
    def context_size(self) -> int:
        return self._context_size

    def is_available(self) -> tuple[bool, SystemLanguageModelUnavailableReason | None]:
        """Whether the endpoint answers and, if it lists its models, has this one. Asks it, for at most 5 seconds."""
        try:
            import httpx2
        except ImportError:
            return False, SystemLanguageModelUnavailableReason.MODEL_NOT_INSTALLED
        try:
            reply = httpx2.get(f"{self.base_url}/models", headers=self.headers(), timeout=_AVAILABILITY_SECONDS)
        except (httpx2.HTTPError, httpx2.InvalidURL):
            return False, SystemLanguageModelUnavailableReason.MODEL_NOT_READY
        if reply.status_code in (401, 403):
            return False, SystemLanguageModelUnavailableReason.DEVICE_NOT_ELIGIBLE
        try:
            listed = [each["id"] for each in reply.json()["data"]] if reply.status_code == 200 else None
        except (ValueError, KeyError, TypeError, RecursionError):  # lists none
            listed = None
        if listed is not None and self.name not in listed:
            return False, SystemLanguageModelUnavailableReason.MODEL_NOT_INSTALLED
        return True, None

    def executor(self, turns: Sequence[Turn]) -> LanguageModelExecutor:
        return _OpenAIExecutor(self, turns)

    def headers(self) -> dict[str, str]:
        """Headers of every request."""
        return {} if self._api_key is None else {"Authorization": f"Bearer {self._api_key}"}

    def __repr__(self) -> str:
        return f"OpenAICompatibleModel({self.base_url!r}, {self.name!r})"


class _OpenAIExecutor(LanguageModelExecutor):
    """The messages of a session; the endpoint is told all of them every time."""

    def __init__(self, model: OpenAICompatibleModel, turns: Sequence[Turn]) -> None:
        self._model = model
        self._messages: list[Message] = new_messages((), turns)
        first = turns[0] if turns else None
        self._announced: tuple[ToolDefinition, ...] = first.tools if isinstance(first, Instructions) else ()

    def answer(self, request: AnswerRequest) -> Generator[Event, None, Answer]:
        model = self._model
        schema = None if request.schema is None else WireSchema(request.schema)
        self._messages += new_messages(self._messages, request.turns)
        may_call = {tool.name for tool in request.tools}
        reply = Reply(
            schema=schema,
            parameters={tool.name: tool.parameters for tool in self._tools if tool.name in may_call},
            must_call=request.must_call,
        )
        http = HttpRequest(
            url=f"{model.base_url}/chat/completions",
            body=request_body(model.name, self._messages, request, schema, self._tools),
            headers=model.headers(),
            timeout_seconds=model.timeout_seconds,
        )
        with contextlib.closing(streamed_lines(http, request.cancelled)) as lines:
            for chunk in chunks(lines, model.context_size):
                yield from reply.push(chunk)
        turn = reply.turn()
        if schema is not None and schema.is_wrapped and not turn.tool_calls:
            yield TextPiece(turn.text)
        self._messages += new_messages(self._messages, [turn])
        return Answer(turn=turn, usage=reply.usage())

    @cached_property
    def _tools(self) -> list[WireTool]:
        return [WireTool(definition=tool, parameters=WireSchema(tool.parameters)) for tool in self._announced]

    def prefill(self, prompt_prefix: str, cancelled: Callable[[], bool]) -> None:
        """Nothing: the endpoint keeps its own caches."""

    @contextlib.contextmanager
    def undone_on_error(self) -> Iterator[None]:
        num_messages = len(self._messages)
        try:
            yield
        except BaseException:
            del self._messages[num_messages:]
            raise
