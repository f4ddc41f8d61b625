"""Derive a layout, which is data, from a Jinja chat template.

The template is rendered with markers instead of texts; their positions in the output give the layout. `template.py` compares
both on conversations, and only a layout with the same text and tokens is used. A template that rewrites earlier turns, for
example to remove thoughts, cannot be used append-only. Text that it adds only to the generation prompt, such as an empty
thought, stays in the history here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openafm.bundle.hugging_face.chat.jinja import JinjaTemplate, Message
from openafm.bundle.hugging_face.errors import HuggingFaceError, UnsupportedTemplateError
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.conversation import AssistantTurn, Instructions, TextPart, ToolCall, ToolTurn, Turn, UserTurn
from openafm.tokenizer.imported.layouts import FIELD, JsonStyle, Row
from openafm.tokenizer.imported.template import ImportedTemplate

CALL_ID = "call00000"
SYSTEM, USER, USER_2, ANSWER, ANSWER_2 = "Zqsystemqz", "Zquseraqz", "Zquserbqz", "Zqansweraqz", "Zqanswerbqz"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The text around the content of every turn. `kept` is in the generation prompt only, and stays in the history here."""

    start: str
    instructions: Row
    user_head: str
    user_tail: str
    user_field: str
    system_field: str
    opening: str
    closing: str
    kept: str


class TemplateReader:
    """Render a template and split the results into pieces."""

    def __init__(self, jinja: JinjaTemplate, tokenizer: Tokenizer) -> None:
        self.jinja = jinja
        longest_first = sorted(tokenizer.special_ids, key=len, reverse=True)
        self._tokens = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._scheme = tokenizer.prepend_scheme

    def row(
        self, text: str, fields: Mapping[str, str] | None = None, *, is_first: bool = False, is_open: bool = False
    ) -> Row:
        """Return text as pieces: tokens, fields instead of markers, fixed texts, and the spaces that the tokenizer inserts.

        Args:
            is_first: whether the row begins a conversation.
            is_open: whether a text follows the row.
        """
        fields = fields or {}
        pieces: list[str] = []
        is_prefixed = is_first and self._scheme != "never"
        for part in _cut(text, re.compile("|".join(map(re.escape, fields)) or r"(?!)")):
            if part in fields:
                pieces += [" "] * is_prefixed + [fields[part]]
                is_prefixed = False
                continue
            for piece in _cut(part, self._tokens):
                if self._tokens.fullmatch(piece):
                    pieces.append(piece)
                    is_prefixed = self._scheme == "always"
                    continue
                written = f" {piece}" if is_prefixed else piece
                pieces += [written[:1], written[1:]] if FIELD.fullmatch(written) else [written]
                is_prefixed = False
        return (*pieces, *[" "] * (is_open and is_prefixed))

    def tokens_of(self, rows: Sequence[Row]) -> tuple[str, ...]:
        """Return the tokens in rows."""
        return tuple(dict.fromkeys(piece for row in rows for piece in row if self._tokens.fullmatch(piece)))


def read_layout(reader: TemplateReader) -> Layout:
    """Return the layout of instructions, prompts and answers.

    Raises:
        UnsupportedTemplateError: the turns cannot be appended one by one, or the template fails on one of them.
    """
    text = reader.jinja.text
    asked, prompted = text([user(USER)]), text([user(USER)], prompt=True)
    history = text([user(USER), assistant(ANSWER), user(USER_2)])
    answered = text([user(USER), assistant(ANSWER)])
    user_tail = after(asked, USER)
    prompt = rest(prompted, asked, "the prompt of an answer")
    closing = after(answered, ANSWER)
    user_head = rest(between(history, ANSWER, USER_2), closing, "a second prompt")
    opening = rest(between(history, USER, ANSWER), user_tail, "an answer")
    if prompt.rfind("<think>") > prompt.rfind("</think>"):
        raise HuggingFaceError("this model always thinks before it answers, which is not supported")
    instructed = text([system(SYSTEM), user(USER)])
    system_field = _field(text([system(f" {SYSTEM} "), user(USER)]), SYSTEM)
    instructions = before(instructed, SYSTEM) + SYSTEM + without_end(between(instructed, SYSTEM, USER), user_head)
    return Layout(
        start=without_end(before(asked, USER), user_head),
        instructions=reader.row(instructions, {SYSTEM: system_field}, is_first=True),
        user_head=user_head,
        user_tail=user_tail,
        user_field=_field(text([user(f" {USER} ")]), USER),
        system_field=system_field,
        opening=opening,
        closing=closing,
        kept=rest(prompt, opening, "the prompt of an answer"),
    )


def template_of(reader: TemplateReader, layout: Layout, stop: Sequence[str]) -> ImportedTemplate:
    """Return the template without tools. `stop` are tokens that end an answer in addition to the one of the layout.

    Raises:
        UnsupportedTemplateError: no special token ends an answer, or none begins a turn.
    """
    user_row = (
        *reader.row(layout.user_head, is_open=True),
        layout.user_field,
        "{response_format}",
        *reader.row(layout.user_tail),
    )
    start = reader.row(layout.start, is_first=True)
    opening, closing = map(reader.row, (layout.opening + layout.kept, layout.closing))
    for row in (user_row, opening, closing):
        if not reader.tokens_of([row[:1]]):
            raise UnsupportedTemplateError(f"no special token begins {''.join(row)!r}, so a text could imitate it")
    if layout.kept and "<think>" not in layout.kept and not reader.tokens_of([reader.row(layout.kept)]):
        raise UnsupportedTemplateError(
            f"the chat template writes {layout.kept!r} before an answer and removes it from the history"
        )
    stops = tuple(dict.fromkeys((closing[0], *stop)))
    return ImportedTemplate(
        tokens=reader.tokens_of([start, layout.instructions, user_row, opening, closing, stops]),
        stop=stops,
        start=start,
        instructions=layout.instructions,
        user=user_row,
        assistant_opening=opening,
        assistant_closing=closing,
    )


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def user_parts(turn: UserTurn) -> Message:
    """Return a prompt with images in the form of a message: a list of its parts."""
    parts = [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"} for part in turn.content
    ]
    return {"role": "user", "content": parts}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def calling(calls: Sequence[ToolCall], *, in_text: bool, text: str = "") -> Message:
    """Return an answer with calls; `in_text` for templates whose users write calls into the text."""
    if in_text:
        written = [
            f"<tool_call>\n{JsonStyle().text({'name': c.name, 'arguments': c.arguments})}\n</tool_call>" for c in calls
        ]
        return assistant("\n".join(filter(None, (text, *written))))
    functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
    return assistant(text) | {"tool_calls": [{"id": CALL_ID, "type": "function", "function": f} for f in functions]}


def tool_output(output: ToolTurn) -> Message:
    return {"role": "tool", "name": output.name, "tool_call_id": CALL_ID, "content": output.text}


def messages_of(turns: Sequence[Turn], *, calls_in_text: bool = False) -> list[Message]:
    """Return turns in the form of messages for Jinja templates."""
    return [message for turn in turns for message in _messages(turn, calls_in_text)]


def _messages(turn: Turn, calls_in_text: bool) -> list[Message]:
    match turn:
        case Instructions():
            return [system(turn.text)] if turn.text else []
        case UserTurn():
            return [user_parts(turn) if turn.images else user(turn.text)]
        case ToolTurn():
            return [tool_output(turn)]
        case AssistantTurn(tool_calls=()):
            return [assistant(turn.text)]
        case AssistantTurn():
            return [calling(turn.tool_calls, in_text=calls_in_text, text=turn.text)]


def before(text: str, mark: str) -> str:
    return _halves(text, mark)[0]


def after(text: str, mark: str) -> str:
    return _halves(text, mark)[1]


def between(text: str, first: str, second: str) -> str:
    return before(after(text, first), second)


def rest(text: str, beginning: str, what: str) -> str:
    """Return `text` without its beginning.

    Raises:
        UnsupportedTemplateError: it begins differently.
    """
    if not text.startswith(beginning):
        raise UnsupportedTemplateError(f"the chat template rewrites earlier turns when {what} follows; sessions only append")
    return text[len(beginning) :]


def without_end(text: str, end: str) -> str:
    if not text.endswith(end):
        raise UnsupportedTemplateError(
            "the chat template writes the first prompt differently from later ones; sessions only append"
        )
    return text[: len(text) - len(end)]


def _halves(text: str, mark: str) -> tuple[str, str]:
    if text.count(mark) != 1:
        raise UnsupportedTemplateError(f"the chat template writes a text {text.count(mark)} times, expected once")
    head, _, tail = text.partition(mark)
    return head, tail


def _field(text: str, mark: str) -> str:
    """The field of a text, trimmed if the template trims it."""
    return "{text}" if f" {mark} " in text else "{text|trim}"


def _cut(text: str, pattern: re.Pattern[str]) -> list[str]:
    """The matches of `pattern` and the texts between them."""
    pieces, done = [], 0
    for match in pattern.finditer(text):
        pieces += [text[done : match.start()], match[0]]
        done = match.end()
    return [piece for piece in (*pieces, text[done:]) if piece]
