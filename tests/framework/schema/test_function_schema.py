"""Function schemas: properties of parameters, and typed arguments."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

import openafm as fm
from openafm.framework.schema.function_schema import FunctionSchema


@dataclass
class Place:
    city: str
    country: str = "DE"


def weather(
    place: Place,
    day: datetime.date,
    unit: Literal["C", "F"] = "C",
    *,
    hours: Annotated[list[int], fm.GenerationGuide.element(fm.GenerationGuide.range((0, 23)))],
    note: Annotated[str, "What else to say"] | None = None,
) -> str:
    """Tell the weather.

    Args:
        place: where,
            exactly
        day (date): which day
        unit: degrees

    Returns:
        text: of the weather.
    """
    return f"{place} {day} {unit} {hours} {note}"


class Station:
    def measure(self, sensor: int, precise: bool = False) -> str:
        """Measure.

        :param sensor: its number
        :param bool precise: or fast
        """
        return f"{sensor} {precise}"

    async def later(self, sensor: int) -> str:
        return str(sensor)


def test_every_parameter_is_a_typed_property() -> None:
    schema = FunctionSchema(weather).schema
    assert isinstance(schema, fm.GenerationSchema)
    as_dict = schema.to_dict()
    assert as_dict["title"] == "weather"
    assert as_dict["required"] == ["place", "day", "hours"]
    assert as_dict["x-order"] == ["place", "day", "unit", "hours", "note"]
    assert as_dict["properties"]["place"] == {"$ref": "#/$defs/Place", "description": "where, exactly"}
    assert as_dict["properties"]["day"] == {"type": "string", "format": "date", "description": "which day"}
    assert as_dict["properties"]["unit"] == {
        "type": "string",
        "enum": ["C", "F"],
        "description": "degrees",
        "default": "C",
    }
    assert as_dict["properties"]["hours"] == {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 23}}
    assert as_dict["$defs"]["Place"]["required"] == ["city"]
    assert "description" not in as_dict


def test_arguments_are_typed_and_omitted_ones_absent() -> None:
    content = fm.GeneratedContent({"place": {"city": "Ulm"}, "day": "2024-02-29", "hours": [1, 2]})
    arguments = FunctionSchema(weather).call_arguments(content)
    assert arguments == {"place": Place("Ulm"), "day": datetime.date(2024, 2, 29), "hours": [1, 2]}
    assert weather(**arguments) == f"{Place('Ulm')} 2024-02-29 C [1, 2] None"
    with pytest.raises(fm.DecodingFailureError, match=r"\$\.hours"):
        FunctionSchema(weather).call_arguments(fm.GeneratedContent({"place": {"city": ""}, "day": "2024-02-29", "hours": 1}))


def test_methods_and_async_functions() -> None:
    measure = FunctionSchema(Station().measure)
    properties = measure.schema.to_dict()["properties"]
    assert {name: prop["description"] for name, prop in properties.items()} == {"sensor": "its number", "precise": "or fast"}
    assert measure.call_arguments(fm.GeneratedContent({"sensor": 3})) == {"sensor": 3}
    assert FunctionSchema(Station().later).schema.to_dict()["required"] == ["sensor"]


def test_a_function_without_parameters() -> None:
    def now() -> str:
        return "now"

    schema = FunctionSchema(now)
    assert schema.schema.to_dict()["properties"] == {}
    assert schema.call_arguments(fm.GeneratedContent({})) == {}


def test_annotations_may_name_local_classes() -> None:
    @dataclass
    class Local:
        n: int

    def use(local: Local, other: Local | None) -> None: ...

    with pytest.raises(fm.InvalidGenerationSchemaError, match="type hints of use"):
        FunctionSchema(use)
    schema = FunctionSchema(use, locals())
    assert schema.call_arguments(fm.GeneratedContent({"local": {"n": 1}})) == {"local": Local(1), "other": None}


def variadic(*numbers: int) -> None: ...
def keywords(**numbers: int) -> None: ...
def untyped(number) -> None: ...  # type: ignore[no-untyped-def]
def positional(number: int, /) -> None: ...
def binary(data: bytes) -> None: ...
def wrong_default(number: int = "three") -> None: ...  # type: ignore[assignment]
def guided(number: int = fm.guide(minimum=1)) -> None: ...


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (variadic, "'\\*numbers: 'int''|numbers"),
        (keywords, "numbers"),
        (untyped, "'number' of untyped has no type"),
        (positional, "passed by name"),
        (binary, "binary.data: invalid type bytes"),
        (wrong_default, "default"),
        (guided, "Annotated"),
    ],
)
def test_unsupported_parameters_raise(function: Any, text: str) -> None:
    with pytest.raises(fm.InvalidGenerationSchemaError, match=text):
        FunctionSchema(function)
