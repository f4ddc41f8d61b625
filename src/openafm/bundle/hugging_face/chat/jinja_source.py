"""The Jinja source of a chat template that is data, for exports. Conversations only: tools are not expressed."""

from __future__ import annotations

import json
from collections.abc import Sequence

from openafm.bundle.hugging_face.errors import HuggingFaceError
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.tokenizer.imported.layouts import FIELD
from openafm.tokenizer.imported.template import ImportedTemplate
from openafm.tokenizer.template import BaseChatTemplate

_SOURCE = """\
{{%- if tools %}}{{{{- raise_exception("this chat template does not support tools") }}}}{{% endif %}}
{{%- if messages and messages[0].role in ("system", "instructions") %}}
    {{%- set content = messages[0].content %}}{{%- set turns = messages[1:] %}}
    {instructions}
{{%- else %}}
    {{%- set turns = messages %}}
    {start}
{{%- endif %}}
{{%- for message in turns %}}
    {{%- set content = message.content %}}
    {{%- if message.role == "user" %}}
        {user}
    {{%- elif message.role == "assistant" and not message.tool_calls %}}
        {opening}{{{{- content }}}}{closing}
    {{%- else %}}
        {{{{- raise_exception("this chat template does not support the role or the tool calls of a message") }}}}
    {{%- endif %}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{opening}{{%- endif %}}
"""


def jinja_source(template: BaseChatTemplate, tokenizer: Tokenizer) -> tuple[str, tuple[str, ...]]:
    """Return the Jinja source of a template, and notes on what it leaves out.

    Raises:
        HuggingFaceError: the template is of a kind without a Jinja form.
    """
    match template:
        case ImportedTemplate():
            tokens = template.tokens
            rows: dict[str, tuple[str, ...]] = {
                "start": template.start,
                "instructions": template.instructions,
                "user": template.user,
                "opening": template.assistant_opening,
                "closing": template.assistant_closing,
            }
        case ChatTemplate():
            tokens = tuple(tokenizer.special_ids)
            rows = {
                "start": template.instructions,
                "instructions": template.instructions,
                "user": template.user,
                "opening": template.assistant[:1],
                "closing": template.assistant[-1:],
            }
        case _:
            raise HuggingFaceError(f"a {type(template).__name__} has no Jinja form; export supports ChatTemplate")
    scheme = tokenizer.prepend_scheme
    for name, row in rows.items():
        rows[name] = _without_inserted(row, tokens, scheme, is_first=name in ("start", "instructions"))
    parts = {name: _written(row, tokens, has_text=name != "start") for name, row in rows.items()}
    notes = ("the chat template has no tools and no response formats",) if template.can_call_tools else ()
    return _SOURCE.format(**parts), notes


def _without_inserted(row: Sequence[str], tokens: Sequence[str], scheme: str, *, is_first: bool) -> tuple[str, ...]:
    """Return a row without the spaces that the tokenizer inserts by itself."""
    pieces, is_prefixed = list[str](), is_first and scheme != "never"
    for piece in row:
        is_token = piece in tokens
        pieces.append(piece.removeprefix(" ") if is_prefixed and not is_token else piece)
        is_prefixed = is_token and scheme == "always"
    return tuple(pieces)


def _written(row: Sequence[str], tokens: Sequence[str], has_text: bool) -> str:
    """A row as Jinja output: literals, and the content of the message in the place of {text}."""
    pieces = []
    for piece in row:
        field = None if piece in tokens else FIELD.search(piece)
        if field is None:
            pieces.append(_literal(piece))
        elif field[1] == "text" and has_text:
            before, _, after = piece.partition(field[0])
            content = "content | trim" if field[2] == "trim" else "content"
            # A text whose field is empty is left out, with the literal around it.
            pieces.append(f"{{%- if content %}}{_literal(before)}{{{{- {content} }}}}{_literal(after)}{{%- endif %}}")
    return "".join(pieces)


def _literal(text: str) -> str:
    return "{{- " + json.dumps(text, ensure_ascii=False) + " }}" if text else ""
