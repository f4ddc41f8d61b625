"""Forms: a random schema filled with values that the prompt states, or with short ones made up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from openafm.data.synthetic.lexicons import Lexicon
from openafm.data.synthetic.properties import (
    Property,
    draw_value,
    enumerated,
    fields_apart,
    labelled,
    make_property,
    object_schema,
    phrase,
    styled,
    with_article,
)
from openafm.data.synthetic.schema_words import Field, SchemaSlots, schema_words
from openafm.tokenizer.conversation import AssistantTurn, Instructions, JsonSchema, Turn, UserTurn
from openafm.tokenizer.schema_text import compact_json

_EXTRACTION_SHARE, _PARTLY_STATED_SHARE = 0.45, 0.15
_LONE_VALUE_SHARE = 0.06
_NO_INSTRUCTIONS_SHARE = 0.5
_LIST_SHARE, _NESTED_SHARE, _OPTIONAL_SHARE = 0.2, 0.2, 0.15
_STYLES = ("snake", "snake", "snake", "camel")
_NUM_PROPERTIES = ((1, 2, 3, 4, 5, 6), (3, 4, 4, 3, 2, 1))


@dataclass(frozen=True, kw_only=True)
class Form:
    """A schema with its properties; one of them may be an object, or a list of objects, of `nested` properties."""

    noun: str
    properties: tuple[Property, ...]
    nested: tuple[Property, ...] = ()
    nested_name: str = ""
    schema: JsonSchema


def form_turns(rng: random.Random, words: Lexicon) -> tuple[Turn, ...]:
    """A prompt with a schema, and the JSON."""
    wordings = schema_words(words.split)
    if rng.random() < _LONE_VALUE_SHARE:
        return _lone_value(rng, words)
    form = draw_form(rng, words)
    value = _draw_answer(rng, words, form)
    kind = rng.random()
    slots = SchemaSlots(rng, words, noun=form.noun, a_noun=with_article(form.noun))
    plain = [prop for prop in form.properties if prop.name in value]
    if kind < _EXTRACTION_SHARE:
        slots["values"] = _stated(rng, form, plain, value)
        prompt = slots.choose(wordings.extract)
    elif kind < _EXTRACTION_SHARE + _PARTLY_STATED_SHARE and (sayable := [p for p in plain if p.name != form.nested_name]):
        stated = rng.sample(sayable, rng.randint(1, min(2, len(sayable))))
        slots["values"] = " ".join(phrase(rng, prop, value[prop.name]) for prop in stated)
        prompt = slots.choose(wordings.generate_stated)
    elif rng.random() < 0.3:
        slots["labels"] = enumerated([prop.label for prop in plain] or [form.noun])
        prompt = slots.choose(wordings.generate_with)
    else:
        prompt = slots.choose(wordings.generate)
    return _turns(rng, words, prompt, form.schema, value)


def _turns(rng: random.Random, words: Lexicon, prompt: str, schema: JsonSchema, value: Any) -> tuple[Turn, ...]:
    wordings = schema_words(words.split)
    return (
        Instructions(text="" if rng.random() < _NO_INSTRUCTIONS_SHARE else rng.choice(wordings.form_instructions)),
        UserTurn(text=prompt, response_format=schema),
        AssistantTurn(text=compact_json(value)),
    )


def _lone_value(rng: random.Random, words: Lexicon) -> tuple[Turn, ...]:
    """A schema that is no object: one value, or a list."""
    wordings = schema_words(words.split)
    prop = _property(rng, fields_apart(rng, wordings, words, 1)[0], "snake")
    value = draw_value(rng, words, prop)
    slots = SchemaSlots(
        rng, words, noun=prop.label, a_noun=with_article(prop.label), values=labelled(rng, [prop], {prop.name: value})
    )
    prompt = slots.choose(wordings.extract if rng.random() < _EXTRACTION_SHARE else wordings.generate)
    return _turns(rng, words, prompt, prop.schema, value)


def draw_form(rng: random.Random, words: Lexicon) -> Form:
    """One to six properties under a title."""
    wordings = schema_words(words.split)
    noun = rng.choice(wordings.nouns)
    style = rng.choice(_STYLES)
    count = rng.choices(*_NUM_PROPERTIES)[0]
    nests = rng.random() < _NESTED_SHARE
    fields = fields_apart(rng, wordings, words, count + 3)
    properties = [_property(rng, field, style) for field in fields[: count - nests]]
    nested: tuple[Property, ...] = ()
    definitions: JsonSchema = {}
    nested_name = ""
    if nests:
        nested = tuple(_property(rng, field, style, flat=True) for field in fields[count : count + rng.randint(1, 3)])
        part_noun = rng.choice([other for other in wordings.nouns if other not in (noun, *(f.label for f in fields))])
        title = styled(part_noun, "pascal")
        definitions = {"$defs": {title: object_schema(title, nested)}}
        reference: JsonSchema = {"$ref": f"#/$defs/{title}"}
        is_list = rng.random() < 0.4
        schema = (
            {"type": "array", "items": reference} | ({"maxItems": 3} if rng.random() < 0.3 else {}) if is_list else reference
        )
        nested_name = styled(part_noun, style)
        properties.append(Property(name=nested_name, label=part_noun, schema=schema, is_required=True))
        rng.shuffle(properties)
    description = with_article(noun).capitalize() if rng.random() < 0.15 else ""
    return Form(
        noun=noun,
        properties=tuple(properties),
        nested=nested,
        nested_name=nested_name,
        schema=object_schema(styled(noun, "pascal"), properties, description) | definitions,
    )


def _property(rng: random.Random, field: Field, style: str, *, flat: bool = False) -> Property:
    as_list = not flat and field.kind not in ("boolean", "number") and rng.random() < _LIST_SHARE
    prop = make_property(rng, field, style, as_list=as_list, bounds=True)
    return replace(prop, is_required=rng.random() >= _OPTIONAL_SHARE)


def _draw_answer(rng: random.Random, words: Lexicon, form: Form) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for prop in form.properties:
        if prop.name == form.nested_name:
            count = rng.randint(1, 3 if len(form.nested) < 3 else 2)
            parts = [_draw_object(rng, words, form.nested) for _ in range(count)]
            value[prop.name] = parts if prop.schema.get("type") == "array" else parts[0]
        else:
            value |= _draw_object(rng, words, (prop,))
    return value


def _draw_object(rng: random.Random, words: Lexicon, properties: Sequence[Property]) -> dict[str, Any]:
    """Values of the properties, optional ones now and then left out."""
    return {prop.name: draw_value(rng, words, prop) for prop in properties if prop.is_required or rng.random() < 0.5}


def _stated(rng: random.Random, form: Form, properties: Sequence[Property], value: dict[str, Any]) -> str:
    """Every value in words, now and then in another order than that of the schema."""
    plain = [prop for prop in properties if prop.name != form.nested_name]
    if rng.random() < 0.3:
        rng.shuffle(plain)
    texts = [labelled(rng, plain, value)] if plain else []
    if form.nested_name:
        parts = value[form.nested_name]
        label = next(prop.label for prop in form.properties if prop.name == form.nested_name)
        for part in parts if isinstance(parts, list) else [parts]:
            texts.append(f"{label}: {labelled(rng, form.nested, part) or 'unknown'}")
    return ". ".join(texts) or f"{form.noun}: unknown"
