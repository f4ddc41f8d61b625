"""Tools: requests that call some of up to eight tools, their outputs, and the answers; or no tool at all."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openafm.data.synthetic.calendar import draw_reference_day
from openafm.data.synthetic.fields import Field
from openafm.data.synthetic.languages import Split
from openafm.data.synthetic.reference import draw_reference, fill
from openafm.data.synthetic.rendering import render, text_of
from openafm.data.synthetic.schemas import PropertyDraft, object_schema, styled
from openafm.data.synthetic.styles import restyle
from openafm.data.synthetic.tasks.forms import FieldValues, value_schema
from openafm.data.synthetic.tasks.messages import Distractors
from openafm.data.synthetic.tasks.tool_names import draw_name
from openafm.data.synthetic.text_files.catalogs import CatalogSplit, ToolFrames, catalog_of
from openafm.data.synthetic.text_files.frames import frames_of
from openafm.data.synthetic.text_files.source_text import Frame
from openafm.tokenizer.conversation import AssistantTurn, Instructions, ToolCall, ToolDefinition, ToolTurn, Turn, UserTurn
from openafm.tokenizer.schema_text import compact_json

_NO_CALL_SHARE, _PARALLEL_SHARE, _SERIAL_SHARE, _MORE_SHARE = 0.3, 0.12, 0.06, 0.08
_MOST_FURTHER = 9  # rounds of a conversation of training
_NO_INSTRUCTIONS_SHARE, _PLAIN_ANSWER_SHARE, _WRAPPED_SHARE = 0.2, 0.5, 0.15
_NUM_TOOLS = ((1, 2, 3, 4, 5, 6, 8), (3, 4, 5, 5, 4, 2, 1))
_STYLES = ("snake", "snake", "snake", "camel", "pascal", "kebab")
_TITLES = ("{}", "{}Parameters", "{}Arguments", "Parameters", "Arguments", "Input")
_NEIGHBOR_SHARE, _IMPERATIVE_SHARE = 0.5, 0.4


@dataclass(frozen=True)
class DefinedTool:
    """A tool under the names that this example uses."""

    source: ToolFrames
    definition: ToolDefinition


@dataclass(frozen=True)
class Request:
    """A prompt and the arguments that it states, by parameter."""

    text: str
    arguments: dict[str, Any]


def tool_turns(rng: random.Random, language: str, split: Split) -> tuple[Turn, ...]:
    """Return instructions with tools, and one or two rounds of prompt, calls, outputs and answer, in training up to ten."""
    return _ToolConversation(rng, language, split).turns()


class _ToolConversation:
    """One conversation while it is built."""

    def __init__(self, rng: random.Random, language: str, split: Split) -> None:
        self._rng, self._split = rng, split
        self._frames, self._english = frames_of(language, split), frames_of("en", split)
        self._catalog: CatalogSplit = catalog_of(language, split)
        self._today = draw_reference_day(rng)
        chosen = _draw_tools(rng, self._catalog.tools, rng.choices(*_NUM_TOOLS)[0])
        style = rng.choice(_STYLES)
        names = [tool.name for tool in chosen]
        if split == "train":
            for position, name in enumerate(names):
                names[position] = draw_name(rng, name, names)
        self._tools = [_define(rng, tool, name, style) for tool, name in zip(chosen, names, strict=True)]

    def turns(self) -> tuple[Turn, ...]:
        rng = self._rng
        kind = rng.random()
        if kind < _NO_CALL_SHARE:
            turns = self._no_call()
        elif kind < _NO_CALL_SHARE + _SERIAL_SHARE and (pairs := self._serial_pairs()):
            turns = self._serial(*rng.choice(pairs))
        elif kind < _NO_CALL_SHARE + _SERIAL_SHARE + _PARALLEL_SHARE:
            turns = self._parallel()
        else:
            turns = self._call(rng.choice(self._tools))
        num_further = rng.randint(0, _MOST_FURTHER) if self._split == "train" else int(rng.random() < _MORE_SHARE)
        for _ in range(num_further):
            further = self._no_call() if rng.random() < _NO_CALL_SHARE else self._call(rng.choice(self._tools))
            if further[0] not in turns:  # the answer would be a copy
                turns = (*turns, *further)
        return (Instructions(text=self._instructions(), tools=tuple(tool.definition for tool in self._tools)), *turns)

    def _instructions(self) -> str:
        rng = self._rng
        wording = self._frames if rng.random() < 0.4 else self._english
        text = "" if rng.random() < _NO_INSTRUCTIONS_SHARE else fill(rng, rng.choice(wording.instructions["tool"]))
        has_dates = any(field.kind.base in ("date", "time") for tool in self._tools for field in tool.source.parameters)
        return f"{text} {draw_reference(rng, wording, self._today)}".strip() if has_dates else text

    def _no_call(self) -> tuple[Turn, ...]:
        """Small talk, or a request for an absent tool."""
        rng = self._rng
        if rng.random() < 0.5 and self._catalog.small_talk:
            talk = rng.choice(self._catalog.small_talk)
            values = Distractors(rng, self._frames, self._today)
            prompt, answer = (text_of(render(frame, rng, values)) for frame in (talk.prompt, talk.answer))
            return UserTurn(text=prompt), AssistantTurn(text=answer)
        present = {tool.source.name for tool in self._tools}
        words = {word for name in present for word in name.split("_")[1:]}
        absent = [
            tool
            for tool in self._catalog.tools
            if tool.name not in present and not words & set(tool.name.split("_")) and tool.requests
        ]
        request = self._request(rng.choice(absent or self._catalog.tools))
        answer = fill(rng, rng.choice(self._frames.instructions["no_tool"]))
        return UserTurn(text=request.text), AssistantTurn(text=answer)

    def _call(self, tool: DefinedTool) -> tuple[Turn, ...]:
        request = self._request(tool.source)
        return self._round(request.text, [(tool, request.arguments)])

    def _parallel(self) -> tuple[Turn, ...]:
        """Two calls in one turn, of one tool or two."""
        rng = self._rng
        first, second = rng.choice(self._tools), rng.choice(self._tools)
        requests = self._request(first.source, plain=True), self._request(second.source, plain=True)
        if first is second and requests[0].arguments == requests[1].arguments:
            return self._round(requests[0].text, [(first, requests[0].arguments)])
        frame = rng.choice(self._frames.instructions["also"])
        prompt = fill(rng, frame, first=requests[0].text.rstrip(".?!"), second=requests[1].text)
        return self._round(prompt, [(first, requests[0].arguments), (second, requests[1].arguments)])

    def _serial_pairs(self) -> list[tuple[DefinedTool, DefinedTool, Field]]:
        """Pairs of tools of which the second takes one text, which the first may return; the wording is English."""
        if self._frames.language != "en":
            return []
        return [
            (first, second, second.source.parameters[0])
            for first in self._tools
            for second in self._tools
            if first is not second
            and [field.is_optional for field in second.source.parameters] == [False]
            and second.source.parameters[0].kind.base
            in ("person", "city", "name", "word", "street", "phone", "code", "company")
        ]

    def _serial(self, first: DefinedTool, second: DefinedTool, field: Field) -> tuple[Turn, ...]:
        """Two calls one after the other: the second takes what the first returned."""
        rng = self._rng
        request = self._request(first.source, plain=True)
        value = self._frames.draw_distractor(rng, field.kind.base, self._today)
        output = value if rng.random() < 0.5 else compact_json({field.name: value})
        second_name = second.source.name.replace("_", " ")
        prompt = rng.choice(_THEN).format(
            first=request.text.rstrip(".?!"), field=field.name.replace("_", " "), second=second_name
        )
        last = self._output(second.source)
        return (
            UserTurn(text=prompt),
            _assistant_calls([(first, request.arguments)]),
            ToolTurn(name=first.definition.name, text=output),
            _assistant_calls([(second, {field.name: value})]),
            ToolTurn(name=second.definition.name, text=last),
            AssistantTurn(text=self._answer([last])),
        )

    def _round(self, prompt: str, calls: list[tuple[DefinedTool, dict[str, Any]]]) -> tuple[Turn, ...]:
        outputs = [self._output(tool.source) for tool, _ in calls]
        return (
            UserTurn(text=prompt),
            _assistant_calls(calls),
            *(ToolTurn(name=tool.definition.name, text=text) for (tool, _), text in zip(calls, outputs, strict=True)),
            AssistantTurn(text=self._answer(outputs)),
        )

    def _request(self, tool: ToolFrames, *, plain: bool = False) -> Request:
        """A request that states the tool's arguments."""
        rng = self._rng
        values = FieldValues(rng, tool.parameters, self._frames, self._today)
        frame: Frame = rng.choice(tool.requests)
        pieces = render(frame, rng, values, language=self._frames.language)
        text = text_of(pieces if plain else restyle(rng, pieces, self._frames.language)).strip()
        if not plain and rng.random() < _WRAPPED_SHARE and self._frames.language == "en":
            text = fill(rng, rng.choice(self._frames.instructions["wrap"]), request=text) if _is_command(text) else text
        return Request(text, {name: value.value for name, value in values.drawn.items()})

    def _output(self, tool: ToolFrames) -> str:
        """What the tool returns: a text of the file, or a number, a word, an object or an error."""
        rng = self._rng
        if tool.outputs and rng.random() < 0.6:
            return text_of(render(rng.choice(tool.outputs), rng, Distractors(rng, self._frames, self._today)))
        match rng.choices(("done", "number", "word", "object", "list", "error"), (4, 2, 3, 2, 2, 2))[0]:
            case "number":
                return str(rng.choice((rng.randint(0, 99), rng.randint(100, 99999), rng.randint(1, 9999) / 100)))
            case "word":
                return self._word()
            case "object":
                keys = rng.sample(("status", "id", "result", "name", "value", "count", "message"), rng.randint(1, 3))
                return compact_json({key: self._word() for key in keys})
            case "list":
                return compact_json(list(dict.fromkeys(self._word() for _ in range(rng.randint(1, 4)))))
            case "error":
                return rng.choice(_ERRORS)
        return rng.choice(_DONE)

    def _word(self) -> str:
        kind = self._rng.choice(("word", "name", "person", "city", "code", "price", "n", "topic"))
        return self._frames.draw_distractor(self._rng, kind, self._today)

    def _answer(self, outputs: Sequence[str]) -> str:
        text = self._rng.choice(("; ", ", ", "\n")).join(outputs)
        if self._rng.random() < _PLAIN_ANSWER_SHARE:
            return text
        return fill(self._rng, self._rng.choice(self._frames.instructions["answer"]), output=text)


_THEN = (
    "{first}. Then take the {field} for {second}.",
    "{first} and use the result for {second}.",
    "{first}, then {second} with that {field}.",
    "First: {first}. After that {second} with the {field}.",
)
_DONE = ("Done", "OK", "ok", "success", "true", "Saved", "Accepted", "Ready")
_ERRORS = ("Error: timeout", "Not found", "No result", "Permission denied", "Error: no connection", "Failed")
_COMMANDS = re.compile(
    "(add|book|buy|call|cancel|change|check|clean|close|connect|convert|create|delete|dial|dim|email|find|give|get|lock|log|look|make"
    "|mark|move|open|order|pause|phone|play|put|read|record|remind|remove|reserve|ring|roll|save|schedule|search|send|set|show|skip"
    "|start|stop|switch|take|tell|text|track|translate|turn|write)\\b"
)


def _is_command(text: str) -> bool:
    return _COMMANDS.match(text.lower()) is not None


def _draw_tools(rng: random.Random, tools: Sequence[ToolFrames], count: int) -> list[ToolFrames]:
    """Different tools, some of them neighbors: tools whose names share a word."""
    chosen = {tool.name: tool for tool in (rng.choice(tools),)}
    while len(chosen) < min(count, len(tools)):
        tool = rng.choice(tools)
        if rng.random() < _NEIGHBOR_SHARE:
            words = {word for name in chosen for word in name.split("_")}
            tool = rng.choice([tool for tool in tools if not words.isdisjoint(tool.name.split("_"))])
            if tool.name in chosen:
                tool = rng.choice(tools)
        chosen.setdefault(tool.name, tool)
    drawn = list(chosen.values())
    rng.shuffle(drawn)
    return drawn


def _define(rng: random.Random, tool: ToolFrames, words: str, style: str) -> DefinedTool:
    name = styled(words, style)
    properties = []
    for field in tool.parameters:
        schema = value_schema(rng, field.kind)
        if field.description and rng.random() < 0.3:
            schema["description"] = field.description
        properties.append(PropertyDraft(field.name, schema, "omitted" if field.is_optional else "never"))
    title = rng.choice(_TITLES).format(styled(words, "pascal"))
    description = _imperative(tool.description) if rng.random() < _IMPERATIVE_SHARE else tool.description
    definition = ToolDefinition(name=name, description=description, parameters=object_schema(title, properties))
    return DefinedTool(tool, definition)


def _imperative(description: str) -> str:
    """`Starts a timer.` as `Start a timer.`; a description in another form stays as it is."""
    verb, space, rest = description.partition(" ")
    if not verb.isascii() or not verb.endswith("s"):
        return description
    return verb.removesuffix("es" if verb.endswith(("ches", "shes", "sses")) else "s") + space + rest


def _assistant_calls(calls: Sequence[tuple[DefinedTool, dict[str, Any]]]) -> AssistantTurn:
    return AssistantTurn(
        tool_calls=tuple(
            ToolCall(
                name=tool.definition.name,
                arguments={name: arguments[name] for name in tool.definition.parameters["x-order"] if name in arguments},
            )
            for tool, arguments in calls
        )
    )
