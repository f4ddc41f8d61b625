"""Value types composed of others: lists and tuples, dictionaries, nullable values and unions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import Any

from openafm.framework.errors import DecodingFailureError, UnsupportedGuideError
from openafm.framework.schema.generation_id import GenerationID
from openafm.framework.schema.guides import GenerationGuide, GuideType
from openafm.framework.schema.types.base import Definition, ValueType, mismatch
from openafm.framework.schema.types.plain import Text
from openafm.tokenizer.conversation import JsonSchema


@dataclass(frozen=True, kw_only=True)
class Array(ValueType):
    """`list[T]` or `tuple[T, ...]`, with an optional range of lengths."""

    kinds = frozenset({"array"})
    item: ValueType
    min_items: int = 0
    max_items: int | None = None
    container: type[list[Any]] | type[tuple[Any, ...]] = list

    def __str__(self) -> str:
        sizes = "" if self.min_items == 0 and self.max_items is None else f" of {self.min_items} to {self._most} items"
        return f"{self.container.__name__}[{self.item}{', ...' * (self.container is tuple)}]{sizes}"

    def json_schema(self, refer: Callable[[Definition], JsonSchema]) -> JsonSchema:
        schema: JsonSchema = {"type": "array", "items": self.item.json_schema(refer)}
        if self.min_items:
            schema["minItems"] = self.min_items
        if self.max_items is not None:
            schema["maxItems"] = self.max_items
        return schema

    def decode(self, value: Any, path: str) -> list[Any] | tuple[Any, ...]:
        if not isinstance(value, list) or not self.min_items <= len(value) <= self._most:
            raise mismatch(self, value, path)
        return self.container(self.item.decode(item, f"{path}[{index}]") for index, item in enumerate(value))

    def decode_partial(
        self, value: Any, num_open: int, generation_id: GenerationID, path: str
    ) -> list[Any] | tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > self._most or (not num_open and len(value) < self.min_items):
            raise mismatch(self, value, path)
        items = []
        for index, item in enumerate(value):
            num_open_below = num_open - 1 if num_open and index == len(value) - 1 else 0
            decoded = self.item.decode_partial(item, num_open_below, generation_id.child(index), f"{path}[{index}]")
            if decoded is not None or not num_open_below:
                items.append(decoded)
        return self.container(items)

    def encode(self, value: Any) -> list[Any]:
        if not isinstance(value, self.container) or not self.min_items <= len(value) <= self._most:
            raise mismatch(self, value, "$")
        return [self.item.encode(item) for item in value]

    def with_guide(self, guide: GenerationGuide) -> ValueType:
        match guide.guide_type:
            case GuideType.count:
                return self._sized(guide.value, guide.value)
            case GuideType.minItems | GuideType.minLength:
                return self._sized(guide.value, self.max_items)
            case GuideType.maxItems | GuideType.maxLength:
                return self._sized(self.min_items, guide.value)
            case GuideType.element:
                return dataclasses.replace(self, item=self.item.with_guide(guide.value))
            case GuideType.anyOf if isinstance(self.item, Text):
                return dataclasses.replace(self, item=self.item.with_guide(guide))
        return super().with_guide(guide)

    def definitions(self) -> Iterable[Definition]:
        return self.item.definitions()

    def is_finite(self, finite: Set[Definition]) -> bool:
        return self.min_items == 0 or self.item.is_finite(finite)

    @property
    def _most(self) -> float:
        return math.inf if self.max_items is None else self.max_items

    def _sized(self, low: int, high: int | None) -> Array:
        low = max(low, self.min_items)
        high = high if self.max_items is None or high is None else min(high, self.max_items)
        if high is not None and low > high:
            raise UnsupportedGuideError(f"the guides leave no list: at least {low} and at most {high} items")
        return dataclasses.replace(self, min_items=low, max_items=high)


@dataclass(frozen=True, kw_only=True)
class Mapping(ValueType):
    """`dict[str, T]`. The model chooses the names."""

    kinds = frozenset({"object"})
    value: ValueType
    min_items: int = 0
    max_items: int | None = None

    def __str__(self) -> str:
        sizes = "" if self.min_items == 0 and self.max_items is None else f" of {self.min_items} to {self._most} items"
        return f"dict[str, {self.value}]{sizes}"

    def json_schema(self, refer: Callable[[Definition], JsonSchema]) -> JsonSchema:
        schema: JsonSchema = {"type": "object", "additionalProperties": self.value.json_schema(refer)}
        if self.min_items:
            schema["minProperties"] = self.min_items
        if self.max_items is not None:
            schema["maxProperties"] = self.max_items
        return schema

    def decode(self, value: Any, path: str) -> dict[str, Any]:
        self._require_size(value, path)
        return {name: self.value.decode(below, f"{path}.{name}") for name, below in value.items()}

    def decode_partial(self, value: Any, num_open: int, generation_id: GenerationID, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise mismatch(self, value, path)
        last = next(reversed(value), None)
        values = {}
        for name, below in value.items():
            num_open_below = num_open - 1 if num_open and name == last else 0
            decoded = self.value.decode_partial(below, num_open_below, generation_id.child(name), f"{path}.{name}")
            if decoded is not None or not num_open_below:
                values[name] = decoded
        return values

    def encode(self, value: Any) -> dict[str, Any]:
        self._require_size(value, "$")
        if not all(isinstance(name, str) for name in value):
            raise mismatch(self, value, "$")
        return {name: self.value.encode(below) for name, below in value.items()}

    def with_guide(self, guide: GenerationGuide) -> ValueType:
        match guide.guide_type:
            case GuideType.minItems | GuideType.minLength if guide.value <= 1:  # the grammar cannot prevent a repeated name
                return self._sized(guide.value, self.max_items)
            case GuideType.maxItems | GuideType.maxLength:
                return self._sized(self.min_items, guide.value)
            case GuideType.element:
                return dataclasses.replace(self, value=self.value.with_guide(guide.value))
        return super().with_guide(guide)

    def definitions(self) -> Iterable[Definition]:
        return self.value.definitions()

    def is_finite(self, finite: Set[Definition]) -> bool:
        return self.min_items == 0 or self.value.is_finite(finite)

    @property
    def _most(self) -> float:
        return math.inf if self.max_items is None else self.max_items

    def _require_size(self, value: Any, path: str) -> None:
        if not isinstance(value, dict) or not self.min_items <= len(value) <= self._most:
            raise mismatch(self, value, path)

    def _sized(self, low: int, high: int | None) -> Mapping:
        low = max(low, self.min_items)
        high = high if self.max_items is None or high is None else min(high, self.max_items)
        if high is not None and low > high:
            raise UnsupportedGuideError(f"the guides leave no dict: at least {low} and at most {high} items")
        return dataclasses.replace(self, min_items=low, max_items=high)


@dataclass(frozen=True, kw_only=True)
class Nullable(ValueType):
    """`T | None`. As a property of a structure it is omitted instead of null."""

    value: ValueType

    @property
    def kinds(self) -> frozenset[str]:  # type: ignore[override]
        return self.value.kinds | {"null"}

    def __str__(self) -> str:
        return f"{self.value} | None"

    def json_schema(self, refer: Callable[[Definition], JsonSchema]) -> JsonSchema:
        schema = self.value.json_schema(refer)
        null: JsonSchema = {"type": "null"}
        return {"anyOf": [*schema["anyOf"], null]} if schema.keys() == {"anyOf"} else {"anyOf": [schema, null]}

    def decode(self, value: Any, path: str) -> Any:
        return None if value is None else self.value.decode(value, path)

    def decode_partial(self, value: Any, num_open: int, generation_id: GenerationID, path: str) -> Any:
        return None if value is None else self.value.decode_partial(value, num_open, generation_id, path)

    def encode(self, value: Any) -> Any:
        return None if value is None else self.value.encode(value)

    def with_guide(self, guide: GenerationGuide) -> ValueType:
        return Nullable(value=self.value.with_guide(guide))

    def definitions(self) -> Iterable[Definition]:
        return self.value.definitions()


@dataclass(frozen=True, kw_only=True)
class Tagged(ValueType):
    """A structure as a member of a union: an object with one property, named after the class.

    `Book | Film` is `{"Book":{...}}` or `{"Film":{...}}`. The model chooses the class first, the tag cannot clash with a
    property, and the schema of the class is the same inside and outside of unions.
    """

    kinds = frozenset({"object"})
    structure: Definition

    def __str__(self) -> str:
        return str(self.structure)

    def json_schema(self, refer: Callable[[Definition], JsonSchema]) -> JsonSchema:
        tag = self.structure.name
        return {
            "type": "object",
            "properties": {tag: refer(self.structure)},
            "required": [tag],
            "additionalProperties": False,
            "x-order": [tag],
        }

    def decode(self, value: Any, path: str) -> Any:
        tag = self.structure.name
        if not isinstance(value, dict) or value.keys() != {tag}:
            raise mismatch(self, value, path)
        return self.structure.decode(value[tag], f"{path}.{tag}")

    def decode_partial(self, value: Any, num_open: int, generation_id: GenerationID, path: str) -> Any:
        if value == {}:
            return None
        tag = self.structure.name
        if not isinstance(value, dict) or value.keys() != {tag}:
            raise mismatch(self, value, path)
        return self.structure.decode_partial(value[tag], max(num_open - 1, 0), generation_id.child(tag), f"{path}.{tag}")

    def encode(self, value: Any) -> Any:
        return {self.structure.name: self.structure.encode(value)}

    def definitions(self) -> Iterable[Definition]:
        return (self.structure,)

    def is_finite(self, finite: Set[Definition]) -> bool:
        return self.structure.is_finite(finite)


@dataclass(frozen=True, kw_only=True)
class OneOf(ValueType):
    """A union. The first member that accepts a value decodes it."""

    members: tuple[ValueType, ...]

    @property
    def kinds(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset[str]().union(*(member.kinds for member in self.members))

    def __str__(self) -> str:
        return " | ".join(map(str, self.members))

    def json_schema(self, refer: Callable[[Definition], JsonSchema]) -> JsonSchema:
        return {"anyOf": [member.json_schema(refer) for member in self.members]}

    def decode(self, value: Any, path: str) -> Any:
        return self._first_fit(value, path, lambda member: member.decode(value, path))

    def decode_partial(self, value: Any, num_open: int, generation_id: GenerationID, path: str) -> Any:
        if num_open and isinstance(value, str) and sum("string" in member.kinds for member in self.members) > 1:
            return None  # the complete string decides between the members
        return self._first_fit(value, path, lambda member: member.decode_partial(value, num_open, generation_id, path))

    def encode(self, value: Any) -> Any:
        return self._first_fit(value, "$", lambda member: member.encode(value))

    def definitions(self) -> Iterable[Definition]:
        for member in self.members:
            yield from member.definitions()

    def is_finite(self, finite: Set[Definition]) -> bool:
        return any(member.is_finite(finite) for member in self.members)

    def _first_fit(self, value: Any, path: str, read: Callable[[ValueType], Any]) -> Any:
        for member in self.members:
            try:
                return read(member)
            except DecodingFailureError:
                continue
        raise mismatch(self, value, path)
