"""Base classes of value types: the meaning of one annotation as JSON Schema, as JSON and as a Python value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Set
from typing import Any, ClassVar

from openafm.framework.errors import DecodingFailureError, UnsupportedGuideError
from openafm.framework.schema.generation_id import GenerationID
from openafm.framework.schema.guides import GenerationGuide
from openafm.tokenizer.conversation import JsonSchema


class ValueType(ABC):
    """One kind of value. Instances are immutable; a guide returns a narrower one."""

    kinds: ClassVar[frozenset[str]]  # the JSON types of its values

    @abstractmethod
    def __str__(self) -> str:
        """Return the type in Python notation, for messages."""

    @abstractmethod
    def json_schema(self, refer: Callable[[Definition], JsonSchema]) -> JsonSchema:
        """Return the JSON Schema of a value; `refer` returns the reference to a definition."""

    @abstractmethod
    def decode(self, value: Any, path: str) -> Any:
        """Return the Python value of a complete JSON value at `path`.

        Raises:
            DecodingFailureError: the JSON does not have this type.
        """

    def decode_partial(self, value: Any, num_open: int, generation_id: GenerationID, path: str) -> Any:
        """Return the Python value of incomplete JSON; None where nothing is determined yet.

        The outermost `num_open` values along the path to the end of the text are incomplete.
        """
        return None if num_open else self.decode(value, path)

    def encode(self, value: Any) -> Any:
        """Return the JSON of a Python value.

        Raises:
            DecodingFailureError: the value does not have this type.
        """
        return self.decode(value, "$")

    def with_guide(self, guide: GenerationGuide) -> ValueType:
        """Return this type narrowed by a guide.

        Raises:
            UnsupportedGuideError: the guide does not fit the type, or leaves no value.
        """
        raise UnsupportedGuideError(f"the guide '{guide.guide_type.name}' does not fit values of type {self}")

    def definitions(self) -> Iterable[Definition]:
        """Return the definitions that the type refers to directly."""
        return ()

    def is_finite(self, finite: Set[Definition]) -> bool:
        """Check whether some value has finite length, given the definitions that are known to."""
        return True


class Definition(ValueType):
    """A named type, stored once in a schema and referred to: a structure or a named choice. Compared by identity."""

    name: str
    description: str | None

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def definition_schema(self, refer: Callable[[Definition], JsonSchema], description: str | None = None) -> JsonSchema:
        """Return the schema that references lead to; `description` replaces the definition's own."""

    @abstractmethod
    def parts(self) -> Iterable[Definition]:
        """Return the definitions that its schema refers to directly."""

    @abstractmethod
    def is_body_finite(self, finite: Set[Definition]) -> bool:
        """Check whether its schema has a value of finite length, given the definitions that are known to."""

    def json_schema(self, refer: Callable[[Definition], JsonSchema]) -> JsonSchema:
        return refer(self)

    def definitions(self) -> Iterable[Definition]:
        return (self,)

    def is_finite(self, finite: Set[Definition]) -> bool:
        return self in finite


def mismatch(expected: ValueType, value: Any, path: str) -> DecodingFailureError:
    """Return the error for JSON of another type."""
    return DecodingFailureError(f"{path}: expected {expected}, got {value!r}")
