"""How a Jinja chat template announces tools, writes their calls and tells their outputs, read off as `layout.py` does."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from openafm.bundle.hugging_face.errors import UnsupportedTemplateError
from openafm.bundle.hugging_face.jinja import Message
from openafm.bundle.hugging_face.layout import (
    ANSWER,
    SYSTEM,
    USER,
    Layout,
    Reader,
    calling,
    rest,
    system,
    told,
    user,
    without_end,
)
from openafm.tokenizer.conversation import ToolCall, ToolTurn
from openafm.tokenizer.layouts import CallsLayout, JsonStyle, Row, ToolsLayout

OUTPUT, OUTPUT_2 = 'Zq"outputa"qz', 'Zq"outputb"qz'


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a template is given tools and calls. Not all do it as transformers has it."""

    arguments: tuple[tuple[str, Any], ...] = ()
    calls_in_text: bool = False

    @property
    def keywords(self) -> dict[str, Any]:
        return dict(self.arguments)


WAYS = (
    Way(),
    Way(arguments=(("tools_in_user_message", False),)),
    *(Way(arguments=arguments, calls_in_text=True) for arguments in ((), (("tools_as", "xml_tools"),))),
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
    """A tool with a call of it."""

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
class _Announced:
    is_wrapped: bool
    style: JsonStyle

    def text(self, probe: _Probe) -> str:
        return self.style.text(probe.tool if self.is_wrapped else probe.function)


def read_tools(reader: Reader, layout: Layout, way: Way) -> ToolsLayout:
    """The layout of tools.

    Raises:
        UnsupportedTemplateError: the turns do not simply follow each other, or tools are written in no known way.
        UnsupportedTemplateError: the template has no place for tools.
    """

    def text(messages: list[Message], *probes: _Probe) -> str:
        rendered = reader.jinja.text(messages, [probe.tool for probe in probes or (_ONE,)], **way.keywords)
        return rendered.replace(layout.kept, "") if layout.kept else rendered

    announced = _announced(text([user(USER)]))
    start = _marked(text([user(USER)]), layout, announced)
    instructions = _marked(text([system(SYSTEM), user(USER)]), layout, announced)
    if way.calls_in_text:
        _check_left_to_users(text, start)
    calls, conversation = _calls(reader, layout, text, way)
    output_rows = _outputs(reader, text, conversation, can_be_parallel=calls.separator is not None)
    fields = {_TOOLS: "{tools}", SYSTEM: layout.system_field}
    return ToolsLayout(
        start=reader.row(start, fields),
        instructions=reader.row(instructions, fields),
        separator=reader.row(_separator(text([user(USER)], _ONE, _TWO), announced)),
        is_wrapped=announced.is_wrapped,
        style=announced.style,
        calls=calls,
        **output_rows,
    )


def _check_left_to_users(text: _Text, start: str) -> None:
    """That a template writes no calls itself, though it tells the model how to."""
    ignored = text([user(USER), calling([_ONE.call], in_text=False)]) == text([user(USER), calling([], in_text=True)])
    if not ignored or "<tool_call>" not in start or "</tool_call>" not in start:
        raise UnsupportedTemplateError("the chat template writes calls in no known way")


_TOOLS = "Zqtoolsqz"
_Text = Callable[..., str]


def _announced(text: str) -> _Announced:
    for is_wrapped, style in itertools.product((True, False), _STYLES):
        announced = _Announced(is_wrapped, style)
        if text.count(announced.text(_ONE)) == 1:
            return announced
    raise UnsupportedTemplateError(
        "the chat template ignores tools" if _ONE.name not in text else "it writes tools in no known way"
    )


def _marked(text: str, layout: Layout, announced: _Announced) -> str:
    """What begins a conversation with tools, a mark in the place of their definitions."""
    head, found, _ = text.replace(announced.text(_ONE), _TOOLS).rpartition(USER)
    if not found or _TOOLS not in head:
        raise UnsupportedTemplateError("the chat template announces tools after the first prompt")
    return without_end(head, layout.user_head)


def _separator(text: str, announced: _Announced) -> str:
    _, found, tail = text.partition(announced.text(_ONE))
    separator, found_2, _ = tail.partition(announced.text(_TWO))
    if not (found and found_2):
        raise UnsupportedTemplateError("the chat template writes several tools in no known way")
    return separator


def _calls(reader: Reader, layout: Layout, text: _Text, way: Way) -> tuple[CallsLayout, list[Message]]:
    """How calls are written, and a conversation with two of them, or with one where the template takes no more."""
    calling_one = calling([_ONE.call], in_text=way.calls_in_text)
    calling_both = calling([_ONE.call, _TWO.call], in_text=way.calls_in_text)
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
        raise UnsupportedTemplateError("the chat template writes calls in no known way")
    opening, _, closing = one.partition(written[0])
    if not opening and style == _COMPACT:
        raise UnsupportedTemplateError(
            "the chat template writes calls as structured answers are written, nothing tells them apart"
        )
    separator = None
    with contextlib.suppress(UnsupportedTemplateError, UnsupportedTemplateError):
        further = rest(inside(calling_both), opening + written[0], "two calls")
        separator = without_end(further, written[1] + closing)
    after_text = ""
    with_text = inside(calling([_ONE.call], in_text=way.calls_in_text, text=ANSWER))
    if with_text.startswith(ANSWER) and with_text.endswith(one):
        after_text = with_text[len(ANSWER) : len(with_text) - len(one)]
    calls = CallsLayout(
        opening=reader.row(opening),
        separator=None if separator is None else reader.row(separator),
        closing=reader.row(closing),
        after_text=reader.row(after_text),
        arguments_key=key,
        style=style,
    )
    return calls, [user(USER), calling_one if separator is None else calling_both]


def _outputs(reader: Reader, text: _Text, conversation: list[Message], can_be_parallel: bool) -> dict[str, Row]:
    """Rows of the outputs of the calls that `conversation` ends with."""
    probes = (_ONE, _TWO) if can_be_parallel else (_ONE,)
    texts = zip(probes, (OUTPUT, OUTPUT_2), strict=False)
    outputs = [told(ToolTurn(name=probe.name, text=output)) for probe, output in texts]
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
        raise UnsupportedTemplateError("the chat template writes the outputs of tools in no known way")
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
