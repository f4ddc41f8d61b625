"""Value types of text, enumerations, booleans and arbitrary JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from openafm.framework.errors import UnsupportedGuideError
from openafm.framework.schema.generation_id import GenerationID
from openafm.framework.schema.guides import GenerationGuide, GuideType
from openafm.framework.schema.partial_json import read_json
from openafm.framework.schema.patterns import common_pattern, matches
from openafm.framework.schema.types.base import Definition, ValueType, mismatch
from openafm.tokenizer.conversation import JsonSchema
from openafm.tokenizer.schema_text import compact_json


@dataclass(frozen=True, kw_only=True)
class Text(ValueType):
    """`str`. Lengths count characters."""

    kinds = frozenset({"string"})
    regex: str | None = None
    min_length: int = 0
    max_length: int | None = None

    def __str__(self) -> str:
        pattern = "" if self.regex is None else f" matching {self.regex!r}"
        is_any_length = self.min_length == 0 and self.max_length is None
        most = "any" if self.max_length is None else self.max_length
        return f"str{pattern}" + ("" if is_any_length else f" of {self.min_length} to {most} characters")

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

    def decode_partial(self, value: Any, num_open: int, generation_id: GenerationID, path: str) -> str:
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
        """Check whether the guides allow this text."""
        if len(text) < self.min_length or (self.max_length is not None and len(text) > self.max_length):
            return False
        return self.regex is None or matches(self.regex, text)

    def _sized(self, low: int, high: int | None) -> Text:
        if high is not None and low > high:
            raise UnsupportedGuideError(f"the guides leave no str: at least {low} and at most {high} characters")
        return dataclasses.replace(self, min_length=low, max_length=high)


@dataclass(frozen=True, kw_only=True)
class Choices(ValueType):
    """`Literal`, `Enum`, or text narrowed by `anyOf` or `constant`: pairs of JSON value and Python value."""

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
        """Return this type. Raise if `guide` left no choice."""
        if not self.choices:
            raise UnsupportedGuideError(f"the guide '{guide.guide_type.name}' leaves no value")
        for value, _ in self.choices:
            if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
                raise UnsupportedGuideError(f"{value!r} contains an unpaired surrogate; remove it")
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
    """`Any`: any JSON value."""

    kinds = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})

    def __str__(self) -> str:
        return "Any"

    def json_schema(self, refer: Callable[[Definition], JsonSchema]) -> JsonSchema:
        return {}

    def decode(self, value: Any, path: str) -> Any:
        return value

    def decode_partial(self, value: Any, num_open: int, generation_id: GenerationID, path: str) -> Any:
        return value

    def encode(self, value: Any) -> Any:
        try:
            return read_json(compact_json(value))
        except (TypeError, ValueError):
            raise mismatch(self, value, "$") from None


def _json_type(value: Any) -> str:
    return {str: "string", bool: "boolean", int: "integer", type(None): "null"}[type(value)]
