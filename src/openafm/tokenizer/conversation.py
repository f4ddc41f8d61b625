"""A conversation as plain data: what the chat template encodes, training data stores and sessions append to.

On disk a conversation is one line of chat JSONL (`Conversation.to_dict`):

    {"messages": [{"role": "instructions", "content": "...", "tools": [...]},
                  {"role": "user", "content": "...", "response_format": {JSON Schema}},
                  {"role": "assistant", "content": "..."}], "task": "event", "language": "en"}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from openafm.core.errors import OpenAFMError

JsonSchema: TypeAlias = dict[str, Any]


class ConversationError(OpenAFMError):
    """A dictionary that is not a conversation; the message names the message and the key."""


@dataclass(frozen=True, kw_only=True)
class ToolDefinition:
    """A tool as the model sees it. `parameters` is a JSON Schema object."""

    name: str
    description: str
    parameters: JsonSchema


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One call of a tool; `arguments` satisfies the tool's parameters."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Instructions:
    """The developer's turn, always the first: outranks what follows and announces the tools."""

    text: str
    tools: tuple[ToolDefinition, ...] = ()


@dataclass(frozen=True, kw_only=True)
class UserTurn:
    """A prompt; `response_format` is the JSON Schema that the answer follows, shown to the model as schema text."""

    text: str
    response_format: JsonSchema | None = None


@dataclass(frozen=True, kw_only=True)
class AssistantTurn:
    """The model's answer: text, or one or several tool calls made in parallel."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ToolTurn:
    """The output of one tool call: untrusted text."""

    name: str
    text: str


Turn: TypeAlias = Instructions | UserTurn | AssistantTurn | ToolTurn


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Turns in order, with the task and language they were made for (empty when unknown)."""

    turns: tuple[Turn, ...]
    task: str = ""
    language: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The chat JSONL form."""
        messages = [_turn_to_dict(turn) for turn in self.turns]
        tags = {name: value for name, value in (("task", self.task), ("language", self.language)) if value}
        return {"messages": messages} | tags | dict(self.extra)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Conversation:
        """Read the chat JSONL form.

        Raises:
            ConversationError: a message without a known role, or a key of the wrong type.
        """
        messages = values.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ConversationError("a conversation needs a non-empty list under 'messages'")
        turns = tuple(_turn_from_dict(message, position) for position, message in enumerate(messages))
        extra = {key: value for key, value in values.items() if key not in ("messages", "task", "language")}
        return Conversation(
            turns=turns, task=str(values.get("task", "")), language=str(values.get("language", "")), extra=extra
        )


def _turn_to_dict(turn: Turn) -> dict[str, Any]:
    match turn:
        case Instructions():
            message: dict[str, Any] = {"role": "instructions", "content": turn.text}
            if turn.tools:
                message["tools"] = [
                    {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
                    for tool in turn.tools
                ]
            return message
        case UserTurn():
            message = {"role": "user", "content": turn.text}
            return message if turn.response_format is None else message | {"response_format": turn.response_format}
        case AssistantTurn():
            message = {"role": "assistant", "content": turn.text}
            if turn.tool_calls:
                message["tool_calls"] = [{"name": call.name, "arguments": call.arguments} for call in turn.tool_calls]
            return message
        case ToolTurn():
            return {"role": "tool", "name": turn.name, "content": turn.text}


def _turn_from_dict(message: Any, position: int) -> Turn:
    if not isinstance(message, Mapping):
        raise ConversationError(f"message {position}: expected an object, got {message!r}")
    text = message.get("content", "")
    if not isinstance(text, str):
        raise ConversationError(f"message {position}: 'content' must be text, got {text!r}")
    try:
        match message.get("role"):
            case "instructions" | "system":
                tools = tuple(
                    ToolDefinition(
                        name=_text(t["name"]), description=_text(t.get("description", "")), parameters=t["parameters"]
                    )
                    for t in message.get("tools", ())
                )
                return Instructions(text=text, tools=tools)
            case "user":
                return UserTurn(text=text, response_format=message.get("response_format"))
            case "assistant":
                calls = tuple(ToolCall(name=c["name"], arguments=c["arguments"]) for c in message.get("tool_calls", ()))
                return AssistantTurn(text=text, tool_calls=calls)
            case "tool":
                return ToolTurn(name=_text(message["name"]), text=text)
            case role:
                raise ConversationError(
                    f"message {position}: unknown role {role!r}; known: instructions, user, assistant, tool"
                )
    except (KeyError, TypeError, AttributeError) as error:
        raise ConversationError(f"message {position}: missing or ill-typed {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text: {value!r}")
    return value
