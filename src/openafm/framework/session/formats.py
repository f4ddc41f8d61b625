"""Response formats: how the text that a model writes is read, while it grows and at its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from openafm.framework.errors import DecodingFailureError
from openafm.framework.schema.content import GeneratedContent
from openafm.framework.schema.generation_id import GenerationID
from openafm.framework.schema.partial_json import JsonPrefix, PartialJson, PartialJsonError
from openafm.framework.schema.schema import GenerationSchema
from openafm.tokenizer.conversation import JsonSchema

PartialT = TypeVar("PartialT")
FinalT = TypeVar("FinalT")


@dataclass(frozen=True, kw_only=True)
class Snapshot(Generic[PartialT]):
    """The whole response so far: `content` as it was asked for, `raw_content` as text or JSON."""

    content: PartialT
    raw_content: GeneratedContent


class TextSnapshot(str, Snapshot[str]):
    """The text of a response so far: a string, and a snapshot like any other."""

    def __new__(cls, content: str, raw_content: GeneratedContent) -> TextSnapshot:
        return super().__new__(cls, content)

    def __init__(self, content: str, raw_content: GeneratedContent) -> None:
        Snapshot.__init__(self, content=content, raw_content=raw_content)

    __hash__ = str.__hash__
    __setattr__ = object.__setattr__


class ResponseFormat(ABC, Generic[PartialT, FinalT]):
    """What a response is: free text, or JSON under `schema`. Serves one request."""

    schema: JsonSchema | None = None

    @abstractmethod
    def snapshots(self, pieces: Iterable[str]) -> Iterator[Snapshot[PartialT]]:
        """A snapshot for every piece of text that shows more of the response."""

    @abstractmethod
    def final(self, text: str) -> Snapshot[FinalT]:
        """The response that the whole text is.

        Raises:
            DecodingFailureError: the text was cut off, or is refused by the type it is for.
        """


class TextFormat(ResponseFormat[str, str]):
    """Free text."""

    def snapshots(self, pieces: Iterable[str]) -> Iterator[Snapshot[str]]:
        identity, text = GenerationID(), ""
        for piece in pieces:
            text += piece
            if piece:
                yield TextSnapshot(text, GeneratedContent.from_prefix(JsonPrefix(value=text, num_open=1), identity))

    def final(self, text: str) -> Snapshot[str]:
        return TextSnapshot(text, GeneratedContent(text))


class JsonFormat(ResponseFormat[GeneratedContent, GeneratedContent]):
    """JSON under a schema, as generated content."""

    def __init__(self, schema: JsonSchema) -> None:
        self.schema = schema
        self._identity = GenerationID()

    def snapshots(self, pieces: Iterable[str]) -> Iterator[Snapshot[GeneratedContent]]:
        for content in self._growing(pieces):
            yield Snapshot(content=content, raw_content=content)

    def final(self, text: str) -> Snapshot[GeneratedContent]:
        content = GeneratedContent.from_json(text, self._identity)
        if not content.is_complete:
            raise DecodingFailureError("the response was cut off before its end; allow it more tokens", raw_content=text)
        return Snapshot(content=content, raw_content=content)

    def _growing(self, pieces: Iterable[str]) -> Iterator[GeneratedContent]:
        partial = PartialJson()
        for piece in pieces:
            try:
                prefix = partial.prefix() if partial.push(piece) else None
            except PartialJsonError as error:  # of a model that nothing forces to write JSON
                raise DecodingFailureError(str(error), raw_content=partial.text) from error
            if prefix is not None:
                yield GeneratedContent.from_prefix(prefix, self._identity)
        if partial.text and partial.prefix().num_open:  # a number by itself, which only the end of the text ends
            yield self.final(partial.text).content


class TypedFormat(ResponseFormat[Any, FinalT]):
    """JSON under the schema of a type, as values of that type; snapshots are of its partial form."""

    def __init__(self, type_class: Any) -> None:
        self._type_class = type_class
        self.schema = GenerationSchema(type_class).to_dict()
        self._json = JsonFormat(self.schema)

    def snapshots(self, pieces: Iterable[str]) -> Iterator[Snapshot[Any]]:
        for snapshot in self._json.snapshots(pieces):
            partial = snapshot.content.partial_value(self._type_class)
            if partial is not None:
                yield Snapshot(content=partial, raw_content=snapshot.raw_content)

    def final(self, text: str) -> Snapshot[FinalT]:
        raw_content = self._json.final(text).content
        return Snapshot(content=raw_content.value(self._type_class), raw_content=raw_content)
