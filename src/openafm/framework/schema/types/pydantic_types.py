"""What of pydantic stands in annotations: classes, constraints, descriptions. Pydantic is never imported here.

Something can only be pydantic's where pydantic has been imported, so its classes are looked up among the imported modules.
"""

from __future__ import annotations

import sys
from decimal import Decimal
from typing import Any, cast

from openafm.framework.errors import UnsupportedGuideError
from openafm.framework.schema.guides import GenerationGuide, GuideType

# Attributes of the constraints that pydantic keeps (of `annotated_types`, and its own), and the guides they mean.
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


def is_model(annotation: Any) -> bool:
    """Whether this is a class of pydantic's models."""
    base = _pydantic("main", "BaseModel")
    return base is not None and isinstance(annotation, type) and issubclass(annotation, base)


def is_url(annotation: Any) -> bool:
    """Whether this is a class of pydantic's for addresses of the web."""
    known = [_pydantic("networks", name) for name in ("AnyUrl", "AnyHttpUrl", "HttpUrl")]
    return annotation is not None and annotation in known


def constraint_guides(metadata: Any) -> list[GenerationGuide]:
    """The guides that a piece of metadata inside `Annotated` is or means; none where it says nothing about values.

    Raises:
        UnsupportedGuideError: a constraint that cannot be enforced while decoding.
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


def field_description(metadata: Any) -> str | None:
    """The description in a pydantic field; None where it has none, or is something else."""
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
    """The pattern of the whole string, of one that may match anywhere in it."""
    before = "" if pattern.startswith(("^", r"\A")) else _ANYTHING
    after = "" if pattern.endswith(("$", r"\z", r"\Z")) and not pattern.endswith(r"\$") else _ANYTHING
    return f"{before}(?:{pattern}){after}" if before or after else pattern
