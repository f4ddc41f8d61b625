"""Schema text: the form in which models read a JSON Schema, with a fraction of its tokens and the layout of the answer.

An object is written like the JSON it describes, with types instead of values:

    CalendarEvent{"title":string,"date"?:date(Day it starts),"guests":[string]<1..9>,"kind":"work"|"private"}

| text | meaning |
|---|---|
| `"date"?:date` | optional property; a string of format `date` |
| `string/[A-Z]+/` | pattern |
| `integer<1..7>` `string<..20>` `[string]<3>` | smallest and largest value, length or count; one number: exactly that |
| `"a"\\|"b"`, `string\\|null` | one of (`enum`, `const`, `anyOf`, `oneOf`, several types) |
| `A&B` | all of |
| `{"a":string,*:integer,/^x-/:any}` | further properties, properties that match a pattern |
| `[string,integer,*any]` | items by position, then further items |
| `Event{...}` `(text)` `=5` | title, description, default |
| `#Person`, a line `#Person={...}` | reference and its definition; `#` is the whole schema |
| `&{"multipleOf":5}` | any other keyword, as JSON |

Properties are in the order of `x-order`, which is the order of generation. A definition that is used once is inlined.
Annotations that do not constrain the value (`$schema`, `examples`, ...) are left out. The format is frozen: models are
trained on it, and golden files hold it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

from openafm.core.errors import UsageError
from openafm.tokenizer.conversation import JsonSchema
from openafm.tokenizer.schema_keywords import explained

_TYPES = ("string", "integer", "number", "boolean", "object", "array", "null")
_OBJECT_KEYS = {"properties", "required", "additionalProperties", "patternProperties"}
_ARRAY_KEYS = {"items", "prefixItems"}
_RANGES = {
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}
# The type that a keyword implies where `type` is absent.
_IMPLIED_TYPES = (
    ("object", _OBJECT_KEYS | {"minProperties", "maxProperties"}),
    ("array", _ARRAY_KEYS | {"minItems", "maxItems"}),
    ("string", {"pattern", "format", "minLength", "maxLength"}),
    ("number", {"minimum", "maximum"}),
)
_COMBINATIONS = {"anyOf": "|", "oneOf": "|", "allOf": "&"}
_TYPE_KEYWORDS = {"type", "const", "enum", "$ref", *_COMBINATIONS}
_ANNOTATIONS = {"$schema", "$id", "$comment", "$anchor", "examples", "deprecated", "readOnly", "writeOnly"}
_WRITTEN_ELSEWHERE = {"title", "description", "default", "nullable", "$defs", "definitions"}


class SchemaTextError(UsageError):
    """A schema is malformed, or a reference in it cannot be resolved."""


def compact_json(value: Any) -> str:
    """Return JSON without white space, the form that models read and write: `{"a":1,"b":[2]}`.

    Non-ASCII characters are not escaped, except halves of surrogate pairs, which cannot be encoded.

    Raises:
        ValueError: the value contains NaN or an infinity.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def reference_to(name: str) -> str:
    """Return the `$ref` of a definition: a JSON pointer as a URI fragment, escaped as needed."""
    return "#/$defs/" + quote(name.replace("~", "~0").replace("/", "~1"), safe="~")


def schema_text(schema: JsonSchema) -> str:
    """Return the text of a JSON Schema (format: top of this file).

    Raises:
        SchemaTextError: part of it is not a schema, or a `$ref` cannot be resolved inside it.
    """
    try:
        return _SchemaTextWriter(schema).text()
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise SchemaTextError(f"not a JSON Schema ({explained(schema, error)}): {schema!r:.300}") from error


def ordered_properties(schema: Mapping[str, Any]) -> list[str]:
    """Return the names of an object schema's properties in the order of generation: `x-order`, then as declared."""
    properties = schema.get("properties", {})
    order = [name for name in schema.get("x-order", ()) if name in properties]
    return list(dict.fromkeys([*order, *properties]))


class _SchemaTextWriter:
    """Write one root schema. Definitions that cannot be inlined are collected in `_named`."""

    def __init__(self, root: JsonSchema) -> None:
        self._root = root
        self._uses = Counter(_references(root))
        self._inlined: set[str] = set()
        self._named: list[str] = []

    def text(self) -> str:
        lines = [self._schema(self._root)]
        for reference in self._named:  # grows while definitions refer to others
            name = _reference_name(reference)
            lines.append(f"{name}={self._schema(self._resolve(reference), key=name)}")
        return "\n".join(lines)

    def _schema(self, schema: Any, key: str = "") -> str:
        """Text of one schema; `key` is the name of its property."""
        if isinstance(schema, bool):
            return "any" if schema else "never"
        if not isinstance(schema, Mapping):
            raise SchemaTextError(f"expected a JSON Schema (an object, true or false), got {schema!r}")
        text, stated = self._value(schema)
        title = _title(schema, key)
        if text.startswith("{") and not schema.keys() & {"const", "enum", *_COMBINATIONS}:
            text, title = title + text, ""
        unstated = {name: value for name, value in schema.items() if name not in stated and not _is_annotation(name)}
        if unstated:
            text = _bracketed(text, "&") + "&" + compact_json(unstated)
        if schema.get("nullable") is True:
            text += "|null"
        if "default" in schema:
            text += "=" + compact_json(schema["default"])
        comment = ": ".join(filter(None, (title, " ".join(schema.get("description", "").split()))))
        return f"{text}({comment})" if comment else text

    def _value(self, schema: Mapping[str, Any]) -> tuple[str, set[str]]:
        """Text of the constraints on the value, and the keywords that it covers."""
        if "const" in schema:
            return compact_json(schema["const"]), {"const", "type"}
        if "enum" in schema:
            return "|".join(map(compact_json, schema["enum"])), {"enum", "type"}
        if "$ref" in schema:
            return self._reference(schema["$ref"]), {"$ref"}
        for keyword in _COMBINATIONS:
            if keyword in schema:
                return self._combination(schema, keyword)
        types = _types(schema)
        texts, stated = [], {"type"}
        for type_name in types:
            text, keywords = self._one_type(schema, type_name)
            texts.append(text)
            stated |= keywords
        return "|".join(texts) or "any", stated

    def _combination(self, schema: Mapping[str, Any], keyword: str) -> tuple[str, set[str]]:
        sign = _COMBINATIONS[keyword]
        inherited = {"type": schema["type"]} if "type" in schema else {}
        members = [
            self._schema(
                inherited | dict(member) if isinstance(member, Mapping) and not member.keys() & _TYPE_KEYWORDS else member
            )
            for member in schema[keyword]
        ]
        text = sign.join(_bracketed(member, sign) for member in members)
        if not schema.keys() & (_OBJECT_KEYS | _ARRAY_KEYS):
            return text, {keyword, "type"}
        own, stated = self._value({name: value for name, value in schema.items() if name != keyword})
        return f"{own}&{_bracketed(text, '&')}", stated | {keyword}

    def _one_type(self, schema: Mapping[str, Any], type_name: str) -> tuple[str, set[str]]:
        text, stated = type_name, set()
        if type_name == "object":
            text, stated = self._object(schema), set(_OBJECT_KEYS)
        elif type_name == "array":
            text, stated = self._array(schema), set(_ARRAY_KEYS)
        elif type_name == "string":
            text, stated = _string(schema), {"format", "pattern"}
        least, greatest = _RANGES.get(type_name, ("", ""))
        if least in schema or greatest in schema:
            text += _range(schema.get(least), schema.get(greatest))
        return text, stated | {least, greatest}

    def _object(self, schema: Mapping[str, Any]) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        entries = [
            f"{compact_json(name)}{'' if name in required else '?'}:{self._schema(properties[name], key=name)}"
            for name in ordered_properties(schema)
        ]
        entries += [f"{compact_json(name)}:any" for name in required if name not in properties]
        entries += [f"/{pattern}/:{self._schema(value)}" for pattern, value in schema.get("patternProperties", {}).items()]
        further = schema.get("additionalProperties", not entries)
        if further is not False:
            entries.append(f"*:{self._schema(further)}")
        return "{" + ",".join(entries) + "}"

    def _array(self, schema: Mapping[str, Any]) -> str:
        rest = schema.get("items", True)
        if "prefixItems" not in schema:
            return f"[{self._schema(rest)}]"
        items = [self._schema(item) for item in schema["prefixItems"]]
        if rest is not False:
            items.append(f"*{self._schema(rest)}")
        return f"[{','.join(items)}]"

    def _reference(self, reference: Any) -> str:
        target = self._resolve(reference)
        if reference == "#":
            return "#"
        if self._uses[reference] == 1 and reference not in self._inlined:
            self._inlined.add(reference)
            return self._schema(target)
        if reference not in self._named:
            self._named.append(reference)
        return _reference_name(reference)

    def _resolve(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise SchemaTextError(f"the reference {reference!r} points outside the schema; move its target to $defs")
        target: Any = self._root
        for step in reference.split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and step.isdecimal() and int(step) < len(target):
                target = target[int(step)]
            elif isinstance(target, Mapping) and step in target:
                target = target[step]
            else:
                raise SchemaTextError(f"the reference {reference!r} cannot be resolved: '{step}' does not exist")
        return target


def _references(schema: Any) -> Iterator[str]:
    """Every `$ref` below `schema`, including definitions."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _reference_name(reference: str) -> str:
    return "#" + unquote(re.sub(r"^#/((\$defs|definitions)/)?", "", reference))


def _title(schema: Mapping[str, Any], key: str) -> str:
    """The title, or nothing if it only repeats the name of the property, as in many generated schemas."""
    title = str(schema.get("title", ""))
    return "" if _letters(title) == _letters(key) else title


def _letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", text).casefold()


def _types(schema: Mapping[str, Any]) -> list[str]:
    declared = schema.get("type")
    if declared is None:
        return [name for name, keywords in _IMPLIED_TYPES if keywords & schema.keys()][:1]
    types = [declared] if isinstance(declared, str) else list(declared)
    for name in types:
        if name not in _TYPES:
            raise SchemaTextError(f"unknown type {name!r}; JSON Schema has {', '.join(_TYPES)}")
    return types


def _string(schema: Mapping[str, Any]) -> str:
    text = str(schema.get("format", "string"))
    if text in _TYPES and "format" in schema:
        text = f"string@{text}"
    return f"{text}/{schema['pattern']}/" if "pattern" in schema else text


def _range(least: Any, greatest: Any) -> str:
    if least == greatest:
        return f"<{compact_json(least)}>"
    ends = ["" if end is None else compact_json(end) for end in (least, greatest)]
    return f"<{'..'.join(ends)}>"


def _bracketed(text: str, sign: str) -> str:
    """`text` as an operand of `sign`: alternatives need brackets next to `&`."""
    return f"({text})" if sign == "&" and "|" in text else text


def _is_annotation(keyword: str) -> bool:
    return keyword in _ANNOTATIONS or keyword in _WRITTEN_ELSEWHERE or keyword.startswith("x-")
