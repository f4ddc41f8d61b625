"""Generated content: complete or partial JSON, convertible to typed values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol, TypeVar, overload, runtime_checkable

from openafm.framework.errors import DecodingFailureError
from openafm.framework.schema.annotations import value_type
from openafm.framework.schema.generation_id import GenerationID
from openafm.framework.schema.partial_json import JsonPrefix, PartialJson, PartialJsonError, read_json
from openafm.framework.schema.records import PARTIAL_OF
from openafm.tokenizer.schema_text import compact_json

T = TypeVar("T")


class GeneratedContent:
    """Hold a complete or partial JSON value and its identity.

    Args:
        content_dict: any JSON value; an empty object by default.
        id: the identity; a new one by default.

    Raises:
        TypeError: the value is not serializable as JSON.
    """

    def __init__(self, content_dict: Any = None, id: GenerationID | None = None) -> None:
        self._value = {} if content_dict is None else content_dict
        self._num_open = 0
        self.id = id or GenerationID()
        compact_json(self._value)

    @classmethod
    def from_json(cls, json_str: str, id: GenerationID | None = None) -> GeneratedContent:
        """Return the content of complete or truncated JSON text.

        Raises:
            DecodingFailureError: the text is not a prefix of JSON; `raw_content` holds it.
        """
        try:
            return cls.from_prefix(JsonPrefix(value=read_json(json_str), num_open=0), id)
        except ValueError:  # incomplete or invalid
            partial = PartialJson()
        try:
            partial.push(json_str)
            return cls.from_prefix(partial.prefix(), id)
        except PartialJsonError as error:
            raise DecodingFailureError(str(error), raw_content=json_str) from error

    @classmethod
    def from_prefix(cls, prefix: JsonPrefix, id: GenerationID | None = None) -> GeneratedContent:
        """Return the content of a parsed prefix."""
        content = cls.__new__(cls)
        content._value, content._num_open, content.id = prefix.value, prefix.num_open, id or GenerationID()
        return content

    @classmethod
    def of(cls, value: Any, type_class: Any = None) -> GeneratedContent:
        """Return the content of a Python value, encoded as its class or as `type_class`.

        Raises:
            DecodingFailureError: the value does not have that type.
            InvalidGenerationSchemaError: values of that type cannot be generated.
        """
        encoded = value_type(type(value) if type_class is None else type_class).encode(value)
        return cls.from_prefix(JsonPrefix(value=encoded, num_open=0))

    @property
    def is_complete(self) -> bool:
        """True if the JSON is complete."""
        return self._num_open == 0

    def to_json(self) -> str:
        """Return compact JSON. Of partial content: the determined part, with open values closed."""
        return compact_json(self._value)

    @overload
    def value(self, type_class: type[T], for_property: str | None = None) -> T: ...
    @overload
    def value(self, type_class: Any = None, for_property: str | None = None) -> Any: ...
    def value(self, type_class: Any = None, for_property: str | None = None) -> Any:
        """Return the content, or one property of it, converted to `type_class`; without a type, as JSON.

        A property that is absent or null converts to None. Partial content converts to a class's `PartiallyGenerated`.

        Raises:
            DecodingFailureError: the content does not have that type.
            InvalidGenerationSchemaError: values of that type cannot be generated.
        """
        value, num_open, generation_id, path = self._value, self._num_open, self.id, "$"
        if for_property is not None:
            if not isinstance(value, dict):
                raise DecodingFailureError(f"expected an object with '{for_property}', got {value!r}", self.to_json())
            if value.get(for_property) is None:
                return None
            num_open = max(num_open - 1, 0) if for_property == next(reversed(value)) else 0
            value, generation_id = value[for_property], generation_id.child(for_property)
            path = f"$.{for_property}"
        if type_class is None:
            return value
        with self._raw_content_in_errors():
            if isinstance(type_class, type) and PARTIAL_OF in vars(type_class):
                return value_type(vars(type_class)[PARTIAL_OF]).decode_partial(value, num_open, generation_id, path)
            return value_type(type_class).decode(value, path)

    def partial_value(self, type_class: Any) -> Any:
        """Return a snapshot of a `type_class`: classes as `PartiallyGenerated`, None where nothing is determined yet.

        Raises:
            DecodingFailureError: the content is not a prefix of that type.
        """
        if self._value is None and self._num_open:  # nothing is determined yet
            return None
        with self._raw_content_in_errors():
            return value_type(type_class).decode_partial(self._value, self._num_open, self.id, "$")

    @contextlib.contextmanager
    def _raw_content_in_errors(self) -> Iterator[None]:
        try:
            yield
        except DecodingFailureError as error:
            error.raw_content = self.to_json()
            raise
        except RecursionError as error:
            raise DecodingFailureError("nested deeper than Python's recursion limit", self.to_json()) from error

    def __repr__(self) -> str:
        return f"GeneratedContent({self._value!r}{'' if self.is_complete else ', incomplete'})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GeneratedContent):
            return NotImplemented
        return (self._value, self._num_open) == (other._value, other._num_open)

    __hash__ = None  # type: ignore[assignment]


@runtime_checkable
class ConvertibleFromGeneratedContent(Protocol):
    """A class that generated content converts to, such as a generable class."""

    @classmethod
    def _from_generated_content(cls, content: GeneratedContent) -> Any: ...


@runtime_checkable
class ConvertibleToGeneratedContent(Protocol):
    """A value that converts to generated content, such as an instance of a generable class."""

    @property
    def generated_content(self) -> GeneratedContent: ...
