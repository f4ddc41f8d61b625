"""Transcripts: the entries of a session, append-only.

Each entry holds the turn that the chat template encodes (`tokenizer/conversation.py`) and fields that only the wire format
needs. The wire format is Apple's (`wire.py`). An entry that was read is written back unchanged, unknown keys included.
"""

from __future__ import annotations

import copy
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias, overload

from openafm.framework.errors import TranscriptMutationError
from openafm.framework.options import GenerationOptions
from openafm.framework.transcripts.wire import (
    TranscriptError,
    Wire,
    checked,
    content_segments,
    json_copy,
    optional,
    read_content,
    read_options,
    read_response_format,
    read_source,
    read_text,
    read_tool,
    read_tool_call,
    required,
    response_format_wire,
    structure_segment,
    text_segment,
    tool_call_wire,
    tool_wire,
)
from openafm.tokenizer.conversation import AssistantTurn, ContentTurn, Instructions, JsonSchema, ToolTurn, Turn, UserTurn

VERSION = 1
_TYPE = "FoundationModels.Transcript"
_INCLUDE_SCHEMA = "includeSchemaInPrompt"  # a key of openafm, not of Apple; absent means true


def _new_id() -> str:
    return str(uuid.uuid4()).upper()


@dataclass(frozen=True, kw_only=True)
class TranscriptEntry(ABC):
    """Base of transcript entries. `to_dict` and `from_dict` convert to and from the wire format."""

    id: str = field(default_factory=_new_id)
    _read: Wire | None = field(default=None, init=False, repr=False, compare=False)  # the JSON it was read from

    def to_dict(self) -> Wire:
        """Return the entry as JSON; an entry that was read from JSON returns the same JSON."""
        return copy.deepcopy(self._wire() if self._read is None else self._read)

    @classmethod
    def from_dict(cls, wire: Wire) -> Self:
        """Read an entry written by `to_dict` or Apple's framework.

        Raises:
            TranscriptError: a key is missing, or its value has the wrong type.
        """
        entry = cls(id=required(wire, "id", str), **cls._arguments(wire))
        object.__setattr__(entry, "_read", wire)
        return entry

    @abstractmethod
    def _wire(self) -> Wire: ...

    @classmethod
    @abstractmethod
    def _arguments(cls, wire: Wire) -> dict[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class InstructionsEntry(TranscriptEntry):
    """The developer's instructions and the tools of the session. Always the first entry."""

    turn: Instructions

    def _wire(self) -> Wire:
        wire = {"id": self.id, "role": "instructions", "contents": [text_segment(self.turn.text)]}
        return wire | {"tools": list(map(tool_wire, self.turn.tools))} if self.turn.tools else wire

    @classmethod
    def _arguments(cls, wire: Wire) -> dict[str, Any]:
        tools = tuple(map(read_tool, optional(wire, "tools", list)))
        return {"turn": Instructions(text=read_text(required(wire, "contents", list)), tools=tools)}


@dataclass(frozen=True, kw_only=True)
class PromptEntry(TranscriptEntry):
    """A prompt, its options and the response's schema. `turn.response_format` is None if the prompt omits the schema.

    The turn refers to images by digest. `images` holds their bytes, which the wire format does not include.
    """

    turn: UserTurn
    options: GenerationOptions
    schema: JsonSchema | None = None
    images: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    def _wire(self) -> Wire:
        wire: Wire = {
            "id": self.id,
            "role": "user",
            "contents": content_segments(self.turn),
            "options": self.options.to_dict(),
        }
        if self.schema is not None:
            wire["responseFormat"] = response_format_wire(self.schema)
            if self.turn.response_format is None:
                wire[_INCLUDE_SCHEMA] = False
        return wire

    @classmethod
    def _arguments(cls, wire: Wire) -> dict[str, Any]:
        schema = read_response_format(required(wire, "responseFormat", dict)) if "responseFormat" in wire else None
        shown = None if wire.get(_INCLUDE_SCHEMA) is False else schema
        return {
            "turn": UserTurn(content=read_content(required(wire, "contents", list)), response_format=shown),
            "options": read_options(optional(wire, "options", dict)),
            "schema": schema,
        }


@dataclass(frozen=True, kw_only=True)
class ToolCallsEntry(TranscriptEntry):
    """Parallel tool calls of one answer. `call_ids` holds one id per call; tool outputs refer to them."""

    turn: AssistantTurn
    call_ids: tuple[str, ...]
    assets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.call_ids) != len(self.turn.tool_calls):
            counts = f"{len(self.turn.tool_calls)} calls, {len(self.call_ids)} ids"
            raise ValueError(f"'call_ids' must hold one id per call; got {counts}")

    def _wire(self) -> Wire:
        calls = [tool_call_wire(*pair) for pair in zip(self.turn.tool_calls, self.call_ids, strict=True)]
        wire: Wire = {"id": self.id, "role": "response", "toolCalls": calls}
        contents = {"contents": [text_segment(self.turn.text)]} if self.turn.text else {}
        return wire | contents | ({"assets": list(self.assets)} if self.assets else {})

    @classmethod
    def _arguments(cls, wire: Wire) -> dict[str, Any]:
        calls = required(wire, "toolCalls", list)
        text = read_text(optional(wire, "contents", list))
        return {
            "turn": AssistantTurn(text=text, tool_calls=tuple(map(read_tool_call, calls))),
            "call_ids": tuple(required(call, "id", str) for call in calls),
            "assets": _read_assets(wire),
        }


@dataclass(frozen=True, kw_only=True)
class ToolOutputEntry(TranscriptEntry):
    """The output of one tool call, untrusted. `images` are the bytes of its images, as in `PromptEntry`."""

    turn: ToolTurn
    call_id: str
    images: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    def _wire(self) -> Wire:
        return {
            "id": self.id,
            "role": "tool",
            "toolName": self.turn.name,
            "toolCallID": self.call_id,
            "contents": content_segments(self.turn),
        }

    @classmethod
    def _arguments(cls, wire: Wire) -> dict[str, Any]:
        turn = ToolTurn(name=required(wire, "toolName", str), content=read_content(required(wire, "contents", list)))
        return {"turn": turn, "call_id": required(wire, "toolCallID", str)}


@dataclass(frozen=True, kw_only=True)
class ResponseEntry(TranscriptEntry):
    """The model's response: text, or JSON of the schema named `source`. `assets` names the models that answered."""

    turn: AssistantTurn
    source: str | None = None
    assets: tuple[str, ...] = ()

    def _wire(self) -> Wire:
        text = self.turn.text
        segment = text_segment(text) if self.source is None else structure_segment(self.source, text)
        return {"id": self.id, "role": "response", "contents": [segment], "assets": list(self.assets)}

    @classmethod
    def _arguments(cls, wire: Wire) -> dict[str, Any]:
        contents = required(wire, "contents", list)
        turn = AssistantTurn(text=read_text(contents))
        return {"turn": turn, "source": read_source(contents), "assets": _read_assets(wire)}


Entry: TypeAlias = InstructionsEntry | PromptEntry | ToolCallsEntry | ToolOutputEntry | ResponseEntry


class Transcript(Sequence[Entry]):
    """A read-only sequence of entries; only sessions append to it.

    The tools in its instructions are a record. Pass `tools` to a session that continues the transcript.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries = list(entries)
        self._envelope: Wire = {"version": VERSION, "type": _TYPE, "transcript": {}}

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns that the chat template encodes."""
        return tuple(entry.turn for entry in self._entries)

    @property
    def images(self) -> dict[str, bytes]:
        """The encoded images of prompts and tool outputs, by the SHA-256 of their bytes in hex.

        Those of a transcript that was read with `from_dict` are missing unless they were passed to it.
        """
        return {
            digest: data
            for entry in self._entries
            if isinstance(entry, PromptEntry | ToolOutputEntry)
            for digest, data in entry.images.items()
        }

    @property
    def image_digests(self) -> tuple[str, ...]:
        """The digests of the images that prompts and tool outputs refer to, in order, each once."""
        turns = (entry.turn for entry in self._entries)
        found = (image.digest for turn in turns if isinstance(turn, ContentTurn) for image in turn.images)
        return tuple(dict.fromkeys(found))

    async def to_dict(self) -> Wire:
        """Return the transcript in the wire format of Apple's framework, version 1, as new JSON values."""
        return self.as_dict()

    def as_dict(self) -> Wire:
        """`to_dict` for code without an event loop."""
        envelope = copy.deepcopy(self._envelope)
        envelope["transcript"]["entries"] = [entry.to_dict() for entry in self._entries]
        return envelope

    @classmethod
    async def from_dict(cls, dict: Mapping[str, Any], *, images: Mapping[str, bytes] | None = None) -> Self:
        """Read a transcript written by `to_dict` or Apple's framework.

        Args:
            images: the `images` of the transcript that was written; a model needs them to continue it.

        Raises:
            TranscriptError: not a transcript of version 1, or an entry has an unknown role.
        """
        return cls.parse(dict, images=images)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, images: Mapping[str, bytes] | None = None) -> Self:
        """`from_dict` for code without an event loop."""
        envelope = checked(json_copy(values), dict, "a transcript")
        if required(envelope, "type", str) != _TYPE:
            raise TranscriptError(f"'type' must be '{_TYPE}', got {envelope['type']!r}")
        if envelope.get("version") != VERSION:
            raise TranscriptError(f"'version' must be {VERSION}, got {envelope.get('version')!r}")
        entries = required(required(envelope, "transcript", dict), "entries", list)
        transcript = cls(_with_images(_read_entry(*pair), images or {}) for pair in enumerate(entries))
        del envelope["transcript"]["entries"]
        transcript._envelope = envelope
        return transcript

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        return self._entries[index]

    def __repr__(self) -> str:
        return f"Transcript([{', '.join(type(entry).__name__ for entry in self._entries)}])"

    def _append(self, *entries: Entry, after: int | None = None) -> None:
        """Append entries. If `after` is given, the transcript must have that many entries.

        Raises:
            TranscriptMutationError: the transcript has another number of entries.
        """
        with _append_lock:
            if after not in (None, len(self._entries)):
                raise TranscriptMutationError(
                    "another session appended to the transcript during this request; use one session per transcript"
                )
            self._entries.extend(entries)


_append_lock = threading.Lock()  # one for all transcripts: a lock per transcript would prevent copying


def _with_images(entry: Entry, images: Mapping[str, bytes]) -> Entry:
    """Return the entry with those of the images that it refers to."""
    if not isinstance(entry, PromptEntry | ToolOutputEntry):
        return entry
    found = {part.digest: images[part.digest] for part in entry.turn.images if part.digest in images}
    if found:
        object.__setattr__(entry, "images", found)  # not replace(): the entry keeps the JSON that it was read from
    return entry


def _read_entry(position: int, wire: Any) -> Entry:
    try:
        entry = _entry_class(checked(wire, dict, "an entry")).from_dict(wire)
        if position > 0 and isinstance(entry, InstructionsEntry):
            raise TranscriptError("instructions must be the first entry")
        return entry
    except TranscriptError as error:
        raise TranscriptError(f"entry {position} of the transcript: {error}") from error


def _entry_class(wire: Wire) -> type[Entry]:
    match required(wire, "role", str):
        case "instructions":
            return InstructionsEntry
        case "user":
            return PromptEntry
        case "response":
            return ToolCallsEntry if wire.get("toolCalls") else ResponseEntry
        case "tool":
            return ToolOutputEntry
        case role:
            raise TranscriptError(f"unknown role {role!r}; known: instructions, user, response, tool")


def _read_assets(wire: Wire) -> tuple[str, ...]:
    return tuple(checked(asset, str, "an asset") for asset in optional(wire, "assets", list))
