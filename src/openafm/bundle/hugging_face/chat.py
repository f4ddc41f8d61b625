"""The chat template of a checkpoint: read off its Jinja template, then compared with it on whole conversations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from openafm.bundle.hugging_face.errors import HuggingFaceError, UnsupportedTemplateError
from openafm.bundle.hugging_face.jinja import JinjaTemplate
from openafm.bundle.hugging_face.layout import Layout, Reader, messages_of, read_layout, template_of
from openafm.bundle.hugging_face.tools import WAYS, Way, read_tools
from openafm.core.config import ConfigError
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.conversation import (
    AssistantTurn,
    Instructions,
    ToolCall,
    ToolDefinition,
    ToolTurn,
    Turn,
    UserTurn,
)
from openafm.tokenizer.imported_template import ImportedTemplate
from openafm.tokenizer.template import ChatTemplateError, opened

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True, kw_only=True)
class ReadTemplate:
    """A template, and what a user should know about how it came about."""

    template: ImportedTemplate
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """A layout beside the Jinja template that it stands for, over the tokenizer as its own house uses it."""

    jinja: JinjaTemplate
    layout: Layout
    tokenizer: Tokenizer
    home: tokenizers.Tokenizer

    def check(self, template: ImportedTemplate, turns: Sequence[Turn], way: Way = WAYS[0]) -> None:
        """Compare every beginning of a conversation that the model would answer, and the whole.

        Raises:
            UnsupportedTemplateError: texts or tokens differ.
            UnsupportedTemplateError: the Jinja template does not take it.
        """
        for end in range(1, len(turns) + 1):
            is_inside_outputs = (
                end < len(turns) and isinstance(turns[end], ToolTurn) and isinstance(turns[end - 1], ToolTurn)
            )
            if not isinstance(turns[end - 1], Instructions) and not is_inside_outputs:
                self._check_beginning(template, turns[:end], way)

    def _check_beginning(self, template: ImportedTemplate, turns: Sequence[Turn], way: Way = WAYS[0]) -> None:
        is_answered = isinstance(turns[-1], AssistantTurn)
        tokens = template.encode(self.tokenizer, opened(turns)).tokens
        if not is_answered:
            tokens += template.generation_prompt(self.tokenizer)
        ours = self._spelled(tokens)
        tools = [_tool_message(tool) for turn in turns if isinstance(turn, Instructions) for tool in turn.tools]
        messages = messages_of(turns, calls_in_text=way.calls_in_text)
        theirs = self.jinja.text(messages, tools, prompt=not is_answered, **way.keywords)
        if self._without_kept(ours) != self._without_kept(theirs):
            at = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
            raise UnsupportedTemplateError(
                f"the chat template treats longer conversations differently: {theirs[at : at + 60]!r} where turns that "
                f"only follow each other give {ours[at : at + 60]!r}"
            )
        if self.home.encode(ours, add_special_tokens=False).ids != tokens:
            raise UnsupportedTemplateError("turns encoded one by one give other tokens than the whole conversation")

    def _without_kept(self, text: str) -> str:
        return text.replace(self.layout.kept, "") if self.layout.kept else text

    def _spelled(self, tokens: Sequence[int]) -> str:
        names = {id: name for name, id in self.tokenizer.special_ids.items()}
        runs = itertools.groupby(tokens, key=lambda token: token in names)
        return "".join(
            "".join(map(names.__getitem__, run)) if special else self.tokenizer.decode(run) for special, run in runs
        )


def read_chat_template(
    jinja: JinjaTemplate, tokenizer: Tokenizer, home: tokenizers.Tokenizer, stop: Sequence[str]
) -> ReadTemplate:
    """The chat template as data.

    Args:
        home: the tokenizer as its own house uses it, which matches special tokens inside texts.
        stop: tokens that end an answer beside the one that the template puts there.

    Raises:
        HuggingFaceError: the template cannot be made append-only; the message says where.
    """
    reader = Reader(jinja, tokenizer)
    layout = read_layout(reader)
    template = template_of(reader, layout, stop)
    comparison = _Comparison(jinja=jinja, layout=layout, tokenizer=tokenizer, home=home)
    for conversation in _PLAIN:
        comparison.check(template, conversation)
    notes = [*_notes(layout, template)]
    template, reason = _with_tools(reader, template, comparison)
    if reason:
        notes.append(f"without tools: {reason}")
    elif template.tools is not None and template.tools.calls.separator is None:
        notes.append("calls one tool at a time")
    if jinja.asked_for_date:
        notes.append("the chat template states the date: it stays that of the import; give today's in the instructions")
    return ReadTemplate(template=template, notes=tuple(notes))


def _with_tools(reader: Reader, template: ImportedTemplate, comparison: _Comparison) -> tuple[ImportedTemplate, str]:
    """The template with tools, or as it was and the reason why not."""
    reasons = []
    for way in WAYS:
        try:
            tools = read_tools(reader, comparison.layout, way)
            calls = tools.calls
            rows = [tools.start, tools.instructions, calls.opening, calls.separator or (), calls.closing, calls.after_text]
            rows += [tools.output_opening, tools.output, tools.output_separator, tools.output_closing, tools.separator]
            tokens = dict.fromkeys((*template.tokens, *reader.tokens_of(rows)))
            extended = replace(template, tokens=tuple(tokens), tools=tools)
            for conversation in _TOOL_USES if calls.separator is not None else _SINGLE_TOOL_USES:
                comparison.check(extended, conversation, way)
            return extended, ""
        except (HuggingFaceError, ConfigError, ChatTemplateError) as error:
            reasons.append(str(error))
    return template, reasons[0]


def _notes(layout: Layout, template: ImportedTemplate) -> list[str]:
    notes = []
    if layout.kept:
        notes.append(f"every answer begins after {layout.kept!r}, which stays in the history")
    said = "".join(piece for piece in template.start if piece not in template.tokens)
    if said := " ".join(said.split()).removeprefix("system").strip():
        notes.append(f"without instructions the template says {said!r}")
    return notes


def _tool_message(tool: ToolDefinition) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


_WEATHER = ToolDefinition(
    name="get_weather",
    description="The weather of a city, now.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string", "description": 'such as "Kraków"'}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
_CLOCK = ToolDefinition(name="clock", description="", parameters={"type": "object", "properties": {}})
_TALK: tuple[Turn, ...] = (
    UserTurn(text="What is 17 * 23?\n\n- show it\n  - step by step"),
    AssistantTurn(text="17 * 23 = 391.\n\n```python\nprint(17 * 23)\n```"),
    UserTurn(text="  Grazie! 今日は 👍 "),
    AssistantTurn(text='{"a":1,"b":[true,null]}'),
    UserTurn(text="one {text} more"),
    AssistantTurn(text="Done."),
)
_SYSTEMS = (Instructions(text="You are brief.\nAnswer in one sentence."), Instructions(text=" Be “kind”. "))
_PLAIN: tuple[tuple[Turn, ...], ...] = (_TALK, *((told, *_TALK) for told in _SYSTEMS))


def _uses(*calls: ToolCall) -> tuple[tuple[Turn, ...], ...]:
    outputs = {"get_weather": '{"sky": "clear", "at": "5 °C"}\nno wind', "clock": "12:00"}
    use: tuple[Turn, ...] = (
        UserTurn(text="How is the weather in Kraków?"),
        AssistantTurn(tool_calls=calls),
        *(ToolTurn(name=call.name, text=outputs[call.name]) for call in calls),
        AssistantTurn(text="Clear, 5 °C."),
        UserTurn(text="And there?"),
        AssistantTurn(tool_calls=calls[:1]),
        ToolTurn(name=calls[0].name, text="unknown"),
        AssistantTurn(text="I cannot say."),
        UserTurn(text="Thank you"),
    )
    tools = ((_WEATHER,), (_WEATHER, _CLOCK))
    return tuple((Instructions(text=told, tools=some), *use) for told in ("", "Use tools.") for some in tools)


_CALL = ToolCall(name="get_weather", arguments={"city": "Kraków", "days": 2})
_SINGLE_TOOL_USES = _uses(_CALL)
_TOOL_USES = (*_SINGLE_TOOL_USES, *_uses(_CALL, ToolCall(name="clock", arguments={})))
