"""A chat completion as it streams in: events as they come, and at its end a turn of which everything was checked."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from openafm.framework.backends.http_lines import EndpointError, ErrorStatus
from openafm.framework.backends.language_model import Event, TextPiece, ToolCallPiece, Usage
from openafm.framework.backends.openai_errors import said_error, status_error
from openafm.framework.errors import DecodingFailureError, GuardrailViolationError, RefusalError
from openafm.framework.schema.partial_json import PartialJson, PartialJsonError
from openafm.framework.schema.wire_schema import WireSchema
from openafm.tokenizer.conversation import AssistantTurn, ToolCall
from openafm.tokenizer.schema_text import compact_json

_MOST_CALLS = 128


def chunks(lines: Iterable[str | ErrorStatus], context_size: int) -> Iterator[Mapping[str, Any]]:
    """The JSON objects of a stream of server-sent events, up to `[DONE]` or the end.

    Raises:
        GenerationError: the endpoint tells of an error, or of no JSON.
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
                raise EndpointError(f"the endpoint does not stream its answers: {line:.200}")
            continue
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise EndpointError(f"the endpoint sent what is not JSON ({error}): {data:.200}") from error
        if not isinstance(chunk, dict):
            raise EndpointError(f"the endpoint sent what is no chat completion: {data:.200}")
        if chunk.get("error"):
            error_object = chunk["error"] if isinstance(chunk["error"], dict) else {"message": chunk["error"]}
            raise said_error(error_object, context_size)
        yield chunk


@dataclass
class _Call:
    name: str = ""
    arguments: str = ""


@dataclass
class Reply:
    """What came so far.

    Args:
        schema: what the text must be, if it is not free.
        parameters: of the tools that may be called, by name.
        must_call: whether text is no answer.
    """

    schema: WireSchema | None
    parameters: Mapping[str, WireSchema]
    must_call: bool
    _text: str = ""
    _refusal: str = ""
    _finish: str | None = None
    _calls: dict[int, _Call] = field(default_factory=dict)
    _usage: dict[str, Any] = field(default_factory=dict)
    _shown: PartialJson | None = field(default_factory=PartialJson)  # None: what came is not the beginning of JSON
    _started: float = field(default_factory=time.perf_counter)
    _first: float | None = None

    def push(self, chunk: Mapping[str, Any]) -> Iterator[Event]:
        """Take in one chunk.

        Raises:
            EndpointError: it is no chunk of a chat completion.
        """
        try:
            self._usage = self._usage | (chunk.get("usage") or {})
            for choice in chunk.get("choices") or ():
                delta = choice.get("delta") or {}
                self._finish = choice.get("finish_reason") or self._finish
                self._refusal += delta.get("refusal") or ""
                events = [*self._text_events(delta.get("content") or ""), *self._call_events(delta.get("tool_calls") or ())]
                if events and self._first is None:
                    self._first = time.perf_counter()
                yield from events
        except (AttributeError, KeyError, TypeError) as error:
            raise EndpointError(f"the endpoint sent what is no chat completion ({error}): {chunk!r:.200}") from error

    def turn(self) -> AssistantTurn:
        """The whole answer.

        Raises:
            EndpointError: it broke off before its end.
            RefusalError: the model refuses.
            GuardrailViolationError: the endpoint's filter stopped it.
            DecodingFailureError: it is not what was asked for.
        """
        if self._finish == "content_filter":
            raise GuardrailViolationError("the response was stopped by the endpoint's content filter")
        if self._finish is None:
            raise EndpointError("the endpoint broke off before the end of its answer")
        if self._refusal:
            refusal = self._refusal
            raise RefusalError(f"the model declined to answer: {refusal}", lambda: refusal)
        if self._calls:
            return AssistantTurn(text=self._text, tool_calls=tuple(self._tool_call(call) for call in self._calls.values()))
        if self.must_call:
            raise DecodingFailureError("the model answered where it had to call a tool", raw_content=self._text)
        if self.schema is None:
            return AssistantTurn(text=self._text)
        if self._finish == "length":
            raise DecodingFailureError(
                "the response was cut off before its end; allow it more tokens", raw_content=self._text
            )
        return AssistantTurn(text=compact_json(self.schema.read(self._text)))

    def usage(self) -> Usage:
        """What the endpoint says it cost; nothing where it does not say."""
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

    def _text_events(self, text: str) -> Iterator[Event]:
        self._text += text
        if self.schema is None or not text:
            yield from [TextPiece(text)] if text else ()
        elif self._shown is not None and not self.schema.is_wrapped:
            try:
                self._shown.push(text)
            except PartialJsonError:  # words before a call; or no JSON, which is told at the end
                self._shown = None
            else:
                yield TextPiece(text)

    def _call_events(self, deltas: Iterable[Mapping[str, Any]]) -> Iterator[Event]:
        for delta in deltas:
            function = delta.get("function") or {}
            name, arguments = function.get("name") or "", function.get("arguments") or ""
            last = max(self._calls, default=-1)
            index = delta.get("index")
            if not isinstance(index, int):  # not every endpoint numbers its calls
                index = last + 1 if name or last < 0 else last
            if index not in self._calls and len(self._calls) >= _MOST_CALLS:
                raise EndpointError(f"the model made more than {_MOST_CALLS} calls at once")
            call = self._calls.setdefault(index, _Call())
            call.name += name
            call.arguments += arguments
            yield ToolCallPiece(index=index, name=call.name, arguments=arguments)

    def _tool_call(self, call: _Call) -> ToolCall:
        if self._finish == "length":
            raise DecodingFailureError(
                "the calls of tools were cut off before their end; allow the response more tokens",
                raw_content=call.arguments,
            )
        if call.name not in self.parameters:
            may = ", ".join(self.parameters) or "none"
            raise DecodingFailureError(
                f"the model called the tool '{call.name}', which it may not; it may: {may}", raw_content=call.arguments
            )
        arguments = self.parameters[call.name].read(call.arguments.strip() or "{}")
        if not isinstance(arguments, dict):
            raise DecodingFailureError(f"the arguments of '{call.name}' are no object", raw_content=call.arguments)
        return ToolCall(name=call.name, arguments=arguments)


def _count(counts: Mapping[str, Any], key: str) -> int:
    count = counts.get(key) if isinstance(counts, Mapping) else None
    return count if isinstance(count, int) else 0
