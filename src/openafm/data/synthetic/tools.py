"""Tools: requests that call for some of up to four tools made up on the spot, their outputs, and what is said of them."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from openafm.data.synthetic.lexicons import Lexicon, Texts
from openafm.data.synthetic.properties import (
    Property,
    draw_text,
    draw_value,
    enumerated,
    fields_apart,
    labelled,
    make_property,
    object_schema,
    phrase,
    said,
    styled,
    with_article,
)
from openafm.data.synthetic.schema_words import Action, SchemaSlots, SchemaWords, schema_words
from openafm.tokenizer.conversation import AssistantTurn, Instructions, ToolCall, ToolDefinition, ToolTurn, Turn, UserTurn
from openafm.tokenizer.schema_text import compact_json

_SMALL_TALK_SHARE, _SERIAL_SHARE, _PARALLEL_SHARE, _MORE_SHARE = 0.15, 0.08, 0.20, 0.15
_ACTION_SHARE = 0.4
_EXPLICIT_SHARE, _TERSE_SHARE, _WRAPPED_SHARE = 0.18, 0.08, 0.2
_NO_INSTRUCTIONS_SHARE = 0.2
_PLAIN_ANSWER_SHARE = 0.5
_NUM_TOOLS = ((1, 2, 3, 4), (5, 4, 2, 1))
_NUM_FIELDS = ((0, 1, 2, 3, 4), (1, 5, 4, 2, 1))
_STYLES = ("snake", "snake", "snake", "camel", "camel", "pascal", "joined", "kebab", "spaced")
_OUTPUTS = (("said", "number", "value", "object", "list", "error"), (6, 2, 4, 4, 2, 2))


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool, and how people ask for it and how it answers."""

    definition: ToolDefinition
    noun: str
    properties: tuple[Property, ...]
    requests: Texts
    outputs: Texts


@dataclass(frozen=True)
class Output:
    """What a tool said, and the part of it that the answer says again."""

    text: str
    said: str


def tool_turns(rng: random.Random, words: Lexicon) -> tuple[Turn, ...]:
    """Instructions with tools, and one or two rounds of prompt, calls, outputs and answer."""
    return _Talk(rng, words).turns()


class _Talk:
    """One conversation while it is put together."""

    def __init__(self, rng: random.Random, words: Lexicon) -> None:
        self._rng, self._words = rng, words
        self._wordings: SchemaWords = schema_words(words.split)
        tools: dict[str, Tool] = {}
        count = rng.choices(*_NUM_TOOLS)[0]
        while len(tools) < count:
            tool = draw_tool(rng, words)
            tools.setdefault(tool.definition.name, tool)
        self._tools = list(tools.values())

    def turns(self) -> tuple[Turn, ...]:
        rng, wordings = self._rng, self._wordings
        text = "" if rng.random() < _NO_INSTRUCTIONS_SHARE else rng.choice(wordings.instructions)
        kind = rng.random()
        if kind < _SMALL_TALK_SHARE:
            turns = self._small_talk()
        elif kind < _SMALL_TALK_SHARE + _SERIAL_SHARE and (seconds := self._takers()):
            turns = self._serial(rng.choice(seconds))
        else:
            turns = self._calls()
        if rng.random() < _MORE_SHARE:
            turns = (*turns, *self._more(turns))
        return (Instructions(text=text, tools=tuple(tool.definition for tool in self._tools)), *turns)

    def _small_talk(self) -> tuple[Turn, ...]:
        talk = self._rng.choice(self._wordings.small_talk)
        slots = SchemaSlots(self._rng, self._words)
        return UserTurn(text=slots.fill(talk.prompt)), AssistantTurn(text=slots.fill(talk.answer))

    def _calls(self) -> tuple[Turn, ...]:
        """One call, or two in parallel of the same tool or of two."""
        rng = self._rng
        tool = rng.choice(self._tools)
        if rng.random() >= _PARALLEL_SHARE or (len(self._tools) == 1 and not tool.properties):
            arguments = self._arguments(tool)
            return self._round(self._request(tool, arguments), [(tool, arguments)])
        others = [other for other in self._tools if other is not tool]
        second = rng.choice(others) if others and (rng.random() < 0.6 or not tool.properties) else tool
        calls = [(tool, self._arguments(tool)), (second, self._arguments(second))]
        if second is tool and calls[0][1] == calls[1][1]:
            return self._round(self._request(*calls[0]), calls[:1])
        required = [prop for prop in tool.properties if prop.is_required]
        if second is tool and len(tool.properties) == len(required) == 1 and required[0].schema["type"] == "string":
            both = enumerated([str(arguments[required[0].name]) for _, arguments in calls])
            return self._round(self._request(tool, {required[0].name: both}), calls)
        first, other = (self._request(tool, arguments) for tool, arguments in calls)
        if not any(other.startswith(str(value)) for value in calls[1][1].values()):
            other = other[:1].lower() + other[1:]
        joined = rng.choice(self._wordings.also).format(first=first.rstrip(".?"), second=other)
        return self._round(joined, calls)

    def _serial(self, second: Tool) -> tuple[Turn, ...]:
        """The second call takes what the first one gave."""
        rng, words = self._rng, self._words
        first = rng.choice([tool for tool in self._tools if tool is not second])
        prop = second.properties[0]
        arguments = self._arguments(first)
        value = draw_text(rng, words, prop.kind)
        text = value if rng.random() < 0.5 else compact_json({prop.name: value})
        request = self._request(first, arguments).rstrip(".?")
        prompt = rng.choice(self._wordings.then).format(first=request, label=prop.label, tool=second.noun)
        then = {prop.name: value}
        last = self._output(second)
        return (
            UserTurn(text=prompt),
            _call((first, arguments)),
            ToolTurn(name=first.definition.name, text=text),
            _call((second, then)),
            ToolTurn(name=second.definition.name, text=last.text),
            AssistantTurn(text=self._answer([last])),
        )

    def _takers(self) -> list[Tool]:
        """Tools that need one text and nothing else, where there is another tool."""
        return [
            tool
            for tool in self._tools
            if len(self._tools) > 1
            and [prop.is_required for prop in tool.properties] == [True]
            and tool.properties[0].schema["type"] == "string"
            and "enum" not in tool.properties[0].schema
        ]

    def _more(self, turns: Sequence[Turn]) -> tuple[Turn, ...]:
        """A second prompt: for the last output again, or for something new."""
        last = turns[-1]
        if self._rng.random() < 0.35 and isinstance(turns[-2], ToolTurn) and isinstance(last, AssistantTurn):
            return UserTurn(text=self._rng.choice(self._wordings.again)), last
        return self._small_talk() if self._rng.random() < 0.2 else self._calls()

    def _round(self, prompt: str, calls: list[tuple[Tool, dict[str, Any]]]) -> tuple[Turn, ...]:
        outputs = [self._output(tool) for tool, _ in calls]
        return (
            UserTurn(text=prompt),
            _call(*calls),
            *(ToolTurn(name=tool.definition.name, text=o.text) for (tool, _), o in zip(calls, outputs, strict=True)),
            AssistantTurn(text=self._answer(outputs)),
        )

    def _arguments(self, tool: Tool) -> dict[str, Any]:
        """Values of what is required, and now and then of what is not."""
        return {
            prop.name: draw_value(self._rng, self._words, prop)
            for prop in tool.properties
            if prop.is_required or self._rng.random() < 0.4
        }

    def _request(self, tool: Tool, arguments: dict[str, Any]) -> str:
        """A prompt that says what the arguments are."""
        rng, given = self._rng, [prop for prop in tool.properties if prop.name in arguments]
        kind = rng.random()
        if kind < _EXPLICIT_SHARE:
            values = labelled(rng, given, arguments)
            frames = [frame for frame in self._wordings.explicit if bool(values) == ("{values}" in frame)]
            return rng.choice(frames).format(tool=tool.definition.name, values=values)
        if kind < _EXPLICIT_SHARE + _TERSE_SHARE and len(given) < 2:
            return " ".join([tool.noun, *(said(rng, arguments[prop.name]) for prop in given)][-rng.randint(1, 2) :])
        values_by_slot = {prop.label.replace(" ", "_"): said(rng, arguments[prop.name]) for prop in given}
        frames = [frame for frame in tool.requests if set(_slots(frame)) <= values_by_slot.keys()]
        frame = rng.choice(frames)
        used = _slots(frame)
        end = frame[-1] if frame[-1] in "?." else ""
        rest = [phrase(rng, prop, arguments[prop.name]) for prop in given if prop.label.replace(" ", "_") not in used]
        request = " ".join([frame.removesuffix(end).format_map(values_by_slot), *rest]) + end
        return rng.choice(self._wordings.wraps).format(request=request) if rng.random() < _WRAPPED_SHARE else request

    def _output(self, tool: Tool) -> Output:
        rng, words = self._rng, self._words
        slots = SchemaSlots(rng, words, noun=tool.noun)
        match rng.choices(*_OUTPUTS)[0]:
            case "number":
                text = str(rng.choice((rng.randint(0, 99), rng.randint(100, 99999), rng.randint(1, 9999) / 100)))
                return Output(text, text)
            case "value":
                text = draw_text(rng, words, rng.choice(self._wordings.vocabularies).kind)
                return Output(text, text)
            case "object":
                fields = fields_apart(rng, self._wordings, words, rng.randint(1, 3))
                properties = [make_property(rng, field, "snake") for field in fields]
                values = {prop.name: draw_value(rng, words, prop) for prop in properties}
                parts = [f"{prop.label}: {_shown(values[prop.name])}" for prop in properties]
                return Output(compact_json(values), ", ".join(parts))
            case "list":
                kind = rng.choice(self._wordings.vocabularies).kind
                texts = list(dict.fromkeys(draw_text(rng, words, kind) for _ in range(rng.randint(1, 4))))
                return Output(compact_json(texts) if rng.random() < 0.7 else "\n".join(texts), enumerated(texts))
            case "error":
                text = slots.choose(self._wordings.errors)
                return Output(text, text)
        text = slots.choose(tool.outputs or self._wordings.outputs)
        return Output(text, text)

    def _answer(self, outputs: Sequence[Output]) -> str:
        text = self._rng.choice(("; ", " and ", "\n")).join(output.said for output in outputs)
        if self._rng.random() < _PLAIN_ANSWER_SHARE:
            return text
        frame = self._rng.choice(self._wordings.answers)
        return frame.format(output=text.removesuffix(".") if frame.endswith(".") else text)


def draw_tool(rng: random.Random, words: Lexicon) -> Tool:
    """A tool of the list, or a verb and a noun with any fields."""
    wordings = schema_words(words.split)
    if rng.random() < _ACTION_SHARE:
        action = rng.choice(wordings.actions)
        noun = rng.choice(action.names)
        fields = list(action.fields)
    else:
        noun = rng.choice(wordings.nouns)
        action = _with_noun(rng.choice(wordings.verbs), noun)
        fields = fields_apart(rng, wordings, words, rng.choices(*_NUM_FIELDS)[0])
        fields = [field for field in fields if field.label != noun]
    words_style = rng.choice(_STYLES)
    property_style = "camel" if words_style in ("camel", "pascal") else "snake"
    properties = tuple(
        make_property(rng, field, property_style, as_list=not action.fields and not field.phrase and rng.random() < 0.15)
        for field in fields
    )
    if not action.fields:
        properties = tuple(_maybe_optional(rng, prop, position) for position, prop in enumerate(properties))
    spoken = rng.choice(action.names)
    name = styled(spoken, words_style)
    title = rng.choice(
        (name, styled(spoken, "pascal"), styled(f"{spoken} {rng.choice(_TITLE_ENDS)}", "pascal"), *_TITLE_ENDS)
    )
    return Tool(
        definition=ToolDefinition(
            name=name,
            description=rng.choice(action.descriptions),
            parameters=object_schema(title.replace(" ", ""), properties),
        ),
        noun=noun,
        properties=properties,
        requests=action.requests,
        outputs=action.outputs,
    )


_TITLE_ENDS = ("Parameters", "Arguments", "Params", "Input")


def _with_noun(verb: Action, noun: str) -> Action:
    def filled(texts: Texts) -> Texts:
        return tuple(text.replace("a {noun}", with_article(noun)).replace("{noun}", noun) for text in texts)

    return Action(names=filled(verb.names), descriptions=filled(verb.descriptions), requests=filled(verb.requests))


def _maybe_optional(rng: random.Random, prop: Property, position: int) -> Property:
    return replace(prop, is_required=position == 0 or rng.random() < 0.75)


def _call(*calls: tuple[Tool, dict[str, Any]]) -> AssistantTurn:
    return AssistantTurn(tool_calls=tuple(ToolCall(name=t.definition.name, arguments=arguments) for t, arguments in calls))


def _shown(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _slots(frame: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(frame) if name]
