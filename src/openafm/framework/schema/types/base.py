"""Value types: what one annotation means as JSON Schema, as JSON and as a Python value. Here the base and plain values."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import Any, ClassVar

from openafm.framework.errors import DecodingFailureError, UnsupportedGuideError
from openafm.framework.schema.generation_id import GenerationID
from openafm.framework.schema.guides import GenerationGuide, GuideType
from openafm.framework.schema.partial_json import read_json
from openafm.framework.schema.patterns import common_pattern, matches
from openafm.tokenizer.conversation import JsonSchema
from openafm.tokenizer.schema_text import compact_json


class ValueType(ABC):
    """One kind of value. Instances are immutable; a guide gives a narrower one."""

    kinds: ClassVar[frozenset[str]]  # JSON types that a value may have

    @abstractmethod
    def __str__(self) -> str:
        """The type as a Python programmer writes it, for messages."""

    @abstractmethod
    def json_schema(self, refer: Callable[[Definition], JsonSchema]) -> JsonSchema:
        """The JSON Schema of a value; `refer` gives the schema that stands for a definition."""

    @abstractmethod
    def decode(self, value: Any, path: str) -> Any:
        """The Python value of a complete JSON value found at `path`.

        Raises:
            DecodingFailureError: the JSON is not of this type.
        """

    def decode_partial(self, value: Any, num_open: int, identity: GenerationID, path: str) -> Any:
        """The Python value of JSON that is still being written, None where nothing can be shown yet.

        The outermost `num_open` values on the way to the end of the text are open: more of them may follow.
        """
        return None if num_open else self.decode(value, path)

    def encode(self, value: Any) -> Any:
        """The JSON of a Python value.

        Raises:
            DecodingFailureError: the value is not of this type.
        """
        return self.decode(value, "$")

    def with_guide(self, guide: GenerationGuide) -> ValueType:
        """This type narrowed by a guide.

        Raises:
            UnsupportedGuideError: the guide is for another type, or leaves no value.
        """
        raise UnsupportedGuideError(f"the guide '{guide.guide_type.name}' does not fit values of type {self}")

    def definitions(self) -> Iterable[Definition]:
        """The definitions that a value is made of directly."""
        return ()

    def is_finite(self, finite: Set[Definition]) -> bool:
        """Whether some value can be written to its end, given the definitions known to end."""
        return True


class Definition(ValueType):
    """A named type, which a schema holds once and refers to: a structure, or a named choice. Compared by identity."""

    name: str
    description: str | None

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def definition_schema(self, refer: Callable[[Definition], JsonSchema], description: str | None = None) -> JsonSchema:
        """The schema that references stand for; `description` in place of its own where one is given."""

    @abstractmethod
    def parts(self) -> Iterable[Definition]:
        """The definitions that its values are made of directly."""

    @abstractmethod
    def ends(self, finite: Set[Definition]) -> bool:
        """Whether some value can be written to its end, given the definitions known to end."""

    def json_schema(self, refer: Callable[[Definition], JsonSchema]) -> JsonSchema:
        return refer(self)

    def definitions(self) -> Iterable[Definition]:
        return (self,)

    def is_finite(self, finite: Set[Definition]) -> bool:
        return self in finite


@dataclass(frozen=True, kw_only=True)
class Text(ValueType):
    """`str`. Lengths are in characters."""

    kinds = frozenset({"string"})
    regex: str | None = None
    min_length: int = 0
    max_length: int | None = None

    def __str__(self) -> str:
        like = "" if self.regex is None else f" like {self.regex!r}"
        is_any_length = self.min_length == 0 and self.max_length is None
        most = "any" if self.max_length is None else self.max_length
        return f"str{like}" + ("" if is_any_length else f" of {self.min_length} to {most} characters")

    def json_schema(self, refer: Callable[[Definition], JsonSchema]) -> JsonSchema:
        schema: JsonSchema = {"type": "string"}
        if self.regex is not None:
            schema["pattern"] = common_pattern(self.regex)
        if self.min_length:
            schema["minLength"] = self.min_length
        if self.max_length is not None:
            schema["maxLength"] = self.max_length
        return schema

    def decode(self, value: Any, path: str) -> str:
        if isinstance(value, str) and self.allows(value):
            return value
        raise mismatch(self, value, path)

    def decode_partial(self, value: Any, num_open: int, identity: GenerationID, path: str) -> str:
        if num_open and isinstance(value, str):
            return value
        return self.decode(value, path)

    def with_guide(self, guide: GenerationGuide) -> ValueType:
        match guide.guide_type:
            case GuideType.regex if self.regex is None:
                common_pattern(guide.value)
                return dataclasses.replace(self, regex=guide.value)
            case GuideType.minLength:
                return self._sized(max(guide.value, self.min_length), self.max_length)
            case GuideType.maxLength:
                most = guide.value if self.max_length is None else min(guide.value, self.max_length)
                return self._sized(self.min_length, most)
            case GuideType.anyOf | GuideType.constant:
                texts = [guide.value] if guide.guide_type is GuideType.constant else guide.value
                fitting = [text for text in texts if self.allows(text)]
                return Choices(choices=tuple((text, text) for text in dict.fromkeys(fitting)), label="str").checked(guide)
        return super().with_guide(guide)

    def allows(self, text: str) -> bool:
        """Whether the guides allow this text."""
        if len(text) < self.min_length or (self.max_length is not None and len(text) > self.max_length):
            return False
        return self.regex is None or matches(self.regex, text)

    def _sized(self, low: int, high: int | None) -> Text:
        if high is not None and low > high:
            raise UnsupportedGuideError(
                f"the guides leave no str: it would be of at least {low} and at most {high} characters"
            )
        return dataclasses.replace(self, min_length=low, max_length=high)


@dataclass(frozen=True, kw_only=True)
class Choices(ValueType):
    """`Literal`, `Enum`, or text under `anyOf` or `constant`: pairs of JSON value and Python value."""

    choices: tuple[tuple[Any, Any], ...]
    label: str

    def __str__(self) -> str:
        return self.label

    @property
    def kinds(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset(_json_type(value) for value, _ in self.choices)

    def json_schema(self, refer: Callable[[Definition], JsonSchema]) -> JsonSchema:
        types = sorted(self.kinds)
        return {"type": types[0] if len(types) == 1 else types, "enum": [value for value, _ in self.choices]}

    def decode(self, value: Any, path: str) -> Any:
        for choice, member in self.choices:
            if type(choice) is type(value) and choice == value:
                return member
        raise mismatch(self, value, path)

    def encode(self, value: Any) -> Any:
        for choice, member in self.choices:
            if type(member) is type(value) and member == value:
                return choice
        raise mismatch(self, value, "$")

    def with_guide(self, guide: GenerationGuide) -> ValueType:
        match guide.guide_type:
            case GuideType.anyOf | GuideType.constant:
                wanted = [guide.value] if guide.guide_type is GuideType.constant else guide.value
                kept = tuple(choice for choice in self.choices if choice[0] in wanted)
                return dataclasses.replace(self, choices=kept).checked(guide)
            case GuideType.regex | GuideType.minLength | GuideType.maxLength if self.kinds == {"string"}:
                allowed = Text().with_guide(guide)
                kept = tuple(choice for choice in self.choices if isinstance(allowed, Text) and allowed.allows(choice[0]))
                return dataclasses.replace(self, choices=kept).checked(guide)
        return super().with_guide(guide)

    def checked(self, guide: GenerationGuide) -> Choices:
        """This type, or an error when `guide` left no choice."""
        if not self.choices:
            raise UnsupportedGuideError(f"the guide '{guide.guide_type.name}' leaves no value that the other guides allow")
        for value, _ in self.choices:
            if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
                raise UnsupportedGuideError(f"{value!r} holds half of a surrogate pair and cannot be written")
        return self


@dataclass(frozen=True, kw_only=True)
class Boolean(ValueType):
    """`bool`."""

    kinds = frozenset({"boolean"})

    def __str__(self) -> str:
        return "bool"

    def json_schema(self, refer: Callable[[Definition], JsonSchema]) -> JsonSchema:
        return {"type": "boolean"}

    def decode(self, value: Any, path: str) -> bool:
        if isinstance(value, bool):
            return value
        raise mismatch(self, value, path)


@dataclass(frozen=True, kw_only=True)
class AnyJson(ValueType):
    """`Any`: whatever JSON can say."""

    kinds = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})

    def __str__(self) -> str:
        return "Any"

    def json_schema(self, refer: Callable[[Definition], JsonSchema]) -> JsonSchema:
        return {}

    def decode(self, value: Any, path: str) -> Any:
        return value

    def decode_partial(self, value: Any, num_open: int, identity: GenerationID, path: str) -> Any:
        return value

    def encode(self, value: Any) -> Any:
        try:
            return read_json(compact_json(value))
        except (TypeError, ValueError):
            raise mismatch(self, value, "$") from None


def mismatch(expected: ValueType, value: Any, path: str) -> DecodingFailureError:
    """The error for JSON that is not of the expected type."""
    return DecodingFailureError(f"{path}: expected {expected}, got {value!r}")


def _json_type(value: Any) -> str:
    return {str: "string", bool: "boolean", int: "integer", type(None): "null"}[type(value)]
