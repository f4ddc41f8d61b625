"""Convert turns to chat-completion messages, and build the body of a request."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from openafm.framework.backends.language_model import AnswerRequest
from openafm.framework.errors import GenerationError
from openafm.framework.options import GenerationOptions, ImageDetail, SamplingModeType
from openafm.framework.schema.wire_schema import WireSchema, without_extensions
from openafm.framework.transcripts.prompt import UnsupportedAttachmentError
from openafm.tokenizer.conversation import (
    AssistantTurn,
    ImagePart,
    Instructions,
    TextPart,
    ToolDefinition,
    ToolTurn,
    Turn,
    UserTurn,
)
from openafm.tokenizer.schema_text import compact_json

Message: TypeAlias = dict[str, Any]

_DETAILS: Mapping[ImageDetail, str] = {"high": "high", "balanced": "auto", "rapid": "low"}
_IMAGE_TYPES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}


def new_messages(
    earlier: Sequence[Message],
    turns: Iterable[Turn],
    images: Mapping[str, bytes] | None = None,
    detail: ImageDetail | None = None,
) -> list[Message]:
    """Return the messages of `turns`, which follow the `earlier` messages. Tool outputs match calls by name, in order.

    Endpoints take text only as the output of a tool, so images of outputs follow in a user message.

    Args:
        images: the bytes of the turns' images, by digest.
        detail: the resolution mode of these images; None: the endpoint's default.

    Raises:
        GenerationError: a tool output has no matching call.
        UnsupportedAttachmentError: the bytes of an image are missing, or its format is unknown.
    """
    messages: list[Message] = []
    num_calls = sum(len(message.get("tool_calls", ())) for message in earlier)
    waiting = _unanswered(earlier)  # (name, id) of calls without an output
    shown: list[ImagePart] = []  # of tool outputs
    for turn in turns:
        if not isinstance(turn, ToolTurn):
            messages += _shown(shown, images, detail)
            shown = []
        match turn:
            case Instructions():
                messages += [{"role": "system", "content": turn.text}] if turn.text else []
            case UserTurn():
                messages.append({"role": "user", "content": _prompt_content(turn, images or {}, detail)})
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
                shown += turn.images
    return [*messages, *_shown(shown, images, detail)]


@dataclass(frozen=True, kw_only=True)
class WireTool:
    """A tool as it is sent to an endpoint."""

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
    tools: Sequence[WireTool],
) -> dict[str, Any]:
    """Return the body of a streamed chat completion.

    Every request lists all tools of the session, so that the endpoint's prefix cache stays valid; `tool_choice` restricts
    their use.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": list(messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if tools:
        body["tools"] = [tool.to_dict() for tool in tools]
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
        "top_k": mode and mode.top,  # an extension; endpoints without it reply with an error
        "seed": mode and mode.seed,
        "max_tokens": options.maximum_response_tokens,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _prompt_content(turn: UserTurn, images: Mapping[str, bytes], detail: ImageDetail | None) -> str | list[dict[str, Any]]:
    suffix = ""
    if turn.response_format is not None:
        schema = compact_json(without_extensions(turn.response_format))
        suffix = f"\n\nRespond with JSON that fits this JSON Schema: {schema}"
    if not turn.images:
        return turn.text + suffix
    parts = [*turn.content, *([TextPart(text=suffix)] if suffix else [])]
    return [_content_part(part, images, detail) for part in parts]


def _shown(parts: Sequence[ImagePart], images: Mapping[str, bytes] | None, detail: ImageDetail | None) -> list[Message]:
    """Return a user message with images of tool outputs; none without images."""
    content = [_content_part(part, images or {}, detail) for part in parts]
    title = {"type": "text", "text": "Images of the tool outputs above:"}
    return [{"role": "user", "content": [title, *content]}] if content else []


def _content_part(part: TextPart | ImagePart, images: Mapping[str, bytes], detail: ImageDetail | None) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    data = images.get(part.digest)
    if data is None:
        raise UnsupportedAttachmentError(
            f"the transcript refers to the image {part.digest[:12]}, whose bytes are missing; pass images= to"
            " Transcript.from_dict, or attach it to a new prompt"
        )
    media_type = next((name for magic, name in _IMAGE_TYPES.items() if data.startswith(magic)), None)
    if media_type is None:
        raise UnsupportedAttachmentError("an attachment is not PNG, JPEG, GIF or WebP; convert it first")
    image = {"url": f"data:{media_type};base64,{base64.b64encode(data).decode()}"}
    return {"type": "image_url", "image_url": image | ({} if detail is None else {"detail": _DETAILS[detail]})}


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
    """Return nine letters and digits: the only form that every known endpoint accepts."""
    return f"call{number % 100_000:05d}"


def _unanswered(messages: Sequence[Message]) -> list[tuple[str, str]]:
    answered = {message.get("tool_call_id") for message in messages}
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    return [(call["function"]["name"], call["id"]) for call in calls if call["id"] not in answered]
