"""Metadata inside `Annotated`: guides, descriptions, and pydantic's fields and constraints.

Pydantic is never imported here: its classes are looked up in `sys.modules`, which holds them whenever an annotation does.
"""

from __future__ import annotations

import sys
from decimal import Decimal
from typing import Annotated, Any, cast, get_origin

from openafm.framework.errors import UnsupportedGuideError
from openafm.framework.schema.guides import GenerationGuide, GuideType

# Attributes of constraints (of `annotated_types` and of pydantic) and the guides with that meaning.
_GUIDES = {
    "ge": GuideType.minimum,
    "gt": GuideType.exclusiveMinimum,
    "le": GuideType.maximum,
    "lt": GuideType.exclusiveMaximum,
    "min_length": GuideType.minLength,
    "max_length": GuideType.maxLength,
    "pattern": GuideType.regex,
}
_ANYTHING = r"(?:.|\n)*"
_UNENFORCED = ("multiple_of", "max_digits", "decimal_places")


def annotated_description(annotation: Any) -> str | None:
    """Return the text inside `Annotated`, which describes the value; None where there is no text."""
    if get_origin(annotation) is not Annotated:
        return None
    texts = [item if isinstance(item, str) else _field_description(item) for item in annotation.__metadata__]
    return next((text for text in texts if text is not None), None)


def is_model(annotation: Any) -> bool:
    """Check whether this is a pydantic model class."""
    base = _pydantic("main", "BaseModel")
    return base is not None and isinstance(annotation, type) and issubclass(annotation, base)


def is_url(annotation: Any) -> bool:
    """Check whether this is one of pydantic's classes of web addresses."""
    known = [_pydantic("networks", name) for name in ("AnyUrl", "AnyHttpUrl", "HttpUrl")]
    return annotation is not None and annotation in known


def constraint_guides(metadata: Any) -> list[GenerationGuide]:
    """Return the guides that one item of `Annotated` metadata means; none where it does not constrain values.

    Raises:
        UnsupportedGuideError: the constraint cannot be enforced while decoding.
    """
    if isinstance(metadata, GenerationGuide):
        return [metadata]
    if _is_field(metadata):
        return [guide for below in metadata.metadata for guide in constraint_guides(below)]
    for name in _UNENFORCED:
        if getattr(metadata, name, None) is not None:
            raise UnsupportedGuideError(f"the constraint '{name}' cannot be enforced while decoding")
    found = {name: getattr(metadata, name, None) for name in _GUIDES}
    return [_guide(name, value) for name, value in found.items() if value is not None]


def _field_description(metadata: Any) -> str | None:
    return cast("str | None", metadata.description) if _is_field(metadata) else None


def _is_field(metadata: Any) -> bool:
    field = _pydantic("fields", "FieldInfo")
    return field is not None and isinstance(metadata, field)


def _pydantic(module: str, name: str) -> type | None:
    found: type | None = getattr(sys.modules.get(f"pydantic.{module}"), name, None)
    return found


def _guide(name: str, value: Any) -> GenerationGuide:
    if name == "pattern":
        return GenerationGuide.regex(_whole_pattern(value if isinstance(value, str) else value.pattern))
    return GenerationGuide(_GUIDES[name], float(value) if isinstance(value, Decimal) else value)


def _whole_pattern(pattern: str) -> str:
    """Return a pattern for the whole string, given one that may match anywhere in it."""
    before = "" if pattern.startswith(("^", r"\A")) else _ANYTHING
    after = "" if pattern.endswith(("$", r"\z", r"\Z")) and not pattern.endswith(r"\$") else _ANYTHING
    return f"{before}(?:{pattern}){after}" if before or after else pattern
