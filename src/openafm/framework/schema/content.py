"""Generated content: JSON on its way to a typed value, whole or still being written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol, TypeVar, overload, runtime_checkable

from openafm.framework.errors import DecodingFailureError
from openafm.framework.schema.annotations import PARTIAL_OF, value_type
from openafm.framework.schema.generation_id import GenerationID
from openafm.framework.schema.partial_json import PartialJson, PartialJsonError, Prefix, read_json
from openafm.tokenizer.schema_text import compact_json

T = TypeVar("T")


class GeneratedContent:
    """A JSON value that a model wrote, or part of one, and its identity.

    Args:
        content_dict: any JSON value; an empty object by default.
        id: the identity; a new one by default.

    Raises:
        TypeError: a value that is not serializable as JSON.
    """

    def __init__(self, content_dict: Any = None, id: GenerationID | None = None) -> None:
        self._value = {} if content_dict is None else content_dict
        self._num_open = 0
        self.id = id or GenerationID()
        compact_json(self._value)

    @classmethod
    def from_json(cls, json_str: str, id: GenerationID | None = None) -> GeneratedContent:
        """Read JSON text, which may end anywhere.

        Raises:
            DecodingFailureError: text that is not the beginning of JSON; `raw_content` holds it.
        """
        try:
            return cls.from_prefix(Prefix(value=read_json(json_str), num_open=0), id)
        except ValueError:  # not whole
            partial = PartialJson()
        try:
            partial.push(json_str)
            return cls.from_prefix(partial.prefix(), id)
        except PartialJsonError as error:
            raise DecodingFailureError(str(error), raw_content=json_str) from error

    @classmethod
    def from_prefix(cls, prefix: Prefix, id: GenerationID | None = None) -> GeneratedContent:
        """Content of which `prefix` is what is settled so far."""
        content = cls.__new__(cls)
        content._value, content._num_open, content.id = prefix.value, prefix.num_open, id or GenerationID()
        return content

    @classmethod
    def of(cls, value: Any, type_class: Any = None) -> GeneratedContent:
        """The content that a Python value is written as, of its own class or another type that can be generated.

        Raises:
            DecodingFailureError: the value is not of that type.
            InvalidGenerationSchemaError: values of that type cannot be generated.
        """
        encoded = value_type(type(value) if type_class is None else type_class).encode(value)
        return cls.from_prefix(Prefix(value=encoded, num_open=0))

    @property
    def is_complete(self) -> bool:
        """Whether the JSON was written to its end."""
        return self._num_open == 0

    def to_json(self) -> str:
        """Compact JSON; of incomplete content, what is settled, closed."""
        return compact_json(self._value)

    @overload
    def value(self, type_class: type[T], for_property: str | None = None) -> T: ...
    @overload
    def value(self, type_class: Any = None, for_property: str | None = None) -> Any: ...
    def value(self, type_class: Any = None, for_property: str | None = None) -> Any:
        """The content, or one property of it, as `type_class`: a type that can be generated, `list` or `dict`; else as JSON.

        A property that is not there, or null, is None. Incomplete content converts to a class's `PartiallyGenerated`.

        Raises:
            DecodingFailureError: the content is not of that type.
            InvalidGenerationSchemaError: values of that type cannot be generated.
        """
        value, num_open, identity, path = self._value, self._num_open, self.id, "$"
        if for_property is not None:
            if not isinstance(value, dict):
                raise DecodingFailureError(f"expected an object with '{for_property}', got {value!r}", self.to_json())
            if value.get(for_property) is None:
                return None
            num_open = max(num_open - 1, 0) if for_property == next(reversed(value)) else 0
            value, identity, path = value[for_property], identity.child(for_property), f"$.{for_property}"
        if type_class is None:
            return value
        with self._raw_content_in_errors():
            if isinstance(type_class, type) and PARTIAL_OF in vars(type_class):
                return value_type(vars(type_class)[PARTIAL_OF]).decode_partial(value, num_open, identity, path)
            return value_type(type_class).decode(value, path)

    def partial_value(self, type_class: Any) -> Any:
        """What a `type_class` looks like so far: classes as their `PartiallyGenerated`, None where nothing is to be seen.

        Raises:
            DecodingFailureError: the content is not the beginning of that type.
        """
        if self._value is None and self._num_open:  # nothing is written yet
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
            raise DecodingFailureError("nested deeper than Python can follow", self.to_json()) from error

    def __repr__(self) -> str:
        return f"GeneratedContent({self._value!r}{'' if self.is_complete else ', incomplete'})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GeneratedContent):
            return NotImplemented
        return (self._value, self._num_open) == (other._value, other._num_open)

    __hash__ = None  # type: ignore[assignment]


@runtime_checkable
class ConvertibleFromGeneratedContent(Protocol):
    """A class that is made from generated content, as generable ones are."""

    @classmethod
    def _from_generated_content(cls, content: GeneratedContent) -> Any: ...


@runtime_checkable
class ConvertibleToGeneratedContent(Protocol):
    """A value that can be written as generated content, as those of generable classes."""

    @property
    def generated_content(self) -> GeneratedContent: ...
