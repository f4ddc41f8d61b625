"""Generation schemas: a type, or parts put together at run time, as JSON Schema in Apple's shape; checked before a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openafm.framework.errors import InvalidGenerationSchemaError
from openafm.framework.schema.annotations import value_type
from openafm.framework.schema.dynamic_schema import DuplicateTypeError, DynamicGenerationSchema, DynamicTypes
from openafm.framework.schema.records import PropertiesRecord
from openafm.framework.schema.structure import Property, Structure
from openafm.framework.schema.types.base import Definition, ValueType
from openafm.tokenizer.conversation import JsonSchema
from openafm.tokenizer.schema_text import reference_to


class GenerationSchema:
    """The schema of a type: a class, or anything else that a property may hold (`annotations.py`); or of dynamic parts.

    Args:
        type_class: the type; of dynamic parts, what `GeneratedContent.value` takes to check and convert a value.
        description: what the model is told about it; by default what the class says.
        properties: the properties, instead of those of the class; its values are then dictionaries.
        dynamic_nested_types: schemas of classes that the properties hold; nested classes are found without them too.
        root: a dynamic schema, instead of a type.
        dependencies: what `root` refers to by name, beside what it holds.

    Raises:
        InvalidGenerationSchemaError: a type that cannot be generated, two types of one name (`DuplicateTypeError`), a
            reference to nothing (`UndefinedReferencesError`), or a recursion without end.
        UnsupportedGuideError: a guide that does not fit its type, contradicts another or cannot be enforced.
    """

    def __init__(
        self,
        type_class: Any = None,
        description: str | None = None,
        properties: Sequence[Property] | None = None,
        dynamic_nested_types: Sequence[GenerationSchema] | None = None,
        *,
        root: DynamicGenerationSchema | None = None,
        dependencies: Sequence[DynamicGenerationSchema] = (),
    ) -> None:
        self.value_type: ValueType
        if root is not None:
            self.value_type = DynamicTypes(root, dependencies).root
        elif properties is not None:
            self.value_type = Structure(PropertiesRecord(type_class.__name__, description, properties))
        else:
            self.value_type = value_type(type_class)
        self.type_class = type_class if root is None else self.value_type
        self._root = self.value_type if isinstance(self.value_type, Definition) else None
        self.description = self._root.description if description is None and self._root else description
        self.dynamic_nested_types = list(dynamic_nested_types or ())
        self._definitions = _reachable(self.value_type)
        _require_unique_names(self._definitions)
        _require_an_end(self._definitions)

    @property
    def name(self) -> str:
        """What the schema describes: the class name, or the annotation."""
        return str(self.value_type)

    @property
    def properties(self) -> tuple[Property, ...]:
        """The properties of the class, in the order of generation; none for other types."""
        return self._root.properties if isinstance(self._root, Structure) else ()

    def to_dict(self) -> JsonSchema:
        """The schema as JSON Schema: `title`, `x-order`, `required` without optionals, nested classes under `$defs`."""
        nested = [definition for definition in self._definitions if definition is not self._root]
        schema = self._root.definition_schema(self._refer, self.description) if self._root else self._described_schema()
        definitions = {definition.name: definition.definition_schema(self._refer) for definition in nested}
        return schema | ({"$defs": definitions} if definitions else {})

    def _described_schema(self) -> JsonSchema:
        schema = self.value_type.json_schema(self._refer)
        return schema if self.description is None else schema | {"description": self.description}

    def _refer(self, definition: Definition) -> JsonSchema:
        return {"$ref": "#" if definition is self._root else reference_to(definition.name)}


def _reachable(root: ValueType) -> list[Definition]:
    """The definitions that a value is made of at any depth, in the order in which they are first met."""
    found: dict[Definition, None] = dict.fromkeys(root.definitions())
    waiting = list(found)
    while waiting:
        new = dict.fromkeys(part for part in waiting.pop(0).parts() if part not in found)
        found.update(new)
        waiting += new
    return list(found)


def _require_unique_names(definitions: list[Definition]) -> None:
    names = [definition.name for definition in definitions]
    for name in names:
        if names.count(name) > 1:
            raise DuplicateTypeError(f"two classes named {name} in one schema; rename one")


def _require_an_end(definitions: list[Definition]) -> None:
    """Refuse a class every value of which would be infinitely large, as one that requires itself."""
    endless = set(definitions)
    while ending := {definition for definition in endless if definition.ends(set(definitions) - endless)}:
        endless -= ending
    for definition in definitions:
        if definition in endless:
            raise InvalidGenerationSchemaError(
                f"every {definition.name} would hold another one without end;"
                " make a property on the way optional, or a list that may be empty"
            )
