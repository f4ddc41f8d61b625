"""Properties of random schemas, in the shape that generable classes have, and values for them that stay short."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openafm.data.synthetic.lexicons import Lexicon, lexicon
from openafm.data.synthetic.schema_words import Field, SchemaSlots, SchemaWords, schema_words
from openafm.tokenizer.conversation import JsonSchema

_BOUNDED_SHARE = 0.4
_DESCRIBED_SHARE = 0.3
_NUMBER_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_SPELT_SHARE = 0.1
_SMALL = (0, 100)


@dataclass(frozen=True, kw_only=True)
class Property:
    """A property as schemas have it and as people speak of it. `kind` is the vocabulary of its texts."""

    name: str
    label: str
    schema: JsonSchema
    is_required: bool
    phrase: str = ""
    kind: str = ""
    range: tuple[int, ...] = _SMALL


def styled(words: str, style: str) -> str:
    """Words as one name: snake, camel, pascal, kebab, spaced or joined."""
    parts = words.split()
    match style:
        case "camel":
            return parts[0] + "".join(part.capitalize() for part in parts[1:])
        case "pascal":
            return "".join(part.capitalize() for part in parts)
    return {"snake": "_", "kebab": "-", "spaced": " ", "joined": ""}[style].join(parts)


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def plural(label: str) -> str:
    """Good enough for names of lists."""
    if label.endswith(("s", "x", "ch", "sh")):
        return label + "es"
    return label[:-1] + "ies" if label.endswith("y") and label[-2] not in "aeo" else label + "s"


def make_property(rng: random.Random, field: Field, style: str, *, as_list: bool = False, bounds: bool = False) -> Property:
    """A property for `field`; with `bounds`, numbers and lists have limits now and then."""
    bounded = bounds and rng.random() < _BOUNDED_SHARE
    span = field.range or _SMALL
    schema: JsonSchema
    match field.kind:
        case "integer" | "number":
            schema = {"type": field.kind}
            if bounded:
                low = rng.randint(span[0], span[1])
                schema |= rng.choice(
                    ({"minimum": low}, {"maximum": low}, {"minimum": low, "maximum": low + rng.choice((1, 4, 10, 50))})
                )
        case "boolean":
            schema = {"type": "boolean"}
        case "choice":
            schema = {"type": "string", "enum": rng.sample(field.choices, rng.randint(2, len(field.choices)))}
        case _:
            schema = {"type": "string"}
    label = field.label
    if as_list:
        label = plural(label)
        least = rng.randint(0, 3)
        limits = ({"minItems": max(least, 1)}, {"maxItems": least + 2}, {"minItems": least + 1, "maxItems": least + 2})
        exact = {"minItems": least + 1, "maxItems": least + 1}
        schema = {"type": "array", "items": schema} | (rng.choice((*limits, exact)) if bounded else {})
    if field.descriptions and rng.random() < _DESCRIBED_SHARE:
        schema = schema | {"description": rng.choice(field.descriptions)}
    return Property(
        name=styled(label, style),
        label=label,
        schema=schema,
        is_required=not field.optional,
        phrase="" if as_list else field.phrase,
        kind=field.kind,
        range=span,
    )


def object_schema(title: str, properties: Sequence[Property], description: str = "") -> JsonSchema:
    """The schema of an object, as `GenerationSchema` writes it."""
    return {
        "title": title,
        **({"description": description} if description else {}),
        "type": "object",
        "properties": {prop.name: prop.schema for prop in properties},
        "required": [prop.name for prop in properties if prop.is_required],
        "additionalProperties": False,
        "x-order": [prop.name for prop in properties],
    }


def draw_text(rng: random.Random, words: Lexicon, kind: str) -> str:
    """One to a few words of a vocabulary."""
    return SchemaSlots(rng, words).choose(schema_words(words.split).vocabulary(kind))


def draw_value(rng: random.Random, words: Lexicon, prop: Property, schema: JsonSchema | None = None) -> Any:
    """A value that follows the property's schema."""
    schema = prop.schema if schema is None else schema
    if "enum" in schema:
        return rng.choice(schema["enum"])
    match schema["type"]:
        case "boolean":
            return rng.random() < 0.5
        case "integer":
            return rng.randint(*_limits(prop, schema))
        case "number":
            low, high = _limits(prop, schema)
            return round(low + rng.randint(0, (high - low) * 10) / 10, 1) if rng.random() < 0.8 else rng.randint(low, high)
        case "array":
            least = schema.get("minItems", 1)
            count = rng.randint(least, schema.get("maxItems", max(least, min(least + 2, 4))))
            return distinct(rng, words, prop, schema["items"], count)
    return draw_text(rng, words, prop.kind)


def distinct(rng: random.Random, words: Lexicon, prop: Property, item: JsonSchema, count: int) -> list[Any]:
    """Up to some repetitions, values that differ."""
    values: list[Any] = []
    for _ in range(count):
        value = draw_value(rng, words, prop, item)
        for _ in range(5):
            if value not in values:
                break
            value = draw_value(rng, words, prop, item)
        values.append(value)
    return values


def said(rng: random.Random, value: Any) -> str:
    """A value in words, from which it can be read."""
    match value:
        case bool():
            return rng.choice(("yes", "true") if value else ("no", "false"))
        case int() if 1 <= value <= 10 and rng.random() < _SPELT_SHARE:
            return _NUMBER_WORDS[value - 1]
        case list():
            return enumerated([said(rng, item) for item in value]) if value else "none"
    return str(value)


def enumerated(texts: Sequence[str]) -> str:
    """`a, b and c`"""
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def phrase(rng: random.Random, prop: Property, value: Any) -> str:
    """A value as part of a request: `in Lisbon`, `with size large`, `without bread`."""
    if isinstance(value, bool):
        return f"{'with' if value else 'without'} {prop.label}"
    return (prop.phrase or f"with {prop.label} {{}}").replace("{}", said(rng, value))


def labelled(rng: random.Random, properties: Sequence[Property], values: Mapping[str, Any]) -> str:
    """The values one by one, each with its label or its name, in any of several layouts."""
    frame = rng.choice(("{}: {}", "{} {}", "{} is {}", "{} = {}", "the {} is {}"))
    by_name = rng.random() < 0.3
    stated = [prop for prop in properties if prop.name in values]
    texts = [frame.format(prop.name if by_name else prop.label, said(rng, values[prop.name])) for prop in stated]
    return rng.choice((", ", ", ", "; ")).join(texts)


def _limits(prop: Property, schema: JsonSchema) -> tuple[int, int]:
    low, high = prop.range[0], prop.range[1]
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None:
        return least, most if most is not None else max(high, least + 5)
    return (low, high) if most is None else (min(low, most - 5), most)


def any_field(rng: random.Random, wordings: SchemaWords, words: Lexicon) -> Field:
    """A field of the list, or, now and then, a noun or an invented word of any kind."""
    if rng.random() < 0.8:
        return rng.choice(wordings.fields)
    label = rng.choice(wordings.nouns)
    while rng.random() < 0.4 or not label.replace(" ", "").isalpha():
        label = draw_text(rng, lexicon("en", words.split), "invented").lower()
    kind = rng.choice(("word", "word", "integer", "number", "boolean", "invented"))
    return Field(label=label, kind=kind)


def fields_apart(rng: random.Random, wordings: SchemaWords, words: Lexicon, count: int) -> list[Field]:
    """`count` fields of different labels."""
    fields: dict[str, Field] = {}
    while len(fields) < count:
        field = any_field(rng, wordings, words)
        fields.setdefault(field.label, field)
    return list(fields.values())
