"""The chat template of a checkpoint: derived from its Jinja template, then compared with it on whole conversations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from openafm.bundle.hugging_face.chat.image_layout import IMAGE_TALK, ImageTokens, with_images
from openafm.bundle.hugging_face.chat.jinja import JinjaTemplate
from openafm.bundle.hugging_face.chat.layout import Layout, TemplateReader, messages_of, read_layout, template_of
from openafm.bundle.hugging_face.chat.tools import TOOL_PASSINGS, ToolPassing, read_tools
from openafm.bundle.hugging_face.errors import HuggingFaceError, UnsupportedTemplateError
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
from openafm.tokenizer.imported.template import ImportedTemplate
from openafm.tokenizer.template import ChatTemplateError, opened

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True, kw_only=True)
class ReadTemplate:
    """Hold a template and notes for the user about how it differs from the Jinja template."""

    template: ImportedTemplate
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """Compare a derived template with the Jinja template, in text and in tokens of the original tokenizer."""

    jinja: JinjaTemplate
    layout: Layout
    tokenizer: Tokenizer
    original: tokenizers.Tokenizer
    images: ImageTokens | None = None

    def check(self, template: ImportedTemplate, turns: Sequence[Turn], passing: ToolPassing = TOOL_PASSINGS[0]) -> None:
        """Compare every prefix of a conversation that the model would answer, and the whole.

        Raises:
            UnsupportedTemplateError: texts or tokens differ, or the Jinja template fails.
        """
        for end in range(1, len(turns) + 1):
            is_inside_outputs = (
                end < len(turns) and isinstance(turns[end], ToolTurn) and isinstance(turns[end - 1], ToolTurn)
            )
            if not isinstance(turns[end - 1], Instructions) and not is_inside_outputs:
                self._check_prefix(template, turns[:end], passing)

    def _check_prefix(
        self, template: ImportedTemplate, turns: Sequence[Turn], passing: ToolPassing = TOOL_PASSINGS[0]
    ) -> None:
        is_answered = isinstance(turns[-1], AssistantTurn)
        tokens = template.encode(self.tokenizer, opened(turns)).tokens
        if not is_answered:
            tokens += template.generation_prompt(self.tokenizer)
        ours = self.tokenizer.spell(tokens)
        tools = [_tool_message(tool) for turn in turns if isinstance(turn, Instructions) for tool in turn.tools]
        messages = messages_of(turns, calls_in_text=passing.calls_in_text)
        theirs = self.jinja.text(messages, tools, prompt=not is_answered, **passing.keywords)
        written = ours if self.images is None else self.images.as_in_template(ours)
        if self._without_kept(written) != self._without_kept(theirs):
            at = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(written, theirs, strict=False)))
            raise UnsupportedTemplateError(
                f"the chat template changes earlier turns in longer conversations: it writes {theirs[at : at + 60]!r} where "
                f"turns one by one give {written[at : at + 60]!r}"
            )
        if self.original.encode(ours, add_special_tokens=False).ids != tokens:
            raise UnsupportedTemplateError("turns encoded one by one give different tokens from the whole conversation")

    def _without_kept(self, text: str) -> str:
        return text.replace(self.layout.kept, "") if self.layout.kept else text


def read_chat_template(
    jinja: JinjaTemplate,
    tokenizer: Tokenizer,
    original: tokenizers.Tokenizer,
    stop: Sequence[str],
    images: ImageTokens | None = None,
) -> ReadTemplate:
    """Return the chat template as data.

    Args:
        original: the tokenizer as transformers uses it, which matches special tokens inside text.
        stop: tokens that end an answer, in addition to the one that the template writes.
        images: the tokens of images, for a model with a vision encoder.

    Raises:
        UnsupportedTemplateError: the template cannot be made append-only; the message has the place.
    """
    reader = TemplateReader(jinja, tokenizer)
    layout = read_layout(reader)
    template = template_of(reader, layout, stop)
    comparison = _Comparison(jinja=jinja, layout=layout, tokenizer=tokenizer, original=original, images=images)
    if images is not None:
        template = with_images(reader, layout, template, images)
    for conversation in _PLAIN if images is None else (*_PLAIN, IMAGE_TALK):
        comparison.check(template, conversation)
    notes = [*_notes(layout, template)]
    template, reason = _with_tools(reader, template, comparison)
    if reason:
        notes.append(f"without tools: {reason}")
    elif template.tools is not None and template.tools.calls.separator is None:
        notes.append("one tool call per turn")
    if jinja.asked_for_date:
        notes.append(
            "the chat template states a date, which stays that of the import; state today's date in the instructions"
        )
    return ReadTemplate(template=template, notes=tuple(notes))


def _with_tools(reader: TemplateReader, template: ImportedTemplate, comparison: _Comparison) -> tuple[ImportedTemplate, str]:
    """The template with tools, or the template unchanged and the reason."""
    reasons = []
    for passing in TOOL_PASSINGS:
        try:
            tools = read_tools(reader, comparison.layout, passing)
            calls = tools.calls
            rows = [tools.start, tools.instructions, calls.opening, calls.separator or (), calls.closing, calls.after_text]
            rows += [tools.output_opening, tools.output, tools.output_separator, tools.output_closing, tools.separator]
            tokens = dict.fromkeys((*template.tokens, *reader.tokens_of(rows)))
            extended = replace(template, tokens=tuple(tokens), tools=tools)
            for conversation in _TOOL_USES if calls.separator is not None else _SINGLE_TOOL_USES:
                comparison.check(extended, conversation, passing)
            return extended, ""
        except (HuggingFaceError, ConfigError, ChatTemplateError) as error:
            reasons.append(str(error))
    return template, reasons[0]


def _notes(layout: Layout, template: ImportedTemplate) -> list[str]:
    notes = []
    if layout.kept:
        notes.append(f"{layout.kept!r} opens every answer and stays in the history")
    default = "".join(piece for piece in template.start if piece not in template.tokens)
    if default := " ".join(default.split()).removeprefix("system").strip():
        notes.append(f"without instructions the template inserts {default!r}")
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
_PLAIN: tuple[tuple[Turn, ...], ...] = (_TALK, *((instructions, *_TALK) for instructions in _SYSTEMS))


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
    return tuple((Instructions(text=text, tools=some), *use) for text in ("", "Use tools.") for some in tools)


_CALL = ToolCall(name="get_weather", arguments={"city": "Kraków", "days": 2})
_SINGLE_TOOL_USES = _uses(_CALL)
_TOOL_USES = (*_SINGLE_TOOL_USES, *_uses(_CALL, ToolCall(name="clock", arguments={})))
