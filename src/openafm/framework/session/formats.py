"""Response formats: parse the model's text into snapshots while it grows, and into the final value."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from openafm.framework.errors import DecodingFailureError, SchemaFormatError, UnserializableSchemaError
from openafm.framework.schema.closing import closed_schema
from openafm.framework.schema.content import GeneratedContent
from openafm.framework.schema.generation_id import GenerationID
from openafm.framework.schema.partial_json import JsonPrefix, PartialJson, PartialJsonError, is_deeper
from openafm.framework.schema.schema import GenerationSchema
from openafm.tokenizer.conversation import JsonSchema
from openafm.tokenizer.schema_text import compact_json

_MAX_SCHEMA_DEPTH = 100  # nesting levels; the grammar engine's limit is slightly higher

PartialT = TypeVar("PartialT")
FinalT = TypeVar("FinalT")


@dataclass(frozen=True, kw_only=True)
class Snapshot(Generic[PartialT]):
    """Hold the whole response so far: `content` in the requested type, `raw_content` as text or JSON."""

    content: PartialT
    raw_content: GeneratedContent


class TextSnapshot(str, Snapshot[str]):
    """A snapshot of a text response, which is also a string."""

    def __new__(cls, content: str, raw_content: GeneratedContent) -> TextSnapshot:
        return super().__new__(cls, content)

    def __init__(self, content: str, raw_content: GeneratedContent) -> None:
        Snapshot.__init__(self, content=content, raw_content=raw_content)

    __hash__ = str.__hash__
    __setattr__ = object.__setattr__


class IncompleteResponseError(DecodingFailureError):
    """The text of a guided response is the beginning of a JSON value."""


class ResponseFormat(ABC, Generic[PartialT, FinalT]):
    """Base of response formats. One instance serves one request.

    Attributes:
        schema: the JSON Schema of the response; None for free text.
    """

    schema: JsonSchema | None = None

    @abstractmethod
    def snapshots(self, pieces: Iterable[str]) -> Iterator[Snapshot[PartialT]]:
        """Yield a snapshot whenever the response has changed."""

    @abstractmethod
    def final(self, text: str) -> Snapshot[FinalT]:
        """Return the response parsed from the whole text.

        Raises:
            DecodingFailureError: the text was cut off, or the requested type rejects its values.
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
        last = None
        for content in self._partial_contents(pieces):
            if content != last:
                yield Snapshot(content=content, raw_content=content)
                last = content

    def final(self, text: str) -> Snapshot[GeneratedContent]:
        content = GeneratedContent.from_json(text, self._identity)
        if not content.is_complete:
            raise IncompleteResponseError("the response ended inside a JSON value", raw_content=text)
        return Snapshot(content=content, raw_content=content)

    def _partial_contents(self, pieces: Iterable[str]) -> Iterator[GeneratedContent]:
        partial = PartialJson()
        for piece in pieces:
            try:
                prefix = partial.prefix() if partial.push(piece) else None
            except PartialJsonError as error:  # the model does not enforce the schema
                raise DecodingFailureError(str(error), raw_content=partial.text) from error
            if prefix is not None:
                yield GeneratedContent.from_prefix(prefix, self._identity)
        if partial.text and partial.prefix().num_open:  # a top-level number ends only with the text
            yield self.final(partial.text).content


class TypedFormat(ResponseFormat[Any, FinalT]):
    """JSON under the schema of a type, as instances of that type; snapshots hold its partial form."""

    def __init__(self, type_class: Any) -> None:
        self._type_class = type_class
        self.schema = GenerationSchema(type_class).to_dict()
        self._json = JsonFormat(self.schema)

    def snapshots(self, pieces: Iterable[str]) -> Iterator[Snapshot[Any]]:
        last = None
        for snapshot in self._json.snapshots(pieces):
            partial = snapshot.content.partial_value(self._type_class)
            if partial is not None and partial != last:
                yield Snapshot(content=partial, raw_content=snapshot.raw_content)
                last = partial

    def final(self, text: str) -> Snapshot[FinalT]:
        raw_content = self._json.final(text).content
        return Snapshot(content=raw_content.value(self._type_class), raw_content=raw_content)


def read_json_schema(json_schema: JsonSchema | str) -> JsonSchema:
    """Return a JSON Schema, given as a dictionary or as text, as new JSON values.

    Raises:
        SchemaFormatError: not a JSON object, or nested too deeply.
    """
    try:
        schema = json.loads(json_schema if isinstance(json_schema, str) else compact_json(json_schema))
        compact_json(schema)  # json.loads accepts NaN; documents must not contain it
    except TypeError as error:
        raise UnserializableSchemaError(f"incorrect schema format: not JSON ({error})") from error
    except (ValueError, RecursionError) as error:
        raise SchemaFormatError(f"incorrect schema format: not JSON ({error})") from error
    if not isinstance(schema, dict):
        raise SchemaFormatError(f"incorrect schema format: a JSON Schema is an object, got {schema!r}")
    if is_deeper(schema, _MAX_SCHEMA_DEPTH):
        raise SchemaFormatError(f"incorrect schema format: nested deeper than {_MAX_SCHEMA_DEPTH} levels")
    return closed_schema(schema)
