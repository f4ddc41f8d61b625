"""Value types with a string format in JSON: dates, times, UUIDs and web addresses."""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from openafm.framework.schema.types.base import Definition, ValueType, mismatch
from openafm.runtime.decoding.schema_rewrite import FORMATS
from openafm.tokenizer.conversation import JsonSchema

_LOCAL_TIME = r"^(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?$"


class URL(str):
    """A `str` that is an `http` or `https` address with a host.

    Raises:
        ValueError: the text is not such an address.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> URL:
        parts = urlsplit(text)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{text!r} is not a web address; write it as https://host/path")
        return super().__new__(cls, text)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Return the validator that pydantic uses for fields of this type."""
        core_schema: Any = import_module("pydantic_core.core_schema")
        return core_schema.no_info_after_validator_function(cls, handler(str))


@dataclass(frozen=True, kw_only=True)
class Formatted(ValueType):
    """A Python type whose values are strings in JSON. `parse` raises `ValueError` for other strings."""

    kinds = frozenset({"string"})
    label: str
    python_type: type
    schema: JsonSchema
    parse: Callable[[str], Any]
    write: Callable[[Any], str] = str

    def __str__(self) -> str:
        return self.label

    def __hash__(self) -> int:
        return hash(self.label)

    def json_schema(self, refer: Callable[[Definition], JsonSchema]) -> JsonSchema:
        return dict(self.schema)

    def decode(self, value: Any, path: str) -> Any:
        if not isinstance(value, str):
            raise mismatch(self, value, path)
        try:
            return self.parse(value)
        except ValueError:
            raise mismatch(self, value, path) from None

    def encode(self, value: Any) -> str:
        if type(value) is not self.python_type:
            raise mismatch(self, value, "$")
        text = self.write(value)
        self.decode(text, "$")
        return text


def _parse_matching(pattern: str, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return `parse` restricted to `pattern`: Python's parsers accept more than JSON Schema's formats."""
    expression = re.compile(pattern)

    def parse_exactly(text: str) -> Any:
        if not expression.fullmatch(text):
            raise ValueError(f"{text!r} does not have the format")
        return parse(text)

    return parse_exactly


def url_type(cls: type) -> Formatted:
    """Return the value type of a class of web addresses that converts from and to `str`."""
    return Formatted(label=cls.__name__, python_type=cls, schema={"type": "string", "format": "uri"}, parse=cls)


DATE = Formatted(
    label="date",
    python_type=datetime.date,
    schema={"type": "string", "format": "date"},
    parse=_parse_matching(FORMATS["date"], datetime.date.fromisoformat),
    write=datetime.date.isoformat,
)
DATE_TIME = Formatted(
    label="datetime with a time zone",
    python_type=datetime.datetime,
    schema={"type": "string", "format": "date-time"},
    parse=_parse_matching(FORMATS["date-time"], datetime.datetime.fromisoformat),
    write=datetime.datetime.isoformat,
)
LOCAL_TIME = Formatted(
    label="time without a time zone",
    python_type=datetime.time,
    schema={"type": "string", "pattern": _LOCAL_TIME},
    parse=_parse_matching(_LOCAL_TIME, datetime.time.fromisoformat),
    write=datetime.time.isoformat,
)
IDENTIFIER = Formatted(
    label="UUID",
    python_type=uuid.UUID,
    schema={"type": "string", "format": "uuid"},
    parse=_parse_matching(FORMATS["uuid"], uuid.UUID),
)
ADDRESS = url_type(URL)
