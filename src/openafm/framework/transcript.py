"""Transcripts: what was said in a session, entry by entry; only ever appended to.

Every entry holds the turn that the chat template encodes (`tokenizer/conversation.py`), so the tokens of a transcript are
those of its turns, plus what only the wire form needs.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, overload

from openafm.framework.options import GenerationOptions
from openafm.tokenizer.conversation import AssistantTurn, Instructions, JsonSchema, Turn, UserTurn

VERSION = 1


def _new_id() -> str:
    return str(uuid.uuid4()).upper()


@dataclass(frozen=True, kw_only=True)
class InstructionsEntry:
    """The developer's instructions; the first entry."""

    turn: Instructions
    id: str = field(default_factory=_new_id)

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "role": "instructions", "contents": [_text_segment(self.turn.text)]}


@dataclass(frozen=True, kw_only=True)
class PromptEntry:
    """A prompt, with its options and the schema of the response, whether the model was shown it or not."""

    turn: UserTurn
    options: GenerationOptions
    schema: JsonSchema | None = None
    id: str = field(default_factory=_new_id)

    def to_dict(self) -> dict[str, Any]:
        entry = {
            "id": self.id,
            "role": "user",
            "contents": [_text_segment(self.turn.text)],
            "options": self.options.to_dict(),
        }
        if self.schema is None:
            return entry
        json_schema = {"name": self.schema.get("title", ""), "schema": self.schema}
        return entry | {"responseFormat": {"type": "jsonSchema", "jsonSchema": json_schema}}


@dataclass(frozen=True, kw_only=True)
class ResponseEntry:
    """The model's response: text, or a structure of the schema named `source`. `assets` are the bundles that answered."""

    turn: AssistantTurn
    source: str | None = None
    assets: tuple[str, ...] = ()
    id: str = field(default_factory=_new_id)

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "role": "response", "contents": [self._segment()], "assets": list(self.assets)}

    def _segment(self) -> dict[str, Any]:
        if self.source is None:
            return _text_segment(self.turn.text)
        structure = {"source": self.source, "content": json.loads(self.turn.text)}
        return {"id": "0", "type": "structure", "structure": structure}


Entry: TypeAlias = InstructionsEntry | PromptEntry | ResponseEntry


class Transcript(Sequence[Entry]):
    """The entries of a session in order, to read; the session appends to it."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries = list(entries)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns as the chat template encodes them."""
        return tuple(entry.turn for entry in self._entries)

    async def to_dict(self) -> dict[str, Any]:
        """The wire form of Apple's framework, version 1."""
        entries = [entry.to_dict() for entry in self._entries]
        return {"version": VERSION, "type": "FoundationModels.Transcript", "transcript": {"entries": entries}}

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        return self._entries[index]

    def _append(self, *entries: Entry) -> None:
        self._entries.extend(entries)


def _text_segment(text: str) -> dict[str, Any]:
    return {"id": "0", "type": "text", "text": text}
