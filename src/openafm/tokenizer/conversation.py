"""Conversations as plain data: the chat template encodes them, training data stores them, sessions append to them.

On disk a conversation is one line of chat JSONL (`Conversation.to_dict`):

    {"messages": [{"role": "instructions", "content": "...", "tools": [...]},
                  {"role": "user", "content": "...", "response_format": {JSON Schema}},
                  {"role": "assistant", "content": "..."}], "task": "event", "language": "en"}

The content of a user's or a tool's message is a string, or a list of parts where it holds images:

    [{"type": "text", "text": "What is this?"}, {"type": "image", "digest": "9f86...", "num_tokens": 16}]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from openafm.core.errors import OpenAFMError

JsonSchema: TypeAlias = dict[str, Any]


class ConversationError(OpenAFMError):
    """A dictionary or a turn is not a valid conversation; the message names the turn and the key."""


@dataclass(frozen=True, kw_only=True)
class TextPart:
    """Text inside the content of a turn."""

    text: str


@dataclass(frozen=True, kw_only=True)
class ImagePart:
    """An image inside the content of a turn: the digest of its bytes and the number of tokens it takes in the sequence."""

    digest: str
    num_tokens: int

    def __post_init__(self) -> None:
        if not self.digest:
            raise ConversationError("an image part needs the digest of its bytes, got an empty string")
        if self.num_tokens < 1:
            raise ConversationError(f"an image takes at least 1 token, got num_tokens={self.num_tokens}")


ContentPart: TypeAlias = TextPart | ImagePart


@dataclass(frozen=True, kw_only=True)
class ToolDefinition:
    """A tool as shown to the model. `parameters` is a JSON Schema object."""

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
    """The developer's turn. Always first: it takes precedence over later turns and lists the tools."""

    text: str
    tools: tuple[ToolDefinition, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ContentTurn:
    """Base of the turns that may hold images.

    Attributes:
        content: parts in order. Empty texts are dropped and adjacent texts joined, so equal contents compare equal.
    """

    content: tuple[ContentPart, ...]

    @property
    def text(self) -> str:
        """The text parts, joined; images are left out."""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def images(self) -> tuple[ImagePart, ...]:
        """The image parts, in order."""
        return tuple(part for part in self.content if isinstance(part, ImagePart))


@dataclass(frozen=True, kw_only=True, init=False)
class UserTurn(ContentTurn):
    """A prompt: `UserTurn(text="...")`, or `UserTurn(content=(...))` with text and image parts.

    Attributes:
        response_format: JSON Schema of the answer, shown to the model as schema text.
    """

    response_format: JsonSchema | None

    def __init__(
        self,
        *,
        text: str | None = None,
        content: Sequence[ContentPart] | None = None,
        response_format: JsonSchema | None = None,
    ) -> None:
        object.__setattr__(self, "content", _content("UserTurn", text, content))
        object.__setattr__(self, "response_format", response_format)


@dataclass(frozen=True, kw_only=True)
class AssistantTurn:
    """The model's answer: text, tool calls made in parallel, or text followed by calls."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, kw_only=True, init=False)
class ToolTurn(ContentTurn):
    """The output of one tool call, untrusted: `ToolTurn(name="...", text="...")`, or `content` with text and image parts."""

    name: str

    def __init__(self, *, name: str, text: str | None = None, content: Sequence[ContentPart] | None = None) -> None:
        object.__setattr__(self, "content", _content("ToolTurn", text, content))
        object.__setattr__(self, "name", name)


Turn: TypeAlias = Instructions | UserTurn | AssistantTurn | ToolTurn


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Turns in order, with their task and language (empty when unknown)."""

    turns: tuple[Turn, ...]
    task: str = ""
    language: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the chat JSONL form."""
        messages = [_turn_to_dict(turn) for turn in self.turns]
        tags = {name: value for name, value in (("task", self.task), ("language", self.language)) if value}
        return {"messages": messages} | tags | dict(self.extra)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Conversation:
        """Read the chat JSONL form.

        Raises:
            ConversationError: a message has no known role, or a key has the wrong type.
        """
        if not isinstance(values, Mapping):
            raise ConversationError(f"a conversation is an object, got {type(values).__name__}")
        messages = values.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ConversationError("a conversation needs a non-empty list under 'messages'")
        turns = tuple(_turn_from_dict(message, position) for position, message in enumerate(messages))
        extra = {key: value for key, value in values.items() if key not in ("messages", "task", "language")}
        return Conversation(
            turns=turns, task=str(values.get("task", "")), language=str(values.get("language", "")), extra=extra
        )


def _content(kind: str, text: str | None, content: Sequence[ContentPart] | None) -> tuple[ContentPart, ...]:
    if (text is None) == (content is None):
        raise TypeError(f"{kind} takes either text or content")
    parts = (TextPart(text=text),) if text is not None else content or ()
    return tuple(_joined(parts))


def _joined(parts: Iterable[ContentPart]) -> Iterator[ContentPart]:
    for is_text, run in itertools.groupby(parts, key=lambda part: isinstance(part, TextPart)):
        if not is_text:
            yield from run
        elif text := "".join(part.text for part in run if isinstance(part, TextPart)):
            yield TextPart(text=text)


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
            message = {"role": "user", "content": _content_to_json(turn)}
            return message if turn.response_format is None else message | {"response_format": turn.response_format}
        case AssistantTurn():
            message = {"role": "assistant", "content": turn.text}
            if turn.tool_calls:
                message["tool_calls"] = [{"name": call.name, "arguments": call.arguments} for call in turn.tool_calls]
            return message
        case ToolTurn():
            return {"role": "tool", "name": turn.name, "content": _content_to_json(turn)}


def _content_to_json(turn: ContentTurn) -> str | list[dict[str, Any]]:
    return [_part_to_dict(part) for part in turn.content] if turn.images else turn.text


def _part_to_dict(part: ContentPart) -> dict[str, Any]:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart():
            return {"type": "image", "digest": part.digest, "num_tokens": part.num_tokens}


def _turn_from_dict(message: Any, position: int) -> Turn:
    if not isinstance(message, Mapping):
        raise ConversationError(f"message {position}: expected an object, got {message!r}")
    content = message.get("content", "")
    try:
        match message.get("role"):
            case "instructions" | "system":
                tools = tuple(
                    ToolDefinition(
                        name=_text(t["name"]), description=_text(t.get("description", "")), parameters=t["parameters"]
                    )
                    for t in message.get("tools", ())
                )
                return Instructions(text=_text(content), tools=tools)
            case "user":
                return UserTurn(content=_parts_from_json(content), response_format=message.get("response_format"))
            case "assistant":
                calls = tuple(ToolCall(name=c["name"], arguments=c["arguments"]) for c in message.get("tool_calls", ()))
                return AssistantTurn(text=_text(content), tool_calls=calls)
            case "tool":
                return ToolTurn(name=_text(message["name"]), content=_parts_from_json(content))
            case role:
                raise ConversationError(f"unknown role {role!r}; known: instructions, user, assistant, tool")
    except ConversationError as error:
        raise ConversationError(f"message {position}: {error}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise ConversationError(f"message {position}: missing or ill-typed {error}") from error


def _parts_from_json(content: Any) -> list[ContentPart]:
    return [TextPart(text=content)] if isinstance(content, str) else list(map(_part_from_dict, content))


def _part_from_dict(part: Any) -> ContentPart:
    match part:
        case {"type": "text", "text": str(text)}:
            return TextPart(text=text)
        case {"type": "image", "digest": str(digest), "num_tokens": int(num_tokens)}:
            return ImagePart(digest=digest, num_tokens=num_tokens)
    raise ConversationError(
        f"the content part {part!r} is neither {{'type': 'text', 'text'}} nor {{'type': 'image', 'digest', 'num_tokens'}}"
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text: {value!r}")
    return value
