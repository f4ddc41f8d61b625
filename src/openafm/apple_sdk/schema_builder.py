"""Build schemas for the C interface: properties and guides are added one by one and checked when the schema is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from openafm.framework.errors import UnsupportedGuideError
from openafm.framework.schema.dynamic_schema import DynamicGenerationSchema, DynamicProperty
from openafm.framework.schema.guides import GenerationGuide, GuideType
from openafm.framework.schema.schema import GenerationSchema

_SCALARS = {"string": str, "integer": int, "number": float, "boolean": bool}
_SCALARS |= {"int": int, "float": float, "double": float, "bool": bool, "str": str}
_ARRAYS = (("array<", ">"), ("list[", "]"))
_NONE = " | None"


@dataclass(eq=False)
class PropertyBuilder:
    """Collect a property. `type_name` is Apple's, such as `array<Cat>`, or Python's, such as `list[int] | None`."""

    name: str
    description: str | None
    type_name: str
    is_optional: bool
    guides: list[Callable[[], GenerationGuide]] = field(default_factory=list)

    def add_guide(self, guide: Callable[[], GenerationGuide], wrapped: bool) -> None:
        """Add a guide for the property, or with `wrapped` for its items. `build` reports invalid guides."""
        self.guides.append((lambda: GenerationGuide.element(guide())) if wrapped else guide)

    def build(self) -> DynamicProperty:
        """Return the property.

        Raises:
            UnsupportedGuideError: a guide does not fit the type, or permits no value.
        """
        try:
            schema = _schema(self.type_name.removesuffix(_NONE), [guide() for guide in self.guides])
        except (UnsupportedGuideError, ValueError) as error:
            raise UnsupportedGuideError(f"the property '{self.name}': {error}") from error
        is_optional = self.is_optional or self.type_name.endswith(_NONE)
        return DynamicProperty(self.name, schema, self.description, is_optional)


@dataclass(eq=False)
class SchemaBuilder:
    """Collect an object schema and the schemas that its properties reference."""

    name: str
    description: str | None
    properties: list[PropertyBuilder] = field(default_factory=list)
    references: list[SchemaBuilder] = field(default_factory=list)

    def build(self) -> GenerationSchema:
        """Return the schema.

        Raises:
            UnsupportedGuideError: a guide does not fit its type, or permits no value.
            InvalidGenerationSchemaError: a referenced type is missing, or has no finite value.
        """
        referenced: dict[str, SchemaBuilder] = {}
        waiting = list(self.references)
        while waiting:
            builder = waiting.pop(0)
            if builder.name != self.name and builder.name not in referenced:
                referenced[builder.name] = builder
                waiting += builder.references
        return GenerationSchema(root=self._object(), dependencies=[each._object() for each in referenced.values()])

    def _object(self) -> DynamicGenerationSchema:
        return DynamicGenerationSchema.object(self.name, self.description, [prop.build() for prop in self.properties])


def _schema(type_name: str, guides: Sequence[GenerationGuide]) -> DynamicGenerationSchema:
    item = _item_of(type_name)
    if (python_type := _python_type(type_name)) is not None:
        # The SDK attaches the choices of list items to the list.
        is_list = item is not None
        fitting = [GenerationGuide.element(g) if is_list and g.guide_type is GuideType.anyOf else g for g in guides]
        return DynamicGenerationSchema.of(python_type, fitting)
    if item is None:
        _require_kinds(type_name, guides, set())
        # Python qualifies the class name with its module.
        return DynamicGenerationSchema.reference_to(type_name if type_name.isidentifier() else type_name.rsplit(".", 1)[-1])
    _require_kinds(type_name, guides, {GuideType.count, GuideType.minItems, GuideType.maxItems})
    least = [guide.value for guide in guides if guide.guide_type is not GuideType.maxItems]
    most = [guide.value for guide in guides if guide.guide_type is not GuideType.minItems]
    return DynamicGenerationSchema.array_of(_schema(item, ()), max(least, default=None), min(most, default=None))


def _python_type(type_name: str) -> Any:
    """Return the Python type of a name; None if it references another object."""
    item = _item_of(type_name)
    if item is None:
        return _SCALARS.get(type_name)
    inner = _python_type(item)
    return None if inner is None else list[inner]  # type: ignore[valid-type]  # a type built at run time


def _item_of(type_name: str) -> str | None:
    for opening, closing in _ARRAYS:
        if type_name.startswith(opening) and type_name.endswith(closing):
            return type_name[len(opening) : -len(closing)].removesuffix(_NONE)
    return None


def _require_kinds(type_name: str, guides: Sequence[GenerationGuide], kinds: set[GuideType]) -> None:
    for guide in guides:
        if guide.guide_type not in kinds:
            raise UnsupportedGuideError(f"the guide '{guide.guide_type.name}' does not fit values of type {type_name}")
