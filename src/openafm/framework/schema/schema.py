"""Generation schemas: a type or a dynamic schema as JSON Schema in Apple's layout, checked before generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openafm.framework.errors import InvalidGenerationSchemaError
from openafm.framework.schema.annotations import structure_of, value_type
from openafm.framework.schema.dynamic_schema import DuplicateTypeError, DynamicGenerationSchema, DynamicTypes
from openafm.framework.schema.records import PropertiesRecord
from openafm.framework.schema.structure import SchemaProperty, Structure
from openafm.framework.schema.types.base import Definition, ValueType
from openafm.tokenizer.conversation import JsonSchema
from openafm.tokenizer.schema_text import reference_to


class GenerationSchema:
    """Hold the schema of a type (any annotation in `annotations.py`) or of a dynamic schema.

    Args:
        type_class: the type.
        description: shown to the model; by default the description of the class.
        properties: replace the properties of the class; values are then dictionaries.
        dynamic_nested_types: schemas of nested classes. Optional: nested classes are found without them.
        root: a dynamic schema, instead of a type.
        dependencies: named dynamic schemas that `root` refers to.

    Raises:
        InvalidGenerationSchemaError: a type cannot be generated, two types share a name (`DuplicateTypeError`), a
            reference is undefined (`UndefinedReferencesError`), or a class requires itself.
        UnsupportedGuideError: a guide does not fit its type, contradicts another or cannot be enforced.
    """

    def __init__(
        self,
        type_class: Any = None,
        description: str | None = None,
        properties: Sequence[SchemaProperty] | None = None,
        dynamic_nested_types: Sequence[GenerationSchema] | None = None,
        *,
        root: DynamicGenerationSchema | None = None,
        dependencies: Sequence[DynamicGenerationSchema] = (),
    ) -> None:
        self.value_type: ValueType
        if root is not None:
            self.value_type = DynamicTypes(root, dependencies).root
        elif properties is not None:
            self.value_type = structure_of(PropertiesRecord(type_class.__name__, description, properties))
        else:
            self.value_type = value_type(type_class)
        self.type_class = type_class if root is None else self.value_type
        self._root = self.value_type if isinstance(self.value_type, Definition) else None
        self.description = self._root.description if description is None and self._root else description
        self.dynamic_nested_types = list(dynamic_nested_types or ())
        self._definitions = _reachable(self.value_type)
        _require_unique_names(self._definitions)
        _require_finite_values(self._definitions)

    @property
    def name(self) -> str:
        """The name of the class, or the annotation."""
        return str(self.value_type)

    @property
    def properties(self) -> tuple[SchemaProperty, ...]:
        """The properties of the class, in the order of generation; empty for other types."""
        return self._root.properties if isinstance(self._root, Structure) else ()

    def to_dict(self) -> JsonSchema:
        """Return the JSON Schema: `title`, `x-order`, `required` without optionals, nested classes in `$defs`."""
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
    """Return the definitions that a type refers to at any depth, in the order of first reference."""
    found: dict[Definition, None] = dict.fromkeys(root.definitions())
    pending = list(found)
    while pending:
        new = dict.fromkeys(part for part in pending.pop(0).parts() if part not in found)
        found.update(new)
        pending += new
    return list(found)


def _require_unique_names(definitions: list[Definition]) -> None:
    names = [definition.name for definition in definitions]
    for name in names:
        if names.count(name) > 1:
            raise DuplicateTypeError(f"a schema has two classes named {name}; rename one")


def _require_finite_values(definitions: list[Definition]) -> None:
    """Raise for a class whose values are all infinite, such as a class that requires itself."""
    infinite = set(definitions)
    while finite := {each for each in infinite if each.is_body_finite(set(definitions) - infinite)}:
        infinite -= finite
    for definition in definitions:
        if definition in infinite:
            raise InvalidGenerationSchemaError(
                f"every {definition.name} contains another {definition.name}, so no value is finite;"
                " make a property in the cycle optional, or a list that may be empty"
            )
