"""Forms: a text in, an object under a schema out. Values are copied letter by letter or normalized, as the schema says."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from openafm.data.synthetic.calendar import draw_reference_day
from openafm.data.synthetic.fields import Field, Kind, Value, draw_value
from openafm.data.synthetic.languages import Split
from openafm.data.synthetic.reference import draw_reference, fill
from openafm.data.synthetic.rendering import Piece, Pieces, render, text_of
from openafm.data.synthetic.schemas import (
    STYLES,
    TIME_PATTERN,
    PropertyDraft,
    answer_object,
    draw_title,
    object_schema,
    styled,
)
from openafm.data.synthetic.tasks.messages import Distractors
from openafm.data.synthetic.text_files.catalogs import FormDomain, catalog_of
from openafm.data.synthetic.text_files.frames import LanguageFrames, frames_of
from openafm.data.synthetic.text_files.source_text import Slot
from openafm.tokenizer.conversation import AssistantTurn, Instructions, JsonSchema, Turn, UserTurn
from openafm.tokenizer.schema_text import compact_json

_ENGLISH_SHARE, _LISTING_SHARE, _KEEP_SHARE, _ALIAS_SHARE = 0.25, 0.2, 0.65, 0.35
_AS_WRITTEN_SHARE, _DESCRIBED_SHARE, _BOUNDED_SHARE = 0.12, 0.2, 0.25
_NO_INSTRUCTIONS_SHARE, _IN_PROMPT_SHARE, _MOST_FURTHER_TEXTS = 0.12, 0.15, 3
_NORMALIZED = frozenset({"date", "past_day", "time", "amount"})


@dataclass
class Statement:
    """A text and the values that it states, by field."""

    text: str
    values: dict[str, Value] = field(default_factory=dict)


def form_turns(rng: random.Random, language: str, split: Split) -> tuple[Turn, ...]:
    """Return a text of a domain, a schema for some of its fields, and their values; in training up to four such texts."""
    if rng.random() < _ENGLISH_SHARE:
        language = "en"
    frames, today = frames_of(language, split), draw_reference_day(rng)
    domain = rng.choice(catalog_of(language, split).forms)
    num_further = rng.randint(0, _MOST_FURTHER_TEXTS) if split == "train" else 0
    statements = [_draw_text(rng, domain, frames, today) for _ in range(1 + num_further)]
    form = _draw_form(rng, domain, statements)
    wording = frames if rng.random() < 0.5 else frames_of("en", split)
    task = fill(rng, rng.choice(wording.instructions["form"]))
    if not form.needs_day and rng.random() < _NO_INSTRUCTIONS_SHARE:
        task = ""
    if form.needs_day or rng.random() < 0.1:
        task = f"{task} {draw_reference(rng, wording, today)}".strip()
    prompts = [statement.text for statement in statements]
    if task and rng.random() < _IN_PROMPT_SHARE:
        task, prompts[0] = "", f"{task}\n{prompts[0]}"
    turns: list[Turn] = [Instructions(text=task)]
    for prompt, statement in zip(prompts, statements, strict=True):
        turns.append(UserTurn(text=prompt, response_format=form.schema))
        turns.append(AssistantTurn(text=compact_json(form.answer(statement))))
    return tuple(turns)


def _draw_text(rng: random.Random, domain: FormDomain, frames: LanguageFrames, today: datetime.date) -> Statement:
    draw = draw_listing if rng.random() < _LISTING_SHARE else draw_statement
    return draw(rng, domain, frames, today)


def draw_statement(rng: random.Random, domain: FormDomain, frames: LanguageFrames, today: datetime.date) -> Statement:
    """Return one of the domain's texts, filled."""
    frame = rng.choice(domain.texts)
    values = FieldValues(rng, domain.fields, frames, today)
    text = text_of(render(frame, rng, values, keep=lambda _: rng.random() < _KEEP_SHARE, language=frames.language))
    return Statement(" ".join(text.split(" ")).strip(), values.drawn)


def draw_listing(rng: random.Random, domain: FormDomain, frames: LanguageFrames, today: datetime.date) -> Statement:
    """Return fields with their names, one after another, in any order."""
    values = FieldValues(rng, domain.fields, frames, today)
    stated = [each for each in domain.fields if not each.is_optional or rng.random() < _KEEP_SHARE]
    stated = [each for each in stated if each.kind.base != "boolean"]
    if rng.random() < 0.4:
        rng.shuffle(stated)
    pair = rng.choice(("{}: {}", "{}: {}", "{} = {}", "{} - {}", "{} {}"))
    lines = []
    for each in stated:
        name = rng.choice((each.name.replace("_", " "), *each.aliases))
        name = name[:1].upper() + name[1:] if rng.random() < 0.5 else name
        lines.append(pair.format(name, text_of(values(Slot(each.name)))))
    return Statement(rng.choice(("\n", "\n", ", ", "; ")).join(lines), values.drawn)


class FieldValues:
    """Values of the fields of a text, drawn when they are written."""

    def __init__(self, rng: random.Random, fields: Sequence[Field], frames: LanguageFrames, today: datetime.date) -> None:
        self._rng, self._frames, self._today = rng, frames, today
        self._fields = {each.name: each for each in fields}
        self._others = Distractors(rng, frames, today)
        self.drawn: dict[str, Value] = {}

    def __call__(self, slot: Slot) -> Pieces:
        declared = self._fields.get(slot.name)
        if declared is None:
            return self._others(slot)
        if slot.value is not None:
            self.drawn[slot.name] = Value(_assigned(declared.kind, slot.value), "")
            return (Piece(""),)
        if slot.name not in self.drawn:
            self.drawn[slot.name] = self._draw(declared, slot)
        value = self.drawn[slot.name]
        text = value.adverbial if slot.form == "on" and value.adverbial else value.text
        return (Piece(text, slot.name),)

    def _draw(self, declared: Field, slot: Slot) -> Value:
        """A value that no other field has, so that it identifies its field."""
        for _ in range(10):
            value = draw_value(self._rng, declared.kind, self._frames, self._today, slot)
            if value.value not in [other.value for other in self.drawn.values()]:
                break
        return value


def _assigned(kind: Kind, text: str) -> Any:
    if kind.base == "boolean":
        return text == "true"
    return int(text) if kind.base == "integer" else text


@dataclass(frozen=True)
class Form:
    """A schema of some fields of a domain. `properties` are by field, `as_written` has the fields that are copied."""

    schema: JsonSchema
    properties: dict[str, PropertyDraft]
    as_written: frozenset[str]
    needs_day: bool

    def answer(self, statement: Statement) -> dict[str, Any]:
        """The values of a text under the schema."""
        stated = {name: statement.values[name] for name in self.properties if name in statement.values}
        values = {
            self.properties[name].name: value.text if name in self.as_written else value.value
            for name, value in stated.items()
        }
        return answer_object(list(self.properties.values()), values)


def _draw_form(rng: random.Random, domain: FormDomain, statements: Sequence[Statement]) -> Form:
    """A schema under which each of the texts has an answer."""
    style = rng.choice(STYLES)
    absence = rng.choice(("omitted", "omitted", "null"))
    values = {each.name: [s.values[each.name].value for s in statements if each.name in s.values] for each in domain.fields}
    fields = [each for each in domain.fields if values[each.name] or rng.random() < 0.6]
    if len(fields) > 2 and rng.random() < 0.3:
        fields = rng.sample(fields, rng.randint(2, len(fields)))
    elif rng.random() < 0.3:
        rng.shuffle(fields)
    properties: dict[str, PropertyDraft] = {}
    copied = set()
    for each in fields:
        name = styled(rng.choice(each.aliases) if each.aliases and rng.random() < _ALIAS_SHARE else each.name, style)
        if name in [draft.name for draft in properties.values()]:
            continue
        as_written = each.kind.base in _NORMALIZED and rng.random() < _AS_WRITTEN_SHARE
        schema = value_schema(rng, each.kind, values[each.name], as_written=as_written)
        if each.description and rng.random() < _DESCRIBED_SHARE:
            schema["description"] = each.description
        elif as_written:
            schema["description"] = "as written"
        is_always = len(values[each.name]) == len(statements) and rng.random() < 0.7
        properties[each.name] = PropertyDraft(name, schema, "never" if is_always else absence)
        if as_written:
            copied.add(each.name)
    days = {each.name for each in fields if each.kind.base in ("date", "past_day", "time") and values[each.name]}
    title = draw_title(rng, domain.name)
    schema = object_schema(title, list(properties.values()), domain.description if rng.random() < 0.15 else "")
    return Form(schema, properties, frozenset(copied), bool(days & properties.keys() - copied))


def value_schema(rng: random.Random, kind: Kind, values: Sequence[Any] = (), *, as_written: bool = False) -> JsonSchema:
    """Return the schema of a kind. Bounds, where there are any, allow `values`."""
    if as_written:
        return {"type": "string"}
    match kind.base:
        case "integer" | "number":
            schema: JsonSchema = {"type": kind.base}
            if rng.random() < _BOUNDED_SHARE:
                schema |= {"minimum": kind.low, "maximum": max((kind.high, *values))}
            return schema
        case "amount":
            return {"type": "number"}
        case "boolean":
            return {"type": "boolean"}
        case "date" | "past_day":
            return {"type": "string", "format": "date"}
        case "time":
            return {"type": "string", "pattern": TIME_PATTERN}
        case "enum":
            choices = rng.sample(kind.choices, len(kind.choices))
            return {"type": "string", "enum": choices}
        case "list":
            assert kind.items is not None
            return {"type": "array", "items": value_schema(rng, kind.items)}
        case "object":
            parts = [PropertyDraft(part.name, value_schema(rng, part.kind)) for part in kind.parts]
            return object_schema(styled(kind.choices[0], "pascal"), parts)
    return {"type": "string"}
