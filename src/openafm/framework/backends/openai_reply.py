"""Parse a streamed chat completion: events while it arrives, and a validated turn at its end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from openafm.framework.backends.http_lines import EndpointError, EndpointReplyTooLongError, ErrorStatus
from openafm.framework.backends.language_model import Event, FinishReason, TextPiece, ToolCallPiece, Usage
from openafm.framework.backends.openai_errors import object_error, status_error
from openafm.framework.backends.truncation import truncation_error
from openafm.framework.errors import DecodingFailureError, GuardrailViolationError, RefusalError
from openafm.framework.schema.partial_json import PartialJson, PartialJsonError
from openafm.framework.schema.wire_schema import WireSchema
from openafm.tokenizer.conversation import AssistantTurn, ToolCall
from openafm.tokenizer.schema_text import compact_json

_COUNTS = ("prompt_tokens", "completion_tokens", "prompt_tokens_details")
_MAX_CALLS = 128
_MAX_NAME_CHARACTERS = 1_000
_MAX_CHARACTERS = 16 * 2**20  # of text, refusal and arguments together
_FENCE = "```"


def chunks(lines: Iterable[str | ErrorStatus], context_size: int) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects of server-sent events, up to `[DONE]` or the end.

    Raises:
        GenerationError: the endpoint reports an error, or sends something else than JSON objects.
    """
    for line in lines:
        if isinstance(line, ErrorStatus):
            raise status_error(line, context_size)
        name, _, data = line.partition(":")
        data = data.strip()
        if data == "[DONE]":
            return
        if name != "data" or not data:
            if line.startswith("{"):
                raise EndpointError(f"the endpoint does not stream its replies: {line:.200}")
            continue
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise EndpointError(f"the endpoint's reply is not JSON ({error}): {data:.200}") from error
        if not isinstance(chunk, dict):
            raise EndpointError(f"the endpoint's reply is not a chat completion: {data:.200}")
        if chunk.get("error"):
            error_object = chunk["error"] if isinstance(chunk["error"], dict) else {"message": chunk["error"]}
            raise object_error(error_object, context_size)
        yield chunk


@dataclass
class _PartialCall:
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Reply:
    """Collect one streamed reply.

    Args:
        schema: the schema of the text; None for free text.
        parameters: the parameters of each tool that may be called, by name.
        must_call: True if the reply must call a tool.
        max_tokens: the token limit of the request, for error messages.
        holds_text: True emits the text after validation instead of while it arrives.
    """

    schema: WireSchema | None
    parameters: Mapping[str, WireSchema]
    must_call: bool
    max_tokens: int | None = None
    holds_text: bool = False
    _text: list[str] = field(default_factory=list)
    _refusal: list[str] = field(default_factory=list)
    _num_characters: int = 0
    _finish: str | None = None
    _calls: dict[int, _PartialCall] = field(default_factory=dict)
    _usage: dict[str, Any] = field(default_factory=dict)
    _json: PartialJson | None = field(default_factory=PartialJson)  # None: the text is not a JSON prefix
    _has_shown_text: bool = False
    _started: float = field(default_factory=time.perf_counter)
    _first: float | None = None

    def push(self, chunk: Mapping[str, Any]) -> Iterator[Event]:
        """Add one chunk and yield its events.

        Raises:
            EndpointError: the chunk is not a chat-completion chunk, or the reply is too long.
        """
        try:
            usage = chunk.get("usage") or {}
            self._usage |= {name: count for name in _COUNTS if (count := usage.get(name)) is not None}
            for choice in chunk.get("choices") or ():
                delta = choice.get("delta") or {}
                self._finish = choice.get("finish_reason") or self._finish
                self._add(self._refusal, delta.get("refusal") or "")
                events = [*self._text_events(delta.get("content") or ""), *self._call_events(delta.get("tool_calls") or ())]
                if events and self._first is None:
                    self._first = time.perf_counter()
                yield from events
        except (AttributeError, KeyError, TypeError) as error:
            raise EndpointError(f"the endpoint's reply is not a chat completion ({error}): {chunk!r:.200}") from error

    @property
    def is_text_held(self) -> bool:
        """True if the text was not emitted while it arrived."""
        return self.schema is not None and not self._calls and not self._has_shown_text

    @property
    def text(self) -> str:
        """The text as the endpoint sent it."""
        return "".join(self._text)

    @property
    def finish_reason(self) -> FinishReason:
        return FinishReason.LENGTH if self._finish == "length" else FinishReason.STOP

    def turn(self) -> AssistantTurn:
        """Return the whole reply, validated.

        Raises:
            EndpointError: the connection was closed before the end.
            RefusalError: the model declined to answer.
            GuardrailViolationError: the endpoint's content filter blocked the reply.
            DecodingFailureError: the reply was cut off, or does not have the requested form.
        """
        if self._finish == "content_filter":
            raise GuardrailViolationError("the endpoint's content filter blocked the response")
        if self._finish is None:
            raise EndpointError("the endpoint closed the connection before the end of its reply")
        if refusal := "".join(self._refusal):
            raise RefusalError(f"the model declined to answer: {refusal}", lambda: refusal)
        if self._calls:
            return AssistantTurn(text=self.text, tool_calls=tuple(self._tool_call(call) for call in self._calls.values()))
        if self.must_call:
            raise DecodingFailureError("the model answered with text where a tool call is required", raw_content=self.text)
        if self.schema is None:
            return AssistantTurn(text=self.text)
        if self._finish == "length":
            raise truncation_error(self.text, self.max_tokens)
        return AssistantTurn(text=compact_json(self.schema.read(_without_fence(self.text))))

    def usage(self) -> Usage:
        """Return the usage that the endpoint reports; zeros if it reports none."""
        cached = self._usage.get("prompt_tokens_details") or {}
        generated, first = _count(self._usage, "completion_tokens"), self._first or time.perf_counter()
        seconds = time.perf_counter() - first
        return Usage(
            prompt_tokens=_count(self._usage, "prompt_tokens"),
            cached_tokens=_count(cached, "cached_tokens"),
            generated_tokens=generated,
            ttft_ms=1000 * (first - self._started),
            tokens_per_second=(generated - 1) / seconds if generated > 1 and seconds > 0 else 0.0,
        )

    def _add(self, pieces: list[str], piece: str) -> None:
        """Append to a list: `+=` on a string attribute copies the string each time."""
        if not isinstance(piece, str):
            raise TypeError(f"expected text, got {piece!r:.80}")
        self._num_characters += len(piece)
        if self._num_characters > _MAX_CHARACTERS:
            raise EndpointReplyTooLongError(f"the reply has more than {_MAX_CHARACTERS:,} characters")
        pieces.append(piece)

    def _text_events(self, text: str) -> Iterator[Event]:
        self._add(self._text, text)
        if not text:
            return
        if self.schema is None:
            yield TextPiece(text)
        elif self._json is not None and not self.schema.is_wrapped and not self.holds_text:
            try:
                self._json.push(text)
            except PartialJsonError:  # text before a tool call, a code fence, or invalid JSON, which `turn` reports
                self._json = None
            else:
                self._has_shown_text = True
                yield TextPiece(text)

    def _call_events(self, deltas: Iterable[Mapping[str, Any]]) -> Iterator[Event]:
        for delta in deltas:
            function = delta.get("function") or {}
            name, arguments = function.get("name") or "", function.get("arguments") or ""
            last = max(self._calls, default=-1)
            index = delta.get("index")
            if not isinstance(index, int):  # some endpoints omit the index
                index = last + 1 if name or last < 0 else last
            if index not in self._calls and len(self._calls) >= _MAX_CALLS:
                raise EndpointReplyTooLongError(f"the reply has more than {_MAX_CALLS} tool calls")
            call = self._calls.setdefault(index, _PartialCall())
            if len(call.name) + len(name) > _MAX_NAME_CHARACTERS:
                raise EndpointReplyTooLongError(
                    f"the reply calls a tool whose name has more than {_MAX_NAME_CHARACTERS:,} characters"
                )
            call.name += name
            self._add(call.arguments, arguments)
            yield ToolCallPiece(index=index, name=call.name, arguments=arguments)

    def _tool_call(self, call: _PartialCall) -> ToolCall:
        text = "".join(call.arguments)
        if self._finish == "length":
            raise truncation_error(text, self.max_tokens, subject=f"the call of the tool '{call.name}'")
        if call.name not in self.parameters:
            allowed = ", ".join(self.parameters) or "none"
            raise DecodingFailureError(
                f"the model called the tool '{call.name}'; allowed tools: {allowed}", raw_content=text
            )
        arguments = self.parameters[call.name].read(text.strip() or "{}")
        if not isinstance(arguments, dict):
            raise DecodingFailureError(f"the arguments of '{call.name}' are not an object", raw_content=text)
        return ToolCall(name=call.name, arguments=arguments)


def _without_fence(text: str) -> str:
    """Return the content of the first Markdown code block if the text does not start with JSON."""
    if text.lstrip()[:1] in ("{", "[", '"') or text.count(_FENCE) < 2:
        return text
    block = text.split(_FENCE, 2)[1]
    first_line, line_end, rest = block.partition("\n")
    return rest if line_end and first_line.strip().isalnum() else block


def _count(counts: Mapping[str, Any], key: str) -> int:
    count = counts.get(key) if isinstance(counts, Mapping) else None
    return count if isinstance(count, int) else 0
