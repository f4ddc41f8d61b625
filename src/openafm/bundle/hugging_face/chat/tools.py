"""Derive the layout of tools, calls and outputs from a Jinja chat template, with markers as in `layout.py`."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from openafm.bundle.hugging_face.chat.jinja import Message
from openafm.bundle.hugging_face.chat.layout import (
    ANSWER,
    SYSTEM,
    USER,
    Layout,
    TemplateReader,
    calling,
    rest,
    system,
    tool_output,
    user,
    without_end,
)
from openafm.bundle.hugging_face.errors import UnsupportedTemplateError
from openafm.tokenizer.conversation import ToolCall, ToolTurn
from openafm.tokenizer.imported.layouts import CallsLayout, JsonStyle, Row, ToolsLayout

OUTPUT, OUTPUT_2 = 'Zq"outputa"qz', 'Zq"outputb"qz'


@dataclass(frozen=True, kw_only=True)
class ToolPassing:
    """How tools and calls are passed to a template. Some templates deviate from transformers."""

    arguments: tuple[tuple[str, Any], ...] = ()
    calls_in_text: bool = False

    @property
    def keywords(self) -> dict[str, Any]:
        return dict(self.arguments)


TOOL_PASSINGS = (
    ToolPassing(),
    ToolPassing(arguments=(("tools_in_user_message", False),)),
    *(ToolPassing(arguments=arguments, calls_in_text=True) for arguments in ((), (("tools_as", "xml_tools"),))),
)

_SPACED, _COMPACT = JsonStyle(), JsonStyle(item_separator=",", key_separator=":")
_STYLES = (
    _SPACED,
    _COMPACT,
    *(JsonStyle(item_separator=",", indent=indent) for indent in (4, 2)),
    JsonStyle(form="python"),
)


@dataclass(frozen=True)
class _Probe:
    """A tool and a call of it."""

    name: str

    @property
    def function(self) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
        return {"name": self.name, "description": f"Does {self.name}.", "parameters": parameters}

    @property
    def tool(self) -> Message:
        return {"type": "function", "function": self.function}

    @property
    def arguments(self) -> dict[str, Any]:
        return {"key": f"{self.name} value", "more": [1, 2]}

    @property
    def call(self) -> ToolCall:
        return ToolCall(name=self.name, arguments=self.arguments)


_ONE, _TWO = _Probe("zqtoolaqz"), _Probe("zqtoolbqz")


@dataclass(frozen=True)
class _DefinitionStyle:
    is_wrapped: bool
    style: JsonStyle

    def text(self, probe: _Probe) -> str:
        return self.style.text(probe.tool if self.is_wrapped else probe.function)


def read_tools(reader: TemplateReader, layout: Layout, passing: ToolPassing) -> ToolsLayout:
    """Return the layout of tools.

    Raises:
        UnsupportedTemplateError: the turns cannot be appended one by one, the format of tools is not supported, or the
            template does not accept tools.
    """

    def text(messages: list[Message], *probes: _Probe) -> str:
        rendered = reader.jinja.text(messages, [probe.tool for probe in probes or (_ONE,)], **passing.keywords)
        return rendered.replace(layout.kept, "") if layout.kept else rendered

    definition = _definition_style(text([user(USER)]))
    start = _marked(text([user(USER)]), layout, definition)
    instructions = _marked(text([system(SYSTEM), user(USER)]), layout, definition)
    if passing.calls_in_text:
        _check_calls_are_text(text, start)
    calls, conversation = _calls(reader, layout, text, passing)
    output_rows = _outputs(reader, text, conversation, can_be_parallel=calls.separator is not None)
    fields = {_TOOLS: "{tools}", SYSTEM: layout.system_field}
    return ToolsLayout(
        start=reader.row(start, fields, is_first=True),
        instructions=reader.row(instructions, fields, is_first=True),
        separator=reader.row(_separator(text([user(USER)], _ONE, _TWO), definition)),
        is_wrapped=definition.is_wrapped,
        style=definition.style,
        calls=calls,
        **output_rows,
    )


def _check_calls_are_text(text: _Text, start: str) -> None:
    """Check that a template only describes calls to the model and does not write them."""
    ignored = text([user(USER), calling([_ONE.call], in_text=False)]) == text([user(USER), calling([], in_text=True)])
    if not ignored or "<tool_call>" not in start or "</tool_call>" not in start:
        raise UnsupportedTemplateError("the chat template's format of tool calls is not supported")


_TOOLS = "Zqtoolsqz"
_Text = Callable[..., str]


def _definition_style(text: str) -> _DefinitionStyle:
    for is_wrapped, style in itertools.product((True, False), _STYLES):
        definition = _DefinitionStyle(is_wrapped, style)
        if text.count(definition.text(_ONE)) == 1:
            return definition
    raise UnsupportedTemplateError(
        "the chat template ignores tools"
        if _ONE.name not in text
        else "the chat template's format of tools is not supported"
    )


def _marked(text: str, layout: Layout, definition: _DefinitionStyle) -> str:
    """The beginning of a conversation with tools, with a marker instead of their definitions."""
    head, found, _ = text.replace(definition.text(_ONE), _TOOLS).rpartition(USER)
    if not found or _TOOLS not in head:
        raise UnsupportedTemplateError("the chat template lists tools after the first prompt")
    return without_end(head, layout.user_head)


def _separator(text: str, definition: _DefinitionStyle) -> str:
    _, found, tail = text.partition(definition.text(_ONE))
    separator, found_2, _ = tail.partition(definition.text(_TWO))
    if not (found and found_2):
        raise UnsupportedTemplateError("the chat template's format of several tools is not supported")
    return separator


def _calls(reader: TemplateReader, layout: Layout, text: _Text, passing: ToolPassing) -> tuple[CallsLayout, list[Message]]:
    """The layout of calls, and a conversation with two calls, or with one if the template supports no more."""
    calling_one = calling([_ONE.call], in_text=passing.calls_in_text)
    calling_both = calling([_ONE.call, _TWO.call], in_text=passing.calls_in_text)
    asked = text([user(USER)])

    def inside(message: Message) -> str:
        called = rest(text([user(USER), message]), asked, "a call")
        return without_end(rest(called, layout.opening, "a call"), layout.closing)

    one = inside(calling_one)
    for key, style in itertools.product(("arguments", "parameters"), (_SPACED, _COMPACT)):
        written = [style.text({"name": probe.name, key: probe.arguments}) for probe in (_ONE, _TWO)]
        if one.count(written[0]) == 1:
            break
    else:
        raise UnsupportedTemplateError("the chat template's format of tool calls is not supported")
    opening, _, closing = one.partition(written[0])
    if not opening and style == _COMPACT:
        raise UnsupportedTemplateError(
            "the chat template writes tool calls like structured answers, so they cannot be distinguished"
        )
    separator = None
    with contextlib.suppress(UnsupportedTemplateError):
        further = rest(inside(calling_both), opening + written[0], "two calls")
        separator = without_end(further, written[1] + closing)
    after_text = ""
    with_text = inside(calling([_ONE.call], in_text=passing.calls_in_text, text=ANSWER))
    if with_text.startswith(ANSWER) and with_text.endswith(one):
        after_text = with_text[len(ANSWER) : len(with_text) - len(one)]
    calls = CallsLayout(
        opening=reader.row(opening, is_open=True),
        separator=None if separator is None else reader.row(separator, is_open=True),
        closing=reader.row(closing),
        after_text=reader.row(after_text),
        arguments_key=key,
        style=style,
    )
    return calls, [user(USER), calling_one if separator is None else calling_both]


def _outputs(reader: TemplateReader, text: _Text, conversation: list[Message], can_be_parallel: bool) -> dict[str, Row]:
    """Rows of the outputs of the calls at the end of `conversation`."""
    probes = (_ONE, _TWO) if can_be_parallel else (_ONE,)
    texts = zip(probes, (OUTPUT, OUTPUT_2), strict=False)
    outputs = [tool_output(ToolTurn(name=probe.name, text=output)) for probe, output in texts]
    shown = rest(text([*conversation, *outputs]), text(conversation), "the output of a tool")
    as_json = OUTPUT not in shown
    written = [json.dumps(output, ensure_ascii=False) if as_json else output for output in (OUTPUT, OUTPUT_2)]
    field = "{text|json}" if as_json else "{text}"
    head, _, tail = shown.partition(written[0])
    if can_be_parallel:
        separator, _, tail = tail.partition(written[1])
    else:
        separator = tail + head
    if not tail:
        raise UnsupportedTemplateError("the chat template's format of tool outputs is not supported")
    names = {probe.name: "{name}" for probe in probes}
    head_row, tail_row = reader.row(head, names), reader.row(tail, names)
    if reader.row(separator, names) == (*reader.row(tail), *head_row) or not can_be_parallel:
        return {
            "output_opening": (),
            "output": (*head_row, field, *tail_row),
            "output_separator": (),
            "output_closing": (),
        }
    return {
        "output_opening": head_row,
        "output": (field,),
        "output_separator": reader.row(separator),
        "output_closing": tail_row,
    }
