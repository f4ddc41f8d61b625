"""Generation schemas: a type as JSON Schema in Apple's shape, checked before a token is generated."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from openafm.framework.annotations import value_type
from openafm.framework.errors import InvalidGenerationSchemaError
from openafm.framework.structure import Property, Structure
from openafm.framework.value_types import ValueType
from openafm.tokenizer.conversation import JsonSchema


class GenerationSchema:
    """The schema of a type: a generable class, or anything else that a property may hold (`annotations.py`).

    Raises:
        InvalidGenerationSchemaError: a type that cannot be generated, two classes of one name, or a recursion without end.
        UnsupportedGuideError: a guide that does not fit its type, contradicts another or cannot be enforced.
    """

    def __init__(self, type_class: Any, description: str | None = None) -> None:
        self.type_class = type_class
        self.value_type: ValueType = value_type(type_class)
        self.description = description if description is not None else getattr(self._root, "description", None)
        self._structures = _reachable(self.value_type)
        _require_unique_names(self._structures)
        _require_an_end(self._structures)

    @property
    def name(self) -> str:
        """What the schema describes: the class name, or the annotation."""
        return str(self.value_type)

    @property
    def properties(self) -> tuple[Property, ...]:
        """The properties of the class, in the order of generation; none for other types."""
        return () if self._root is None else self._root.properties

    def to_dict(self) -> JsonSchema:
        """The schema as JSON Schema: `title`, `x-order`, `required` without optionals, nested classes under `$defs`."""
        nested = [structure for structure in self._structures if structure is not self._root]
        schema = self._root.object_schema(self._refer, self.description) if self._root else self._described_schema()
        definitions = {structure.name: structure.object_schema(self._refer) for structure in nested}
        return schema | ({"$defs": definitions} if definitions else {})

    @cached_property
    def _root(self) -> Structure | None:
        return self.value_type if isinstance(self.value_type, Structure) else None

    def _described_schema(self) -> JsonSchema:
        schema = self.value_type.json_schema(self._refer)
        return schema if self.description is None else schema | {"description": self.description}

    def _refer(self, structure: Structure) -> JsonSchema:
        return {"$ref": "#" if structure is self._root else f"#/$defs/{structure.name}"}


def _reachable(root: ValueType) -> list[Structure]:
    """The structures that a value is made of at any depth, in the order in which they are first met."""
    found: dict[Structure, None] = dict.fromkeys(root.structures())
    waiting = list(found)
    while waiting:
        structure = waiting.pop(0)
        for prop in structure.properties:
            new = [nested for nested in prop.value_type.structures() if nested not in found]
            found.update(dict.fromkeys(new))
            waiting += dict.fromkeys(new)
    return list(found)


def _require_unique_names(structures: list[Structure]) -> None:
    names = [structure.name for structure in structures]
    for name in names:
        if names.count(name) > 1:
            raise InvalidGenerationSchemaError(f"two classes named {name} in one schema; rename one")


def _require_an_end(structures: list[Structure]) -> None:
    """Refuse a class every value of which would be infinitely large, as one that requires itself."""
    endless = set(structures)
    while True:
        finite = {structure for structure in structures if structure not in endless}
        ending = {
            structure
            for structure in endless
            if all(prop.value_type.is_finite(finite) for prop in structure.properties if prop.is_required)
        }
        if not ending:
            break
        endless -= ending
    for structure in structures:
        if structure in endless:
            raise InvalidGenerationSchemaError(
                f"every {structure.name} would hold another one without end;"
                " make a property on the way optional, or a list that may be empty"
            )
