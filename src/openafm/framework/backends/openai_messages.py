"""Turns as chat completions have them, and the body of a request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from openafm.framework.backends.language_model import AnswerRequest
from openafm.framework.errors import GenerationError
from openafm.framework.options import GenerationOptions, SamplingModeType
from openafm.framework.schema.wire_schema import WireSchema, without_extensions
from openafm.tokenizer.conversation import AssistantTurn, Instructions, ToolDefinition, ToolTurn, Turn, UserTurn
from openafm.tokenizer.schema_text import compact_json

Message: TypeAlias = dict[str, Any]


def new_messages(earlier: Sequence[Message], turns: Iterable[Turn]) -> list[Message]:
    """The messages of `turns`, which follow `earlier` ones. Outputs answer the calls before them, in order of their names.

    Raises:
        GenerationError: the output of a tool that was not called.
    """
    messages: list[Message] = []
    num_calls = sum(len(message.get("tool_calls", ())) for message in earlier)
    waiting = _unanswered(earlier)  # calls without an output so far, as pairs of name and id
    for turn in turns:
        match turn:
            case Instructions():
                messages += [{"role": "system", "content": turn.text}] if turn.text else []
            case UserTurn():
                messages.append({"role": "user", "content": _prompt(turn)})
            case AssistantTurn(tool_calls=()):
                messages.append({"role": "assistant", "content": turn.text})
            case AssistantTurn():
                waiting = [(call.name, _call_id(num_calls + i)) for i, call in enumerate(turn.tool_calls)]
                num_calls += len(waiting)
                messages.append(_calls(turn, [call_id for _, call_id in waiting]))
            case ToolTurn():
                call = next((call for call in waiting if call[0] == turn.name), None)
                if call is None:
                    raise GenerationError(f"the transcript has an output of the tool '{turn.name}', but no call before it")
                waiting.remove(call)
                messages.append({"role": "tool", "tool_call_id": call[1], "content": turn.text})
    return messages


@dataclass(frozen=True, kw_only=True)
class WireTool:
    """A tool as an endpoint is sent it."""

    definition: ToolDefinition
    parameters: WireSchema

    @property
    def name(self) -> str:
        return self.definition.name

    def to_dict(self) -> dict[str, Any]:
        function = {
            "name": self.definition.name,
            "description": self.definition.description,
            "parameters": self.parameters.schema,
            "strict": self.parameters.strict,
        }
        return {"type": "function", "function": function}


def request_body(
    model: str,
    messages: Sequence[Message],
    request: AnswerRequest,
    schema: WireSchema | None,
    announced: Sequence[WireTool],
) -> dict[str, Any]:
    """A chat completion to stream. All tools of the session are announced, in the same words each time."""
    body: dict[str, Any] = {
        "model": model,
        "messages": list(messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if announced:
        body["tools"] = [tool.to_dict() for tool in announced]
        body["tool_choice"] = ("required" if request.must_call else "auto") if request.tools else "none"
    if schema is not None:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "response", "strict": schema.strict, "schema": schema.schema},
        }
    return body | _sampling(request.options)


def _sampling(options: GenerationOptions) -> dict[str, Any]:
    mode = options.sampling
    is_greedy = mode is not None and mode.mode_type is SamplingModeType.GREEDY
    wanted = {
        "temperature": 0 if is_greedy else options.temperature,
        "top_p": mode and mode.probability_threshold,
        "top_k": mode and mode.top,  # not of every endpoint; one without it says so
        "seed": mode and mode.seed,
        "max_tokens": options.maximum_response_tokens,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _prompt(turn: UserTurn) -> str:
    if turn.response_format is None:
        return turn.text
    schema = compact_json(without_extensions(turn.response_format))
    return f"{turn.text}\n\nRespond with JSON that fits this JSON Schema: {schema}"


def _calls(turn: AssistantTurn, call_ids: Sequence[str]) -> Message:
    calls = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": compact_json(call.arguments)},
        }
        for call, call_id in zip(turn.tool_calls, call_ids, strict=True)
    ]
    return {"role": "assistant", "content": turn.text or None, "tool_calls": calls}


def _call_id(number: int) -> str:
    """Nine letters and digits, which every endpoint takes."""
    return f"call{number % 100_000:05d}"


def _unanswered(messages: Sequence[Message]) -> list[tuple[str, str]]:
    answered = {message.get("tool_call_id") for message in messages}
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    return [(call["function"]["name"], call["id"]) for call in calls if call["id"] not in answered]
